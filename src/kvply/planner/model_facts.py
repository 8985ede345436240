"""Cache components of an MLA model from its `config.json`, in bytes per token.

Sizes are those of vLLM's own cache specs: the main cache of a layer holds kv_lora_rank + qk_rope_head_dim
elements per token, a sparse layer's indexer cache one byte per index dimension plus one fp32 scale. An engine
reads the real specs and is always right; this is for planning without one.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kvply.errors import ConfigError

_SCALE_BYTES = 4
_DTYPE_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
# vLLM's defaults for models whose indexers are shared between layers (GLM-5.2 and later).
_DEFAULT_SKIP_OFFSET = 2


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """bytes_per_token: by target layer, one entry per cache component, main cache first."""

    name: str
    bytes_per_token: tuple[tuple[int, ...], ...]
    num_mtp_layers: int

    @property
    def num_layers(self) -> int:
        return len(self.bytes_per_token)


def read_model(path: Path) -> ModelFacts:
    """Facts of the model in directory `path`. Raises ConfigError if it is not an MLA model KVPP can serve."""
    file = path / "config.json" if path.is_dir() else path
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError) as error:
        raise ConfigError(f"cannot read a model config from {file}: {error}") from error
    return facts_of(path.name, config)


def facts_of(name: str, config: Mapping[str, object]) -> ModelFacts:
    """Facts from the contents of a config.json. Raises ConfigError as `read_model`."""
    if not config.get("kv_lora_rank"):
        raise ConfigError(
            f"{name} has no kv_lora_rank: its KV cache is not MLA and is split by heads over tensor-parallel "
            f"ranks already, so KVPP has nothing to share"
        )
    main = (_number(config, "kv_lora_rank") + _number(config, "qk_rope_head_dim")) * _dtype_bytes(config)
    layers = tuple((main, *_indexer_bytes(config, layer)) for layer in range(_number(config, "num_hidden_layers")))
    mtp = config.get("num_nextn_predict_layers") or 0
    return ModelFacts(name, layers, mtp if isinstance(mtp, int) else 0)


def shares_indexer(config: Mapping[str, object], layer: int) -> bool:
    """Whether `layer` of a sparse model uses the top-k of an earlier layer and has no indexer cache of its own.

    vLLM's rule: `index_topk_pattern` if given, else every freq-th layer from the offset on is full.
    """
    pattern = config.get("index_topk_pattern")
    if isinstance(pattern, str):
        return layer < len(pattern) and pattern[layer] == "S"
    frequency = config.get("index_topk_freq") or 1
    offset = config.get("index_skip_topk_offset", _DEFAULT_SKIP_OFFSET)
    assert isinstance(frequency, int)
    assert isinstance(offset, int)
    return max(layer - offset + 1, 0) % frequency != 0


def _indexer_bytes(config: Mapping[str, object], layer: int) -> tuple[int, ...]:
    if not config.get("index_topk") or shares_indexer(config, layer):
        return ()
    return (_number(config, "index_head_dim") + _SCALE_BYTES,)


def _number(config: Mapping[str, object], key: str) -> int:
    value = config.get(key)
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    raise ConfigError(f"{key} in the model's config.json must be a positive integer, not {value!r}")


def _dtype_bytes(config: Mapping[str, object]) -> int:
    dtype = config.get("dtype") or config.get("torch_dtype") or "bfloat16"
    found = _DTYPE_BYTES.get(str(dtype))
    if found is None:
        raise ConfigError(f"dtype {dtype!r} in the model's config.json; known: {', '.join(_DTYPE_BYTES)}")
    return found
