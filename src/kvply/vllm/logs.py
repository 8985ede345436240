"""Let kvply's loggers speak through vLLM's handlers."""

import logging


def adopt_vllm_handlers() -> None:
    """vLLM configures only the logger named `vllm`; give the logger `kvply` the same handlers and level."""
    ours, theirs = logging.getLogger("kvply"), logging.getLogger("vllm")
    if ours.handlers or not theirs.handlers:
        return
    for handler in theirs.handlers:
        ours.addHandler(handler)
    ours.setLevel(theirs.level)
    ours.propagate = False
