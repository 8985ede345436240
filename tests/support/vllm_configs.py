"""Tiny model configs: what `config.json` says, without weights."""

from collections.abc import Callable
from typing import Any

from kvply.testing.tiny_models.architecture import TinyArchitecture

MLA = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "first_k_dense_replace": 8,
    "hidden_size": 128,
    "intermediate_size": 256,
    "kv_lora_rank": 512,
    "q_lora_rank": None,
    "max_position_embeddings": 4096,
    "moe_intermediate_size": 64,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "num_hidden_layers": 8,
    "num_nextn_predict_layers": 1,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 64,
    "v_head_dim": 32,
    "vocab_size": 512,
    "torch_dtype": "bfloat16",
}
GQA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "vocab_size": 512,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}
HYBRID = {
    "architectures": ["JambaForCausalLM"],
    "model_type": "jamba",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "num_hidden_layers": 4,
    "attn_layer_period": 2,
    "attn_layer_offset": 1,
    "expert_layer_period": 2,
    "expert_layer_offset": 1,
    "num_experts": 2,
    "mamba_d_state": 16,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_dt_rank": 8,
    "vocab_size": 512,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}

GLM52 = TinyArchitecture(kind="glm52", num_layers=8, num_mtp_layers=0, dtype="float32").hf_config()

MakeConfig = Callable[..., Any]
