"""Switching the platform on and off, and what it makes of a configuration."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from vllm.config import ModelConfig, VllmConfig
from vllm.v1.attention.backends.registry import AttentionBackendEnum

from kvply.testing.tiny_models import write_checkpoint
from kvply.vllm import cpu_reference
from kvply.vllm.cpu_reference import backends
from kvply.vllm.cpu_reference.reference_platform import CpuReferencePlatform


@pytest.mark.parametrize("text", ["1", "true", "True", " TRUE "])
def test_on(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("KVPLY_CPU_REFERENCE", text)

    name = cpu_reference.platform()

    assert name == f"{CpuReferencePlatform.__module__}.{CpuReferencePlatform.__qualname__}"


@pytest.mark.parametrize("text", [None, "", "0", "false", "off"])
def test_off(monkeypatch: pytest.MonkeyPatch, text: str | None) -> None:
    if text is None:
        monkeypatch.delenv("KVPLY_CPU_REFERENCE", raising=False)
    else:
        monkeypatch.setenv("KVPLY_CPU_REFERENCE", text)

    assert cpu_reference.platform() is None


def run_python(code: str, *arguments: str, **environment: str) -> str:
    """Run code in a fresh interpreter that finds this kvply, and return what it printed last."""
    source = Path(cpu_reference.__file__).parents[3]
    path = os.pathsep.join([str(source), environment.pop("PYTHONPATH", "")])
    completed = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=os.environ | {"PYTHONPATH": path, "VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1"} | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert completed.returncode == 0, completed.stderr
    return completed.stdout.strip().splitlines()[-1]


@pytest.mark.parametrize("value", ["0", "1"])
def test_importing_and_asking_does_not_import_vllm(value: str) -> None:
    code = (
        "import sys; from kvply.vllm import cpu_reference; cpu_reference.platform();"
        "print('vllm' in sys.modules, 'torch' in sys.modules)"
    )
    assert run_python(code, KVPLY_CPU_REFERENCE=value) == "False False"


def test_registering_when_off_does_not_import_vllm() -> None:
    code = (
        "import sys; from kvply.vllm import cpu_reference; cpu_reference.register(); print('vllm' in sys.modules)"
    )
    assert run_python(code, KVPLY_CPU_REFERENCE="0") == "False"


@pytest.mark.parametrize("selected", [None, AttentionBackendEnum.TRITON_MLA])
def test_mla_models_get_the_reference_backends(selected: AttentionBackendEnum | None) -> None:
    def choose(**settings: bool) -> str:
        selector = SimpleNamespace(**({"use_mla": True, "use_sparse": False} | settings))
        return CpuReferencePlatform.get_attn_backend_cls(selected, selector)

    prefix = f"{backends.__name__}."
    assert choose() == prefix + backends.DenseMLABackend.__qualname__
    assert choose(use_sparse=True) == prefix + backends.SparseMLABackend.__qualname__
    assert choose(use_mla=False) == AttentionBackendEnum.CPU_ATTN.get_path()


def test_a_stock_backend_named_by_the_user_is_used() -> None:
    selector = SimpleNamespace(use_mla=True, use_sparse=False)

    chosen = CpuReferencePlatform.get_attn_backend_cls(AttentionBackendEnum.CPU_MLA, selector)

    assert chosen == AttentionBackendEnum.CPU_MLA.get_path()


def test_vllm_loads_the_platform_through_the_entry_point(tmp_path: Path) -> None:
    metadata = tmp_path / "kvply_cpu_reference_entry_point-0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: kvply-cpu-reference-entry-point\nVersion: 0\n")
    (metadata / "entry_points.txt").write_text(
        "[vllm.platform_plugins]\nkvply_cpu_reference = kvply.vllm.cpu_reference:platform\n"
    )
    # vllm.config loads the platform while it is itself being imported.
    code = (
        "import vllm.config; from vllm.platforms import current_platform;"
        "print(type(current_platform).__name__, current_platform.is_cpu())"
    )

    printed = run_python(code, PYTHONPATH=str(tmp_path), KVPLY_CPU_REFERENCE="1")

    assert printed == "CpuReferencePlatform True"


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> VllmConfig:
    """The configuration of an MLA model as it is when vLLM asks its platform for adjustments."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    config = VllmConfig()
    config.model_config = ModelConfig(
        model=str(write_checkpoint(tmp_path, "v3", num_layers=1)),
        skip_tokenizer_init=True,
        max_model_len=1024,
        enforce_eager=True,
    )
    config.scheduler_config.enable_chunked_prefill = True
    config.scheduler_config.async_scheduling = True
    config.scheduler_config.max_num_batched_tokens = 256
    config.cache_config.enable_prefix_caching = True
    return config


def test_what_vllm_resolved_is_kept(config: VllmConfig) -> None:
    CpuReferencePlatform.check_and_update_config(config)

    assert config.cache_config.block_size == 64
    assert config.cache_config.enable_prefix_caching
    assert config.scheduler_config.enable_chunked_prefill
    assert config.scheduler_config.async_scheduling
    assert config.scheduler_config.max_num_batched_tokens == 256


def test_what_the_user_turned_off_stays_off(config: VllmConfig) -> None:
    config.cache_config.block_size = 24
    config.cache_config.user_specified_block_size = True
    config.cache_config.enable_prefix_caching = False
    config.scheduler_config.async_scheduling = False

    CpuReferencePlatform.check_and_update_config(config)

    assert config.cache_config.block_size == 24
    assert not config.cache_config.enable_prefix_caching
    assert not config.scheduler_config.async_scheduling


def test_a_stock_backend_gets_vllms_own_settings(config: VllmConfig) -> None:
    config.attention_config.backend = AttentionBackendEnum.CPU_MLA

    CpuReferencePlatform.check_and_update_config(config)

    assert config.cache_config.block_size == 16
    assert not config.cache_config.enable_prefix_caching
    assert not config.scheduler_config.async_scheduling


def test_a_model_without_mla_gets_vllms_own_settings(config: VllmConfig) -> None:
    config.model_config = None

    CpuReferencePlatform.check_and_update_config(config)

    assert config.cache_config.block_size == 128
    assert not config.scheduler_config.async_scheduling
