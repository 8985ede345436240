# mypy: disallow-subclassing-any=False
"""The platform class that vLLM loads when ``KVPLY_CPU_REFERENCE=1``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vllm.logger import init_logger
from vllm.platforms.cpu import CpuPlatform
from vllm.v1.attention.backends.registry import AttentionBackendEnum

if TYPE_CHECKING:  # vllm.config loads the platform while it is itself being imported
    from vllm.config import VllmConfig
    from vllm.v1.attention.selector import AttentionSelectorConfig

logger = init_logger(f"vllm.{__name__}")  # below vLLM's logger, the only one it configures

DEFAULT_BLOCK_SIZE = 64
STOCK_MLA_BACKENDS = (AttentionBackendEnum.CPU_MLA, AttentionBackendEnum.AMX_MLA)
DENSE_BACKEND = "kvply.vllm.cpu_reference.backends.DenseMLABackend"
SPARSE_BACKEND = "kvply.vllm.cpu_reference.backends.SparseMLABackend"


class CpuReferencePlatform(CpuPlatform):
    """vLLM's CPU platform with kvply's MLA backends; models without MLA are left entirely to vLLM.

    Stays ``PlatformEnum.CPU``, so everything else in vLLM takes its usual CPU path.
    """

    @classmethod
    def get_attn_backend_cls(
        cls,
        selected_backend: AttentionBackendEnum | None,
        attn_selector_config: AttentionSelectorConfig,
        num_heads: int | None = None,
    ) -> str:
        if not attn_selector_config.use_mla or selected_backend in STOCK_MLA_BACKENDS:
            stock: str = super().get_attn_backend_cls(selected_backend, attn_selector_config, num_heads)
            return stock
        return SPARSE_BACKEND if attn_selector_config.use_sparse else DENSE_BACKEND

    @classmethod
    def check_and_update_config(cls, vllm_config: VllmConfig) -> None:
        """Let vLLM's CPU platform adjust the configuration, then undo what only its MLA backends need."""
        resolved = _ResolvedSettings.of(vllm_config)
        super().check_and_update_config(vllm_config)
        if _uses_reference_backend(vllm_config):
            resolved.restore(vllm_config)
            logger.info_once(
                "CPU reference platform: block size %s, chunked prefill %s, prefix caching %s, "
                "async scheduling %s (this overrides what the CPU platform said above).",
                vllm_config.cache_config.block_size,
                resolved.enable_chunked_prefill,
                resolved.enable_prefix_caching,
                resolved.async_scheduling,
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class _ResolvedSettings:
    """The settings that stock CPU MLA overrides, as vLLM resolved them from the user's arguments."""

    enable_chunked_prefill: bool
    enable_prefix_caching: bool
    max_num_batched_tokens: int
    async_scheduling: bool | None
    block_size: int

    @classmethod
    def of(cls, vllm_config: VllmConfig) -> _ResolvedSettings:
        scheduler, cache = vllm_config.scheduler_config, vllm_config.cache_config
        return cls(
            enable_chunked_prefill=scheduler.enable_chunked_prefill,
            enable_prefix_caching=cache.enable_prefix_caching,
            max_num_batched_tokens=scheduler.max_num_batched_tokens,
            async_scheduling=scheduler.async_scheduling,
            block_size=cache.block_size if cache.user_specified_block_size else DEFAULT_BLOCK_SIZE,
        )

    def restore(self, vllm_config: VllmConfig) -> None:
        scheduler, cache = vllm_config.scheduler_config, vllm_config.cache_config
        scheduler.enable_chunked_prefill = self.enable_chunked_prefill
        scheduler.max_num_batched_tokens = self.max_num_batched_tokens
        scheduler.async_scheduling = self.async_scheduling
        cache.enable_prefix_caching = self.enable_prefix_caching
        cache.block_size = self.block_size


def _uses_reference_backend(vllm_config: VllmConfig) -> bool:
    model_config = vllm_config.model_config
    if model_config is None or not model_config.use_mla:
        return False
    if model_config.hf_config.model_type == "deepseek_v4":  # has CPU backends of its own in vLLM
        return False
    return vllm_config.attention_config.backend not in STOCK_MLA_BACKENDS
