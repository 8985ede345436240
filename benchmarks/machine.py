"""What a reader has to know about the machine to make sense of a number."""

import os
import platform
from pathlib import Path

import numpy as np
import torch


def describe() -> str:
    """CPU model, cores, load and versions, one line each."""
    return "\n".join(
        [
            f"cpu: {_cpu_model()}, {os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f} at start",
            f"python {platform.python_version()}, torch {torch.__version__}, numpy {np.__version__}, "
            f"{platform.system()} {platform.release()}",
        ]
    )


def shared_huge_pages() -> str:
    """The kernel's setting: with `never` copies between ranks run over 4 KiB pages."""
    setting = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
    if not setting.exists():
        return "not known to this kernel"
    return setting.read_text(encoding="ascii").partition("[")[2].partition("]")[0]


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
