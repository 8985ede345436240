"""The shapes of the tiny models and their Hugging Face configurations. Pure data: no torch."""

from dataclasses import dataclass
from typing import Any, Literal, get_args

TinyKind = Literal["v3", "v32", "glm52"]
"""``v3``: DeepSeek V3, dense MLA with experts. ``v32``: V3.2, the same with an indexer in every layer (DSA).
``glm52``: GLM 5.2, DSA in which only some layers have an indexer and the others share its selection."""

TinyDtype = Literal["float32", "bfloat16"]

VOCABULARY_SIZE = 512
HIDDEN_SIZE = 256
NUM_HEADS = 8
Q_LORA_RANK = 256
KV_LORA_RANK = 512
NOPE_HEAD_DIM = 128
ROPE_HEAD_DIM = 64
V_HEAD_DIM = 128
MLP_SIZE = 512
EXPERT_SIZE = 128
NUM_EXPERTS = 4
NUM_DENSE_LAYERS = 1
"""Layers at the start with a plain MLP instead of experts."""
INDEX_NUM_HEADS = 8
INDEX_HEAD_DIM = 128
INDEX_TOPK = 64
"""Tokens a DSA layer attends to: few, so that short prompts already exercise the selection."""
INDEX_SHARING_PERIOD = 4
INDEX_SHARING_OFFSET = 3

_ARCHITECTURES = {
    "v3": ("deepseek_v3", "DeepseekV3ForCausalLM"),
    "v32": ("deepseek_v32", "DeepseekV32ForCausalLM"),
    "glm52": ("glm_moe_dsa", "GlmMoeDsaForCausalLM"),
}
_DEFAULT_NUM_LAYERS = {"v3": 6, "v32": 6, "glm52": 8}


@dataclass(frozen=True, kw_only=True, slots=True)
class TinyArchitecture:
    """One tiny model. Raises ValueError for values that make no model."""

    kind: TinyKind
    num_layers: int
    num_mtp_layers: int
    dtype: TinyDtype

    def __post_init__(self) -> None:
        if self.dtype not in get_args(TinyDtype):
            raise ValueError(f"dtype must be one of {get_args(TinyDtype)}, not {self.dtype!r}")
        if self.num_layers < 1 or self.num_mtp_layers < 0:
            raise ValueError(f"{self.num_layers} layers and {self.num_mtp_layers} MTP layers make no model")

    @classmethod
    def of_kind(
        cls, kind: TinyKind, *, num_layers: int | None, num_mtp_layers: int, dtype: TinyDtype
    ) -> "TinyArchitecture":
        """The model of a kind. By default it has enough layers for each kind of layer to occur twice."""
        if kind not in get_args(TinyKind):
            raise ValueError(f"kind must be one of {get_args(TinyKind)}, not {kind!r}")
        return cls(
            kind=kind,
            num_layers=_DEFAULT_NUM_LAYERS[kind] if num_layers is None else num_layers,
            num_mtp_layers=num_mtp_layers,
            dtype=dtype,
        )

    def has_indexer(self, layer: int) -> bool:
        """Whether a layer has an indexer of its own. MTP layers (from ``num_layers`` on) of DSA models do."""
        if self.kind == "v3":
            return False
        if self.kind == "v32" or layer >= self.num_layers:
            return True
        return max(layer - INDEX_SHARING_OFFSET + 1, 0) % INDEX_SHARING_PERIOD == 0

    def has_experts(self, layer: int) -> bool:
        return layer >= NUM_DENSE_LAYERS

    def hf_config(self) -> dict[str, Any]:
        """The contents of ``config.json``."""
        model_type, architecture = _ARCHITECTURES[self.kind]
        config = _base_config() | {
            "model_type": model_type,
            "architectures": [architecture],
            "num_hidden_layers": self.num_layers,
            "num_nextn_predict_layers": self.num_mtp_layers,
            "torch_dtype": self.dtype,
        }
        if self.kind != "v3":
            config |= {
                "index_n_heads": INDEX_NUM_HEADS,
                "index_head_dim": INDEX_HEAD_DIM,
                "index_topk": INDEX_TOPK,
            }
        if self.kind == "glm52":
            config |= {
                "index_topk_freq": INDEX_SHARING_PERIOD,
                "index_skip_topk_offset": INDEX_SHARING_OFFSET,
            }
        return config


def _base_config() -> dict[str, Any]:
    return {
        "vocab_size": VOCABULARY_SIZE,
        "hidden_size": HIDDEN_SIZE,
        "intermediate_size": MLP_SIZE,
        "moe_intermediate_size": EXPERT_SIZE,
        "num_attention_heads": NUM_HEADS,
        "num_key_value_heads": NUM_HEADS,
        "q_lora_rank": Q_LORA_RANK,
        "kv_lora_rank": KV_LORA_RANK,
        "qk_nope_head_dim": NOPE_HEAD_DIM,
        "qk_rope_head_dim": ROPE_HEAD_DIM,
        "v_head_dim": V_HEAD_DIM,
        "n_routed_experts": NUM_EXPERTS,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "first_k_dense_replace": NUM_DENSE_LAYERS,
        "moe_layer_freq": 1,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "norm_topk_prob": True,
        "n_group": 1,
        "topk_group": 1,
        "routed_scaling_factor": 1.0,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "attention_bias": False,
        "tie_word_embeddings": False,
        "max_position_embeddings": 8192,
        "rope_theta": 10000.0,
        # As real DeepSeek models. It also avoids plain rope, which vLLM's CPU kernel gets wrong for MLA.
        "rope_scaling": {
            "type": "yarn",
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 2048,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "beta_fast": 32,
            "beta_slow": 1,
        },
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 2,
        "initializer_range": 0.02,
    }
