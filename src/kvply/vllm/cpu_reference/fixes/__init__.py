"""Workarounds for defects of vLLM 0.32.0's CPU code, one small file each.

Each file names its target, what is wrong, how to see it and when it can be deleted, and offers an
idempotent ``apply()``. They are applied only while the reference platform is on. For each there is a test
that fails once the installed vLLM no longer has the defect.
"""

from kvply.vllm.cpu_reference.fixes import expert_map, pipeline_buffers, plain_rope

FIXES = (plain_rope, expert_map, pipeline_buffers)


def apply_all() -> None:
    """Apply every fix in this process. Idempotent; imports vLLM."""
    for fix in FIXES:
        fix.apply()
