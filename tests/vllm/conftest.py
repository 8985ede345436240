"""Real vLLM configs made from tiny model configs."""

import json
from pathlib import Path
from typing import Any

import pytest

from support.vllm_configs import MLA, MakeConfig


@pytest.fixture
def make_config(tmp_path: Path) -> MakeConfig:
    """`make_config(model=MLA, **engine_arguments)` -> VllmConfig, through the hook, as an engine builds it."""
    from vllm.engine.arg_utils import EngineArgs

    from kvply import plugin

    plugin.register()

    def make(model: dict[str, Any] = MLA, **arguments: Any) -> Any:
        (tmp_path / "config.json").write_text(json.dumps(model))
        defaults = {"tensor_parallel_size": 2, "enforce_eager": True, "max_model_len": 1024}
        engine = EngineArgs(model=str(tmp_path), skip_tokenizer_init=True, **{**defaults, **arguments})
        return engine.create_engine_config()

    return make
