"""Cache components from a model's config.json."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvply.errors import ConfigError
from kvply.planner.model_facts import facts_of, read_model, shares_indexer

V3: dict[str, Any] = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "num_hidden_layers": 61, "dtype": "bfloat16"}
GLM52 = {
    **V3,
    "num_hidden_layers": 78,
    "index_topk": 2048,
    "index_head_dim": 128,
    "index_topk_freq": 4,
    "index_skip_topk_offset": 3,
    "num_nextn_predict_layers": 1,
}


def test_dense_layers_have_one_component() -> None:
    facts = facts_of("v3", V3)
    assert facts.bytes_per_token == ((1152,),) * 61
    assert facts.num_mtp_layers == 0


def test_every_layer_of_a_sparse_model_has_an_indexer_unless_it_shares_one() -> None:
    facts = facts_of("glm", GLM52)
    full = [layer for layer, parts in enumerate(facts.bytes_per_token) if len(parts) == 2]
    assert full == [0, 1, 2, *range(6, 78, 4)]
    assert facts.bytes_per_token[0] == (1152, 132)
    assert facts.num_mtp_layers == 1


def test_a_pattern_overrides_the_frequency() -> None:
    config = {**GLM52, "index_topk_pattern": "FSSF"}
    assert [shares_indexer(config, layer) for layer in range(5)] == [False, True, True, False, False]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kv_lora_rank": None}, "KVPP has nothing to share"),
        ({"num_hidden_layers": "61"}, "num_hidden_layers .* must be a positive integer"),
        ({"dtype": "int3"}, "dtype 'int3'"),
    ],
)
def test_what_cannot_be_planned_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        facts_of("model", {**V3, **changes})


def test_a_directory_or_the_file_itself_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(V3))
    assert read_model(tmp_path).bytes_per_token == read_model(tmp_path / "config.json").bytes_per_token
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigError, match="cannot read"):
        read_model(tmp_path)
