"""Writing a tiny model to disk."""

import json
from pathlib import Path

from kvply.testing.tiny_models.architecture import TinyArchitecture, TinyDtype, TinyKind


def write_checkpoint(
    directory: Path,
    kind: TinyKind,
    *,
    num_layers: int | None = None,
    dtype: TinyDtype = "float32",
    num_mtp_layers: int = 0,
    seed: int = 1,
) -> Path:
    """Write ``config.json`` and ``model.safetensors`` into ``directory``, creating it, and return it.

    ``num_layers`` defaults to 6, and to 8 for ``glm52``. Checkpoints of one ``seed`` agree in all tensors they
    share, except that ``num_mtp_layers > 0`` scales the model so that its draft tokens are sometimes accepted.
    Raises ValueError for an unknown kind or dtype and for impossible numbers of layers.
    """
    model = TinyArchitecture.of_kind(kind, num_layers=num_layers, num_mtp_layers=num_mtp_layers, dtype=dtype)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(model.hf_config(), indent=2) + "\n")
    _write_weights(directory / "model.safetensors", model, seed)
    return directory


def _write_weights(path: Path, model: TinyArchitecture, seed: int) -> None:
    import torch
    from safetensors.torch import save_file

    from kvply.testing.tiny_models.weights import model_weights

    dtype = getattr(torch, model.dtype)
    tensors = {name: tensor.to(dtype).contiguous() for name, tensor in model_weights(model, seed)}
    save_file(tensors, path, metadata={"format": "pt"})
