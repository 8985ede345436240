"""Where a layer meets its cache first: forward pre-hooks that let KVPP get there before it."""

from collections.abc import Callable, Mapping

from torch import nn

from kvply.errors import UnsupportedError
from kvply.kvpp.plan import StagePlan
from kvply.vllm.contract import CACHE_OWNERS


def install(
    plan: StagePlan,
    model: nn.Module,
    forward_context: Mapping[str, object],
    before_layer: Callable[[int], None],
) -> None:
    """Call `before_layer(ordinal)` before every module of target layer `ordinal` that touches its cache.

    In eager mode such a module runs after the layer's projections and before its first cache access. Several
    modules of a layer may call; the runtime takes the first and ignores the rest.
    Raises UnsupportedError for an owner of a cache that is not in CACHE_OWNERS.
    """
    for ordinal, bundle in enumerate(plan.bundles):
        for component in bundle.components:
            module = _hook_point(model, component.name, forward_context[component.name])
            module.register_forward_pre_hook(_pre_hook(ordinal, before_layer))


def _pre_hook(ordinal: int, before_layer: Callable[[int], None]) -> Callable[[nn.Module, object], None]:
    def pre_hook(_module: nn.Module, _args: object) -> None:
        before_layer(ordinal)

    return pre_hook


def _hook_point(model: nn.Module, name: str, owner: object) -> nn.Module:
    for cls in type(owner).__mro__:
        runs_itself = CACHE_OWNERS.get(f"{cls.__module__}.{cls.__qualname__}")
        if runs_itself is None or not isinstance(owner, nn.Module):
            continue
        return owner if runs_itself else _parent(model, name, owner)
    raise UnsupportedError(
        f"cache layer {name} belongs to a {type(owner).__module__}.{type(owner).__qualname__}, and KVPP does not "
        f"know where that class first touches its cache; remove enable_kvpp"
    )


def _parent(model: nn.Module, name: str, owner: nn.Module) -> nn.Module:
    for module in model.modules():
        if any(child is owner for child in module.children()):
            return module
    raise UnsupportedError(f"cache layer {name} is not part of the model; remove enable_kvpp")
