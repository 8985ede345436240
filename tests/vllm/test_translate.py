"""vLLM's specs and scheduler output become kvply's types; what is unknown is refused."""

import pytest
import torch
from vllm.v1.core.sched.output import CachedRequestData, NewRequestData, SchedulerOutput
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    UniformTypeKVCacheSpecs,
)

from kvply.errors import UnsupportedError
from kvply.kvpp.history import ScheduledRequest
from kvply.vllm import translate
from support.cache_specs import indexer_spec, main_spec


def test_components_of_a_layer_form_one_bundle_with_the_main_cache_first() -> None:
    specs: dict[str, KVCacheSpec] = {
        "model.layers.0.self_attn.indexer.k_cache": indexer_spec(),
        "model.layers.0.self_attn.attn": main_spec(),
        "model.layers.1.self_attn.attn": main_spec(),
    }
    plan = translate.stage_plan(specs, 2, 2, has_mtp=False)
    assert [bundle.pages for bundle in plan.bundles] == [(73728, 8448), (73728,)]
    assert plan.owners == (0, 1)


def test_two_attention_modules_of_one_layer_share_a_bundle() -> None:
    specs: dict[str, KVCacheSpec] = {
        f"model.layers.{layer}.self_attn.{module}.attn": main_spec() for layer in range(2) for module in range(2)
    }
    plan = translate.stage_plan(specs, 2, 2, has_mtp=False)
    assert [bundle.layer for bundle in plan.bundles] == [0, 1]
    assert all(len(bundle.components) == 2 for bundle in plan.bundles)


def test_layers_beyond_the_model_are_mtp_and_stay_local() -> None:
    specs: dict[str, KVCacheSpec] = {f"model.layers.{layer}.self_attn.attn": main_spec() for layer in range(3)}
    plan = translate.stage_plan(specs, 2, 2, has_mtp=True)
    assert [bundle.layer for bundle in plan.local_bundles] == [2]
    with pytest.raises(UnsupportedError, match="lie beyond the model's 2 layers"):
        translate.stage_plan(specs, 2, 2, has_mtp=False)


@pytest.mark.parametrize(
    "spec",
    [
        FullAttentionSpec(block_size=64, num_kv_heads=2, head_size=64, dtype=torch.bfloat16),
        main_spec(max_tp_shards=None),
        main_spec(max_tp_shards=2),
    ],
)
def test_caches_not_known_to_be_replicated_are_refused(spec: KVCacheSpec) -> None:
    with pytest.raises(UnsupportedError, match=r"model\.layers\.0\.attn has a"):
        translate.stage_plan({"model.layers.0.attn": spec}, 2, 1, has_mtp=False)


def test_a_name_without_layer_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="does not say which decoder layer"):
        translate.layer_index("encoder.attn")


def test_block_tables_of_their_own_are_refused() -> None:
    groups = [KVCacheGroupSpec([f"model.layers.{i}.attn"], main_spec()) for i in range(2)]
    with pytest.raises(UnsupportedError, match="2 KV cache groups"):
        translate.block_size_tokens(KVCacheConfig(1, [], groups))


def test_specs_inside_a_uniform_group_are_found_by_layer() -> None:
    specs: dict[str, KVCacheSpec] = {"model.layers.0.a": main_spec(), "model.layers.0.b": indexer_spec()}
    group = KVCacheGroupSpec(list(specs), UniformTypeKVCacheSpecs(block_size=64, kv_cache_specs=specs))
    found = translate.layer_specs(KVCacheConfig(1, [], [group]))
    assert {name: spec for name, (_, spec) in found.items()} == specs


def test_requests_of_a_step() -> None:
    output = SchedulerOutput.make_empty()
    output.scheduled_new_reqs = [new_request("a", [1, 2], num_computed_tokens=64)]
    output.scheduled_cached_reqs = CachedRequestData(
        req_ids=["b", "c", "d"],
        resumed_req_ids={"c"},
        new_token_ids=[],
        all_token_ids={},
        new_block_ids=[([7],), ([8, 9],), None],
        num_computed_tokens=[128, 0, 65],
        num_output_tokens=[1, 0, 1],
    )
    assert translate.scheduled_requests(output) == [
        ScheduledRequest("a", [1, 2], 64, replaces_blocks=True),
        ScheduledRequest("b", [7], 128, replaces_blocks=False),
        ScheduledRequest("c", [8, 9], 0, replaces_blocks=True),
        ScheduledRequest("d", (), 65, replaces_blocks=False),
    ]


def test_writes_before_the_forward_are_recognised() -> None:
    output = SchedulerOutput.make_empty()
    assert not translate.writes_cache_before_forward(output)
    output.new_block_ids_to_zero = [3]
    assert translate.writes_cache_before_forward(output)


def new_request(req_id: str, blocks: list[int], num_computed_tokens: int) -> NewRequestData:
    return NewRequestData(
        req_id=req_id,
        prompt_token_ids=[1],
        mm_features=[],
        sampling_params=None,
        pooling_params=None,
        block_ids=(blocks,),
        num_computed_tokens=num_computed_tokens,
        lora_request=None,
    )
