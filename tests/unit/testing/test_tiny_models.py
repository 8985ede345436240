"""The tiny checkpoints, read back from disk."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from kvply.testing.tiny_models import TinyKind, write_checkpoint


def read(directory: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    config = json.loads((directory / "config.json").read_text())
    return config, load_file(directory / "model.safetensors")


def layers_with_indexer(tensors: dict[str, torch.Tensor]) -> list[int]:
    return sorted(int(name.split(".")[2]) for name in tensors if name.endswith("indexer.wk.weight"))


@pytest.mark.parametrize(
    ("kind", "num_layers", "with_indexer"),
    [("v3", 6, []), ("v32", 6, [0, 1, 2, 3, 4, 5]), ("glm52", 8, [0, 1, 2, 6])],
)
def test_kinds(tmp_path: Path, kind: TinyKind, num_layers: int, with_indexer: list[int]) -> None:
    config, tensors = read(write_checkpoint(tmp_path / "new" / "model", kind))

    assert config["num_hidden_layers"] == num_layers
    assert layers_with_indexer(tensors) == with_indexer
    assert all(tensor.dtype == torch.float32 for tensor in tensors.values())
    assert all(tensor.isfinite().all() for tensor in tensors.values())


def test_mtp_layers_follow_the_model(tmp_path: Path) -> None:
    config, tensors = read(write_checkpoint(tmp_path, "glm52", num_layers=4, num_mtp_layers=1))

    assert config["num_nextn_predict_layers"] == 1
    assert layers_with_indexer(tensors) == [0, 1, 2, 4]
    assert torch.equal(tensors["model.layers.4.embed_tokens.weight"], tensors["model.embed_tokens.weight"])


def test_a_seed_gives_the_same_weights_and_another_seed_others(tmp_path: Path) -> None:
    _, first = read(write_checkpoint(tmp_path / "a", "v3", num_layers=1))
    _, again = read(write_checkpoint(tmp_path / "b", "v3", num_layers=1))
    _, other = read(write_checkpoint(tmp_path / "c", "v3", num_layers=1, seed=2))

    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["lm_head.weight"], other["lm_head.weight"])


def test_kinds_and_depths_share_the_tensors_they_have_in_common(tmp_path: Path) -> None:
    _, dense = read(write_checkpoint(tmp_path / "v3", "v3", num_layers=2))
    _, sparse = read(write_checkpoint(tmp_path / "v32", "v32", num_layers=3))

    assert dense.keys() < sparse.keys()
    assert all(torch.equal(dense[name], sparse[name]) for name in dense)


def test_bfloat16(tmp_path: Path) -> None:
    config, tensors = read(write_checkpoint(tmp_path, "v3", num_layers=1, dtype="bfloat16"))

    assert config["torch_dtype"] == "bfloat16"
    assert all(tensor.dtype == torch.bfloat16 for tensor in tensors.values())


@pytest.mark.parametrize(
    "arguments", [{"kind": "v4"}, {"dtype": "float16"}, {"num_layers": 0}, {"num_mtp_layers": -1}], ids=str
)
def test_impossible_models_are_refused(tmp_path: Path, arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"must be one of|make no model"):
        write_checkpoint(tmp_path, **({"kind": "v3"} | arguments))
