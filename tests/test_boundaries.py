"""The shape of the code base: who imports whom, who may import vLLM, where tests lie, how long files get."""

import ast
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import kvply

TESTS = Path(__file__).parent
PACKAGE = Path(kvply.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))

MAX_LINES = 400
TIERS = ("unit", "property", "dist", "vllm", "e2e")

# A part may import itself and parts of a lower level. Leaves may import anything, and only leaves import leaves.
LEAF = 9
LEVELS = {
    "errors": 0,
    "config": 1,
    "layout": 2,
    "observe": 3,
    "kvpp": 4,
    "pool": 4,
    "disagg": 4,
    "planner": 5,  # estimates with the very plan that KVPP runs
    "vllm": 6,
    "plugin": LEAF,
    "cli": LEAF,
    "doctor": LEAF,
    "demo": LEAF,
    "testing": LEAF,
}
# Modules that need vLLM but belong to a leaf, which runs them in a process of their own.
LEAF_PROGRAMS = ("kvply.vllm.demo_engine",)

IMPORT_ALL = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
    if "vllm" in sys.modules:
        sys.exit(f"importing {name} brought vllm along")
"""


def module_name(file: Path) -> str:
    parts = file.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def part_of(module: str) -> str:
    """`kvpp` for kvply.kvpp.plan; empty for kvply itself."""
    return module.partition(".")[2].partition(".")[0]


def imports_of(file: Path, module: str) -> Iterator[str]:
    """Absolute names of all modules and names imported anywhere in the file, also inside functions."""
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            yield from (f"{base}.{alias.name}" for alias in node.names)


def is_of(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def files_of(*tiers: str) -> list[Path]:
    return sorted(file for tier in tiers for file in (TESTS / tier).rglob("*.py"))


def short(file: Path) -> str:
    return str(file.relative_to(PACKAGE if file.is_relative_to(PACKAGE) else TESTS))


def test_no_module_outside_the_vllm_package_brings_vllm_along() -> None:
    names = [module_name(file) for file in FILES if file.name != "__main__.py"]
    outside = [name for name in names if part_of(name) != "vllm"]
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, *outside],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("file", FILES, ids=short)
def test_file_is_short(file: Path) -> None:
    assert len(file.read_text(encoding="utf-8").splitlines()) <= MAX_LINES


@pytest.mark.parametrize("file", FILES, ids=short)
def test_imports_point_downwards(file: Path) -> None:
    module = module_name(file)
    own = part_of(module)
    assert own == "" or own in LEVELS, f"give kvply.{own} a level in LEVELS"
    level = LEAF if module in LEAF_PROGRAMS else LEVELS.get(own, -1)
    for name in imports_of(file, module):
        if is_of(name, "vllm"):
            assert own == "vllm", f"{module} imports {name}; only kvply.vllm may"
        assert name not in LEAF_PROGRAMS, f"{module} must run {name} as a process, not import it"
        other = part_of(name) if is_of(name, "kvply") else ""
        if other in LEVELS and other != own:
            assert level == LEAF or LEVELS[other] < level, f"{module} must not import {name}"


def test_each_test_file_lies_in_a_tier() -> None:
    files = [file.relative_to(TESTS) for file in TESTS.rglob("test_*.py") if file != Path(__file__)]
    assert [str(file) for file in files if file.parts[0] not in TIERS] == []


@pytest.mark.parametrize("file", files_of("unit", "property"), ids=short)
def test_quick_tiers_need_neither_vllm_nor_process_groups(file: Path) -> None:
    for name in imports_of(file, "tests"):
        assert not is_of(name, "vllm")
        assert not is_of(name, "kvply.vllm")
        assert not is_of(name, "torch.distributed")
