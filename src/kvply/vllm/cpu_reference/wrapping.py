"""Replacing a function or method of vLLM by a wrapper around it, once."""

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

_MARK = "__kvply_cpu_reference__"


def wrap_once(owner: type | ModuleType, name: str, make_wrapper: Callable[[Callable[..., Any]], Any]) -> None:
    """Set ``owner.name`` to ``make_wrapper(original)``, unless that has been done already.

    The original stays reachable as the wrapper's ``__wrapped__``. Raises AttributeError if there is nothing
    of that name to wrap.
    """
    original = getattr(owner, name)
    if hasattr(original, _MARK):
        return
    wrapper = functools.wraps(original)(make_wrapper(original))
    setattr(wrapper, _MARK, True)
    setattr(owner, name, wrapper)
