"""The model: its configuration, its hand-seeded start and its deepening."""

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AttentionInterface, DeepseekV3Config, DeepseekV3ForCausalLM

from kvply.testing.recall import vocabulary as words

LATENT_RANK = 512
ROPE_DIM = 64
NOPE_DIM = 32
VALUE_DIM = 32
HEADS = 4
SEED_LAYERS = 3
SOFTENING = 0.55
"""Brings answers that are all but certain (0.999) down to about 0.9, where log probabilities respond."""
ATTENTION = "causal_cpu"


def causal_attention(
    _module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    _attention_mask: Tensor | None,
    scaling: float | None = None,
    **_options: object,
) -> tuple[Tensor, None]:
    """Attend causally; values are padded to the key width, which torch's fused CPU kernel requires.

    Fewer queries than keys are the last positions of a sequence whose history is cached.
    """
    width = value.shape[-1]
    padded = functional.pad(value, (0, query.shape[-1] - width))
    query, key = query.to(value.dtype), key.to(value.dtype)
    queries, keys = query.shape[-2], key.shape[-2]
    mask = None if queries == keys else torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
    out = functional.scaled_dot_product_attention(
        query, key, padded, attn_mask=mask, is_causal=mask is None, scale=scaling
    )
    return out[..., :width].transpose(1, 2), None


AttentionInterface.register(ATTENTION, causal_attention)


def build_config(layers: int) -> DeepseekV3Config:
    """Return the configuration of an all-dense model with ``layers`` layers.

    Yarn rope because vLLM for CPU rotates MLA's 3-D tensors wrongly with plain rope (0.32).
    """
    return DeepseekV3Config(
        vocab_size=words.VOCABULARY_SIZE,
        hidden_size=128,
        intermediate_size=256,
        moe_intermediate_size=64,
        num_hidden_layers=layers,
        first_k_dense_replace=layers,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        n_shared_experts=1,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_group=1,
        topk_group=1,
        kv_lora_rank=LATENT_RANK,
        q_lora_rank=None,
        qk_rope_head_dim=ROPE_DIM,
        qk_nope_head_dim=NOPE_DIM,
        v_head_dim=VALUE_DIM,
        max_position_embeddings=8192,
        initializer_range=0.06,
        tie_word_embeddings=False,
        bos_token_id=words.BOS,
        eos_token_id=words.EOS,
        num_nextn_predict_layers=0,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 2048,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "beta_fast": 32,
            "beta_slow": 1,
        },
        attn_implementation=ATTENTION,
    )


def load(path: str) -> DeepseekV3ForCausalLM:
    """Load a checkpoint for training: float32 master weights."""
    return DeepseekV3ForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation=ATTENTION)


@torch.no_grad()
def widen_vocabulary(model: DeepseekV3ForCausalLM) -> DeepseekV3ForCausalLM:
    """Replace the filler of a model with a smaller vocabulary by byte tokens.

    New rows repeat old filler rows plus noise: all that a layer must know of filler is that it is filler.
    """
    old_size = model.config.vocab_size
    wide = DeepseekV3ForCausalLM(build_config(model.config.num_hidden_layers))
    state = model.state_dict()
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        old = state[name]
        filler = old[words.FIRST_BYTE :]
        count = words.VOCABULARY_SIZE - old_size
        picked = filler[torch.arange(count) % len(filler)]
        noise = torch.randn_like(picked) * filler.std(dim=0, keepdim=True)
        state[name] = torch.cat([old, 0.7 * picked + 0.3 * filler.mean(dim=0) + 0.6 * noise])
    wide.load_state_dict(state)
    return wide


@torch.no_grad()
def deepen(model: DeepseekV3ForCausalLM, copies: tuple[int, ...], noise: float) -> DeepseekV3ForCausalLM:
    """Split layer ``i`` into ``copies[i]`` layers that each write ``1 / copies[i]`` of its output.

    The sum keeps roughly the function, so that little training restores it, and no copy is near zero:
    each reads the history on its own. ``noise`` (relative) makes the copies differ.
    """
    sources = [layer for layer, count in enumerate(copies) for _ in range(count)]
    deep = DeepseekV3ForCausalLM(build_config(len(sources)))
    deep.model.embed_tokens.load_state_dict(model.model.embed_tokens.state_dict())
    deep.model.norm.load_state_dict(model.model.norm.state_dict())
    deep.lm_head.load_state_dict(model.lm_head.state_dict())
    for layer, source in zip(deep.model.layers, sources, strict=True):
        layer.load_state_dict(model.model.layers[source].state_dict())
        for weight in layer.parameters():
            weight.mul_(1 + noise * torch.randn_like(weight))
        layer.self_attn.o_proj.weight.div_(copies[source])
        layer.mlp.down_proj.weight.div_(copies[source])
    deep.model.norm.weight.mul_(SOFTENING)
    return deep
