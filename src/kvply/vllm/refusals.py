"""What KVPP refuses when the engine is configured: each check gives the reason and what to change."""

from collections.abc import Callable

from vllm.config import CompilationMode, CUDAGraphMode, VllmConfig
from vllm.distributed.utils import get_pp_indices

from kvply.errors import UnsupportedError
from kvply.planner.model_facts import shares_indexer
from kvply.vllm.contract import ARCHITECTURES

Check = Callable[[VllmConfig], str | None]

# Connectors that know about owner shards. A connector that believes every rank holds every layer would save
# scratch bytes and load wrong ones.
KVPP_SAFE_CONNECTORS: frozenset[str] = frozenset()


def refuse_unsupported(config: VllmConfig) -> None:
    """Raise UnsupportedError with reason and remedy if KVPP cannot run with this configuration."""
    for check in CHECKS:
        reason = check(config)
        if reason is not None:
            raise UnsupportedError(f"enable_kvpp is not supported here: {reason}")


def _graphs(config: VllmConfig) -> str | None:
    compilation = config.compilation_config
    eager = config.model_config.enforce_eager
    if eager and compilation.mode == CompilationMode.NONE and _no_graphs(compilation.cudagraph_mode):
        return None
    return "layers wait for their cache in eager mode only; add --enforce-eager (and no compilation mode)"


def _no_graphs(mode: CUDAGraphMode | None) -> bool:
    return mode is None or mode == CUDAGraphMode.NONE


def _dcp(config: VllmConfig) -> str | None:
    size = config.parallel_config.decode_context_parallel_size
    if size == 1:
        return None
    return (
        f"decode context parallelism ({size}) already splits the cache over ranks, so there are no copies to "
        f"share; remove --decode-context-parallel-size or enable_kvpp"
    )


def _pcp_on_v1(config: VllmConfig) -> str | None:
    if config.parallel_config.prefill_context_parallel_size == 1 or config.use_v2_model_runner:
        return None
    return (
        "prefill context parallelism needs Model Runner V2; set VLLM_USE_V2_MODEL_RUNNER=1 or remove "
        "--prefill-context-parallel-size"
    )


def _hybrid(config: VllmConfig) -> str | None:
    if not config.model_config.is_hybrid:
        return None
    return "hybrid models keep recurrent state beside the KV cache, which has no owner; remove enable_kvpp"


def _not_replicated(config: VllmConfig) -> str | None:
    if config.model_config.use_mla:
        return None
    return (
        "this model's KV cache is split over tensor-parallel ranks by heads (no MLA, or MLA is disabled by "
        "VLLM_MLA_DISABLE), so there are no copies to share; remove enable_kvpp"
    )


def _architecture(config: VllmConfig) -> str | None:
    architecture = config.model_config.architecture
    if architecture in ARCHITECTURES:
        return None
    return (
        f"KVPP does not know where {architecture} first touches its cache; remove enable_kvpp (known: "
        f"{', '.join(ARCHITECTURES)})"
    )


def _pipeline_split(config: VllmConfig) -> str | None:
    """A stage must not start on a layer that uses the top-k of a layer on the stage before."""
    num_stages = config.parallel_config.pipeline_parallel_size
    facts = config.model_config.hf_text_config.to_dict()
    if num_stages == 1 or not facts.get("index_topk"):
        return None
    num_layers = config.model_config.get_total_num_hidden_layers()
    full = [layer for layer in range(num_layers) if not shares_indexer(facts, layer)]
    for stage in range(1, num_stages):
        first, _ = get_pp_indices(num_layers, stage, num_stages)
        if first in full:
            continue
        before = max((layer for layer in full if layer < first), default=0)
        after = min((layer for layer in full if layer > first), default=None)
        neighbours = f"layer {before}" + (f" or {after}" if after is not None else "")
        return (
            f"pipeline stage {stage} would start on layer {first}, which shares the index of layer {before} on "
            f"the stage before; start it on {neighbours} (set VLLM_PP_LAYER_PARTITION)"
        )
    return None


def _speculation(config: VllmConfig) -> str | None:
    speculative = config.speculative_config
    if speculative is None:
        return None
    if speculative.method != "mtp":
        return (
            f"speculation by {speculative.method!r} is not supported; use MTP with a fixed number of steps "
            f"or remove --speculative-config"
        )
    if speculative.num_speculative_tokens_per_batch_size:
        return (
            "speculation with a variable number of steps is not supported; remove "
            "num_speculative_tokens_per_batch_size"
        )
    return None


def _connector(config: VllmConfig) -> str | None:
    transfer = config.kv_transfer_config
    name = transfer.kv_connector if transfer is not None else None
    if name is None or name in KVPP_SAFE_CONNECTORS:
        return None
    known = ", ".join(sorted(KVPP_SAFE_CONNECTORS)) or "none yet"
    return (
        f"KV connector {name} does not know that a rank stores only the layers it owns; remove "
        f"--kv-transfer-config (connectors known to be safe: {known})"
    )


def _batch_overlap(config: VllmConfig) -> str | None:
    if not config.parallel_config.enable_dbo:
        return None
    return "dual-batch overlap runs two batches through the layers at once; remove --enable-dbo"


def _elastic(config: VllmConfig) -> str | None:
    if not config.parallel_config.enable_elastic_ep:
        return None
    return "elastic expert parallelism changes the group at run time; remove --enable-elastic-ep"


def _sleep(config: VllmConfig) -> str | None:
    if not config.model_config.enable_sleep_mode:
        return None
    return "sleep mode has not been verified with KVPP's memory; remove --enable-sleep-mode"


CHECKS: tuple[Check, ...] = (
    _hybrid,
    _not_replicated,
    _architecture,
    _graphs,
    _dcp,
    _pcp_on_v1,
    _pipeline_split,
    _speculation,
    _connector,
    _batch_overlap,
    _elastic,
    _sleep,
)
