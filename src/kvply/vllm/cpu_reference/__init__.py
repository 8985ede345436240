"""The CPU reference platform: every supported MLA model on any CPU, in plain torch.

It exists for verification and for trying models on a laptop, not for speed. Stock vLLM on CPU has no sparse
MLA (DSA) attention, and on CPUs without AMX it turns chunked prefill and prefix caching off for MLA models.
This platform fills those gaps, so that what kvply does to a cache can be checked without an accelerator.

It is opt-in. With ``KVPLY_CPU_REFERENCE=1`` in the environment of every vLLM process:

* MLA models use the backends ``KVPLY_CPU_MLA`` and ``KVPLY_CPU_MLA_SPARSE``: any block size, head size and
  floating dtype, any cache strides. ``attention_config.backend`` (``--attention-backend``) still selects a
  stock backend (``CPU_MLA``, ``AMX_MLA``) by name.
* The block size is 64 unless the user gives one; chunked prefill, prefix caching, async scheduling and
  ``max_num_batched_tokens`` stay as vLLM's configuration resolved them.
* Known defects of vLLM's CPU code are worked around (:mod:`kvply.vllm.cpu_reference.fixes`).

Without the variable both entry points below do nothing. Importing this package does not import vLLM.
vLLM ignores platform plugins altogether when ``VLLM_TARGET_DEVICE=cpu`` is set.
"""

import os

ENABLE_VARIABLE = "KVPLY_CPU_REFERENCE"


def is_enabled() -> bool:
    """Whether the environment of this process asks for the reference platform."""
    return os.environ.get(ENABLE_VARIABLE, "").strip().lower() in ("1", "true")


def platform() -> str | None:
    """Entry point ``vllm.platform_plugins``: the qualified name of the platform class, or None when off."""
    if not is_enabled():
        return None
    return "kvply.vllm.cpu_reference.reference_platform.CpuReferencePlatform"


def register() -> None:
    """Install the indexer and the fixes in this process; call it from a ``vllm.general_plugins`` entry point.

    Does nothing when the platform is off. Idempotent. vLLM calls general plugins in the front end, in the
    engine core and in every worker, always before it builds a model.
    """
    if not is_enabled():
        return
    from kvply.vllm.cpu_reference import fixes, indexer

    fixes.apply_all()
    indexer.install()
