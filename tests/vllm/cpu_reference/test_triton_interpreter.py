"""The test-only Triton backend: there with ``TRITON_INTERPRET=1``, and as good as not installed without."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

DISTRIBUTION = Path(__file__).parents[2] / "triton_interpreter"

ADD_IN_THE_KERNEL_LANGUAGE = """
import torch, triton, triton.language as tl

@triton.jit
def add(x, y, out, size: tl.constexpr):
    offsets = tl.arange(0, size)
    tl.store(out + offsets, tl.load(x + offsets) + tl.load(y + offsets))

x, out = torch.arange(8.0), torch.empty(8)
add[(1,)](x, x, out, size=8)
print(torch.equal(out, 2 * x))
"""


@pytest.fixture
def entry_point(tmp_path: Path) -> str:
    """A path on which the distribution is installed, without installing it."""
    metadata = tmp_path / "kvply_triton_interpreter-0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: kvply-triton-interpreter\nVersion: 0\n")
    (metadata / "entry_points.txt").write_text("[triton.backends]\ncpu = kvply_triton_interpreter\n")
    return os.pathsep.join([str(DISTRIBUTION), str(tmp_path)])


def run_python(directory: Path, code: str, **environment: str) -> str:
    """Run a file (Triton reads the source of kernels) in a fresh interpreter; return what it printed last."""
    script = directory / "script.py"
    script.write_text(code)
    inherited = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    completed = subprocess.run(
        [sys.executable, str(script)], env=inherited | environment, capture_output=True, text=True, timeout=120
    )
    assert completed.returncode == 0, completed.stderr
    return completed.stdout.strip().splitlines()[-1]


def test_kernels_run_in_the_interpreter(tmp_path: Path, entry_point: str) -> None:
    printed = run_python(tmp_path, ADD_IN_THE_KERNEL_LANGUAGE, PYTHONPATH=entry_point, TRITON_INTERPRET="1")
    assert printed == "True"


def test_without_the_variable_there_is_no_triton(tmp_path: Path, entry_point: str) -> None:
    code = (
        "try:\n    import triton\nexcept ImportError:\n    pass\nelse:\n    raise SystemExit('triton is there')\n"
        "from torch.utils._triton import has_triton_package; print(has_triton_package())"
    )
    assert run_python(tmp_path, code, PYTHONPATH=entry_point) == "False"
