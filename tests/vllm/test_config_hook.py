"""Refusals and the worker swap, on real vLLM configs.

vLLM validates its config with pydantic, which hands our ConfigError on inside its own ValueError.
"""

import logging
from collections.abc import Callable
from typing import Any

import pytest

from kvply.errors import UnsupportedError
from kvply.vllm import config_hook
from kvply.vllm.contract import ARCHITECTURES
from kvply.vllm.refusals import refuse_unsupported
from support.vllm_configs import GLM52, GQA, HYBRID, MLA, MakeConfig

ON = {"enable_kvpp": True}
STOCK = "vllm.v1.worker.cpu_worker.CPUWorker"
OURS = "kvply.vllm.worker.cpu.KvppCPUWorker"


def test_the_worker_is_swapped_when_enabled(make_config: MakeConfig) -> None:
    assert make_config(additional_config={"enable_kvpp": "TRUE"}).parallel_config.worker_cls == OURS


@pytest.mark.parametrize("additional", [{}, {"enable_kvpp": False}, {"someone_elses_key": 1}])
def test_stock_vllm_when_not_enabled(make_config: MakeConfig, additional: dict[str, Any]) -> None:
    assert make_config(additional_config=additional).parallel_config.worker_cls == STOCK


def test_the_hook_runs_once_per_config_however_often_installed(make_config: MakeConfig) -> None:
    config_hook.install()
    config_hook.install()
    config = make_config(additional_config=ON)
    config_hook.enable_if_configured(config)
    assert config.parallel_config.worker_cls == OURS


def test_one_rank_gets_a_warning_and_stock_vllm(make_config: MakeConfig, caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("vllm.kvply.kvpp")
    logger.addHandler(caplog.handler)
    try:
        config = make_config(additional_config=ON, tensor_parallel_size=1)
    finally:
        logger.removeHandler(caplog.handler)
    assert config.parallel_config.worker_cls == STOCK
    assert "only one copy of the cache" in caplog.text


@pytest.mark.parametrize(
    ("model", "arguments", "reason", "remedy"),
    [
        pytest.param(MLA, {"enforce_eager": False}, "eager mode only", "--enforce-eager", id="graphs"),
        pytest.param(
            MLA,
            {"decode_context_parallel_size": 2},
            "decode context parallelism",
            "--decode-context-parallel-size",
            id="dcp",
        ),
        pytest.param(GQA, {}, "split over tensor-parallel ranks by heads", "remove enable_kvpp", id="gqa"),
        pytest.param(HYBRID, {}, "recurrent state", "remove enable_kvpp", id="hybrid"),
        pytest.param(
            MLA,
            {"kv_transfer_config": {"kv_connector": "ExampleConnector", "kv_role": "kv_both"}},
            "KV connector ExampleConnector",
            "--kv-transfer-config",
            id="connector",
        ),
        pytest.param(
            MLA,
            {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 2}},
            "speculation by 'ngram'",
            "MTP with a fixed number",
            id="speculation",
        ),
        pytest.param(
            GLM52,
            {"pipeline_parallel_size": 2, "tensor_parallel_size": 2},
            "stage 1 would start on layer 4, which shares the index of layer 2",
            "start it on layer 2 or 6",
            id="pipeline split",
        ),
        pytest.param(
            MLA,
            {
                "speculative_config": {
                    "method": "mtp",
                    "num_speculative_tokens": 2,
                    "num_speculative_tokens_per_batch_size": [(1, 4, 2), (5, 8, 1)],
                }
            },
            "variable number of steps",
            "num_speculative_tokens_per_batch_size",
            id="variable-step speculation",
        ),
        pytest.param(MLA, {"worker_cls": "my.Worker"}, "worker class my.Worker", "--worker-cls", id="worker"),
    ],
)
def test_refusals_give_reason_and_remedy(
    make_config: MakeConfig,
    model: dict[str, Any],
    arguments: dict[str, Any],
    reason: str,
    remedy: str,
    request: pytest.FixtureRequest,
    record_property: Callable[[str, object], None],
) -> None:
    from vllm.config import KVTransferConfig

    if "kv_transfer_config" in arguments:
        arguments = {**arguments, "kv_transfer_config": KVTransferConfig(**arguments["kv_transfer_config"])}
    with pytest.raises(ValueError, match=reason) as refusal:
        make_config(model, additional_config=ON, **arguments)
    assert remedy in str(refusal.value)
    record_property("refused", request.node.callspec.id)
    record_property("message", str(refusal.value).split("Value error, ")[-1].split(" [type=")[0])


@pytest.mark.parametrize(
    ("additional", "message"),
    [
        ({"enable_kvpp": "maybe"}, "enable_kvpp must be true or false"),
        ({**ON, "kvpp_payload": "half"}, "kvpp_payload must be one of auto, full, active"),
        ({**ON, "kvpp_timeout_s": -1}, "kvpp_timeout_s must be a positive number"),
        ({**ON, "kvpp_payloud": "full"}, "did you mean 'kvpp_payload'"),
    ],
)
def test_malformed_keys_are_refused(make_config: MakeConfig, additional: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_config(additional_config=additional)


def test_pcp_needs_the_second_model_runner(
    make_config: MakeConfig, record_property: Callable[[str, object], None]
) -> None:
    config = make_config()
    config.parallel_config.prefill_context_parallel_size = 2
    with pytest.raises(UnsupportedError, match="VLLM_USE_V2_MODEL_RUNNER=1") as refusal:
        refuse_unsupported(config)
    record_property("refused", "pcp on Model Runner V1")
    record_property("message", str(refusal.value))


def test_an_unknown_architecture_is_refused(make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_config()
    monkeypatch.delitem(ARCHITECTURES, "DeepseekV3ForCausalLM")
    with pytest.raises(UnsupportedError, match="does not know where DeepseekV3ForCausalLM first touches its cache"):
        refuse_unsupported(config)


@pytest.mark.parametrize("split", ["2,6", "6,2"])
def test_a_pipeline_split_on_a_full_layer_is_fine(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch, split: str
) -> None:
    monkeypatch.setenv("VLLM_PP_LAYER_PARTITION", split)
    config = make_config(GLM52, additional_config=ON, pipeline_parallel_size=2)
    assert config.parallel_config.worker_cls == OURS


@pytest.mark.parametrize(
    ("part", "name", "flag"),
    [
        ("parallel_config", "enable_dbo", "--enable-dbo"),
        ("parallel_config", "enable_elastic_ep", "--enable-elastic-ep"),
        ("model_config", "enable_sleep_mode", "--enable-sleep-mode"),
    ],
)
def test_what_cpu_does_not_offer_is_refused_elsewhere(
    make_config: MakeConfig,
    part: str,
    name: str,
    flag: str,
    record_property: Callable[[str, object], None],
) -> None:
    config = make_config()
    setattr(getattr(config, part), name, True)
    with pytest.raises(UnsupportedError, match=f"remove {flag}") as refusal:
        refuse_unsupported(config)
    record_property("refused", name)
    record_property("message", str(refusal.value))
