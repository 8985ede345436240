"""Random, well-scaled weights under the names that DeepSeek and GLM checkpoints use.

Every tensor is drawn from a generator seeded with its name. Models of one seed therefore agree in all tensors
they have in common, whatever their number of layers: a ``v32`` model is the ``v3`` model plus indexers.
"""

import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from kvply.testing.tiny_models import architecture as arch
from kvply.testing.tiny_models.architecture import TinyArchitecture

EASY_BRANCH_GAIN = 0.3
"""With an easy draft, how much attention and experts contribute to the residual stream."""

NamedTensors = Iterator[tuple[str, torch.Tensor]]


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightSource:
    """Draws fp32 tensors by name."""

    seed: int
    branch_gain: float
    """Factor on what a residual branch adds to the stream."""

    def normal(self, name: str, *shape: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(zlib.crc32(f"{self.seed}/{name}".encode()))
        return torch.randn(*shape, generator=generator)

    def linear(self, module: str, out_size: int, in_size: int, gain: float = 1.0) -> tuple[str, torch.Tensor]:
        name = f"{module}.weight"
        return name, self.normal(name, out_size, in_size) * (gain / math.sqrt(in_size))

    def norm(self, module: str, size: int) -> tuple[str, torch.Tensor]:
        name = f"{module}.weight"
        return name, 1 + 0.1 * self.normal(name, size)


def model_weights(model: TinyArchitecture, seed: int) -> NamedTensors:
    """Yield all tensors of the model in fp32, MTP layers included.

    With MTP layers the draft is made easy: it passes the last token's embedding through, and all residual
    branches are small, so that draft and model agree often enough for tokens to be accepted.
    """
    source = WeightSource(seed=seed, branch_gain=EASY_BRANCH_GAIN if model.num_mtp_layers else 1.0)
    embeddings = source.normal("model.embed_tokens.weight", arch.VOCABULARY_SIZE, arch.HIDDEN_SIZE)
    _, head = source.linear("lm_head", arch.VOCABULARY_SIZE, arch.HIDDEN_SIZE, 3.0)
    yield "model.embed_tokens.weight", embeddings
    for layer in range(model.num_layers):
        yield from _layer(source, model, layer)
    yield source.norm("model.norm", arch.HIDDEN_SIZE)
    yield "lm_head.weight", head
    for layer in range(model.num_layers, model.num_layers + model.num_mtp_layers):
        yield from _layer(source, model, layer)
        yield from _mtp_additions(source, f"model.layers.{layer}", embeddings, head)


def _layer(source: WeightSource, model: TinyArchitecture, layer: int) -> NamedTensors:
    prefix = f"model.layers.{layer}"
    yield source.norm(f"{prefix}.input_layernorm", arch.HIDDEN_SIZE)
    yield source.norm(f"{prefix}.post_attention_layernorm", arch.HIDDEN_SIZE)
    yield from _attention(source, f"{prefix}.self_attn")
    if model.has_indexer(layer):
        yield from _indexer(source, f"{prefix}.self_attn.indexer")
    if model.has_experts(layer):
        yield from _experts(source, f"{prefix}.mlp")
    else:
        yield from _mlp(source, f"{prefix}.mlp", arch.MLP_SIZE)


def _attention(source: WeightSource, prefix: str) -> NamedTensors:
    query_size = arch.NUM_HEADS * (arch.NOPE_HEAD_DIM + arch.ROPE_HEAD_DIM)
    key_value_size = arch.NUM_HEADS * (arch.NOPE_HEAD_DIM + arch.V_HEAD_DIM)
    latent_size = arch.KV_LORA_RANK + arch.ROPE_HEAD_DIM
    yield source.linear(f"{prefix}.q_a_proj", arch.Q_LORA_RANK, arch.HIDDEN_SIZE)
    yield source.norm(f"{prefix}.q_a_layernorm", arch.Q_LORA_RANK)
    yield source.linear(f"{prefix}.q_b_proj", query_size, arch.Q_LORA_RANK, 1.3)
    yield source.linear(f"{prefix}.kv_a_proj_with_mqa", latent_size, arch.HIDDEN_SIZE)
    yield source.norm(f"{prefix}.kv_a_layernorm", arch.KV_LORA_RANK)
    yield source.linear(f"{prefix}.kv_b_proj", key_value_size, arch.KV_LORA_RANK, 1.4)
    yield source.linear(f"{prefix}.o_proj", arch.HIDDEN_SIZE, arch.NUM_HEADS * arch.V_HEAD_DIM, source.branch_gain)


def _indexer(source: WeightSource, prefix: str) -> NamedTensors:
    yield source.linear(f"{prefix}.wq_b", arch.INDEX_NUM_HEADS * arch.INDEX_HEAD_DIM, arch.Q_LORA_RANK)
    yield source.linear(f"{prefix}.wk", arch.INDEX_HEAD_DIM, arch.HIDDEN_SIZE)
    yield source.norm(f"{prefix}.k_norm", arch.INDEX_HEAD_DIM)
    yield f"{prefix}.k_norm.bias", 0.1 * source.normal(f"{prefix}.k_norm.bias", arch.INDEX_HEAD_DIM)
    yield source.linear(f"{prefix}.weights_proj", arch.INDEX_NUM_HEADS, arch.HIDDEN_SIZE)


def _mlp(source: WeightSource, prefix: str, size: int) -> NamedTensors:
    yield source.linear(f"{prefix}.gate_proj", size, arch.HIDDEN_SIZE)
    yield source.linear(f"{prefix}.up_proj", size, arch.HIDDEN_SIZE)
    yield source.linear(f"{prefix}.down_proj", arch.HIDDEN_SIZE, size, 0.7 * source.branch_gain)


def _experts(source: WeightSource, prefix: str) -> NamedTensors:
    yield source.linear(f"{prefix}.gate", arch.NUM_EXPERTS, arch.HIDDEN_SIZE, 3.0)
    bias = f"{prefix}.gate.e_score_correction_bias"
    yield bias, 0.05 * source.normal(bias, arch.NUM_EXPERTS)
    for expert in range(arch.NUM_EXPERTS):
        yield from _mlp(source, f"{prefix}.experts.{expert}", arch.EXPERT_SIZE)
    yield from _mlp(source, f"{prefix}.shared_experts", arch.EXPERT_SIZE)


def _mtp_additions(source: WeightSource, prefix: str, embeddings: torch.Tensor, head: torch.Tensor) -> NamedTensors:
    size = arch.HIDDEN_SIZE
    yield source.norm(f"{prefix}.enorm", size)
    yield source.norm(f"{prefix}.hnorm", size)
    yield f"{prefix}.eh_proj.weight", torch.cat([torch.eye(size), torch.zeros(size, size)], dim=1)
    yield source.norm(f"{prefix}.shared_head.norm", size)
    yield f"{prefix}.embed_tokens.weight", embeddings.clone()
    yield f"{prefix}.shared_head.head.weight", head.clone()
