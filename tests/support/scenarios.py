"""What an engine is made to do: every scenario fixes arrival order and batching, step by step."""

import random
from collections.abc import Callable, Sequence
from typing import Any

from vllm import LLM, SamplingParams

from kvply.testing import recall

NUM_OUTPUT_TOKENS = 12
NUM_SENSITIVITY_TOKENS = 8


class Driver:
    """Steps an in-process engine by hand, so that batches are the same in every run."""

    def __init__(self, llm: LLM, *, has_kvpp: bool) -> None:
        self.llm = llm
        self.engine = llm.llm_engine
        self.has_kvpp = has_kvpp
        self._next_id = 0

    @property
    def num_blocks(self) -> int:
        return int(self.engine.vllm_config.cache_config.num_gpu_blocks)

    @property
    def block_size(self) -> int:
        return int(self.engine.vllm_config.cache_config.block_size)

    def add(self, token_ids: Sequence[int], num_tokens: int = NUM_OUTPUT_TOKENS) -> str:
        params = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True, logprobs=1, detokenize=False)
        request_id = str(self._next_id)
        self._next_id += 1
        self.engine.add_request(request_id, {"prompt_token_ids": list(token_ids)}, params)
        return request_id

    def step(self, times: int = 1) -> dict[str, Any]:
        finished: dict[str, Any] = {}
        for _ in range(times):
            for output in self.engine.step():
                if output.finished:
                    finished[output.request_id] = _as_data(output)
        return finished

    def drain(self) -> dict[str, Any]:
        finished: dict[str, Any] = {}
        while self.engine.has_unfinished_requests():
            finished.update(self.step())
        return finished

    def stats(self) -> list[dict[str, Any]]:
        return self.llm.collective_rpc("kvpp_stats") if self.has_kvpp else []

    def bytes_sent(self) -> int:
        return sum(int(rank["total"]["bytes_sent"]) for rank in self.stats())

    def corrupt(self, layer: int, nth_block: int) -> int:
        """Spoil one block of the only request's history in `layer`, where it is owned; returns bytes changed."""
        scheduler = self.engine.engine_core.engine_core.scheduler
        (request_id,) = scheduler.requests
        block = scheduler.kv_cache_manager.get_block_ids(request_id)[0][nth_block]
        return sum(self.llm.collective_rpc("corrupt_history", args=(layer, block)))

    def num_preemptions(self) -> int:
        return self._counter("vllm:num_preemptions")

    def num_accepted_drafts(self) -> int:
        return self._counter("vllm:spec_decode_num_accepted_tokens")

    def _counter(self, name: str) -> int:
        for metric in self.llm.get_metrics():
            if metric.name == name:
                return int(metric.value)
        raise LookupError(f"vLLM does not count {name}")


def run(name: str, driver: Driver) -> dict[str, Any]:
    before = driver.bytes_sent()
    outcome = SCENARIOS[name](driver)
    return {**outcome, "bytes_sent": driver.bytes_sent() - before}


def tokens(length: int, seed: int) -> list[int]:
    """Ids that every test model knows, never special ones."""
    return [3 + (seed * 7919 + i * (31 + seed % 17) + i * i % 97) % 480 for i in range(length)]


def recall_prompt(seed: int, num_tokens: int) -> recall.RecallPrompt:
    """A question whose fact lies in the first eighth of `num_tokens` tokens of real text."""
    return recall.build_prompt(
        random.Random(seed),
        recall.default_text(),
        length_tokens=num_tokens,
        distance_tokens=num_tokens * 7 // 8,
        distractors=24,
    )


def block_edges(driver: Driver) -> dict[str, Any]:
    """Prompt lengths around a multiple of the block size, decoded together across the next block edge."""
    block = driver.block_size
    for seed, length in enumerate((4 * block - 1, 4 * block, 4 * block + 1, 7)):
        driver.add(tokens(length, seed), num_tokens=block + 2)
    return {"requests": driver.drain()}


def shared_prefixes(driver: Driver) -> dict[str, Any]:
    """Prompts with a common prefix scheduled in one step: hits against blocks computed in the same step."""
    block = driver.block_size
    common = tokens(4 * block, 11)
    for seed in range(3):
        driver.add(common + tokens(block // 2 + seed, 20 + seed))
    return {"requests": driver.drain()}


def mixed_batches(driver: Driver) -> dict[str, Any]:
    """Requests arrive while others decode: prefill and decode rows in one batch."""
    block = driver.block_size
    driver.add(tokens(3 * block, 31))
    finished = driver.step(3)
    driver.add(tokens(2 * block + 1, 32))
    finished |= driver.step(2)
    driver.add(tokens(5 * block + 3, 33))
    return {"requests": finished | driver.drain()}


def prefix_aba(driver: Driver) -> dict[str, Any]:
    """A, then B, then A again: the third request finds the first one's blocks."""
    block = driver.block_size
    first, second = tokens(5 * block + 3, 41), tokens(4 * block + 5, 42)
    finished: dict[str, Any] = {}
    for prompt in (first, second, first):
        driver.add(prompt)
        finished |= driver.drain()
    cached = [finished[key]["num_cached_tokens"] for key in sorted(finished, key=int)]
    return {"requests": finished, "num_cached_tokens": cached[-1]}


def long_prompt(driver: Driver) -> dict[str, Any]:
    """A prompt longer than the token budget of one step, beside a short one: chunked prefill."""
    budget = driver.engine.vllm_config.scheduler_config.max_num_batched_tokens
    limit = driver.engine.vllm_config.model_config.max_model_len - NUM_OUTPUT_TOKENS
    driver.add(tokens(min(limit, 2 * budget + budget // 2 + 1), 51))
    driver.add(tokens(driver.block_size + 1, 52))
    return {"requests": driver.drain(), "is_chunked": limit > budget}


def aborts(driver: Driver) -> dict[str, Any]:
    """Requests are aborted while they hold history; others take over their blocks."""
    block = driver.block_size
    doomed = [driver.add(tokens(4 * block + seed, 60 + seed)) for seed in range(2)]
    driver.add(tokens(3 * block + 2, 63))
    finished = driver.step(4)
    driver.engine.abort_request([doomed[0]])
    finished |= driver.step(2)
    driver.engine.abort_request([doomed[1]])
    driver.add(tokens(6 * block, 64))
    finished |= driver.drain()
    return {"requests": {key: value for key, value in finished.items() if key not in doomed}}


def preemption(driver: Driver) -> dict[str, Any]:
    """Four requests that are admitted together and outgrow the cache: some are preempted and resumed."""
    before = driver.num_preemptions()
    block, usable_blocks = driver.block_size, driver.num_blocks - 1
    prompt_blocks, output_blocks = usable_blocks // 8, usable_blocks * 3 // 16
    for seed in range(4):
        driver.add(tokens(prompt_blocks * block - 2, 70 + seed), num_tokens=output_blocks * block)
    return {"requests": driver.drain(), "num_preemptions": driver.num_preemptions() - before}


def recall_answers(driver: Driver) -> dict[str, Any]:
    """Facts hidden far back in real text: how many are answered right."""
    length = driver.engine.vllm_config.model_config.max_model_len - 8
    prompts = [recall_prompt(seed, length - seed) for seed in range(4)]
    ids = [driver.add(prompt.token_ids, num_tokens=4) for prompt in prompts]
    finished = driver.drain()
    right = [recall.is_correct(p, finished[i]["tokens"]) for p, i in zip(prompts, ids, strict=True)]
    return {"requests": finished, "num_right": sum(right), "num_asked": len(right)}


def sensitivity_reference(driver: Driver) -> dict[str, Any]:
    """The request of `corrupted_layers`, left alone."""
    driver.engine.reset_prefix_cache()
    driver.add(_sensitivity_prompt(driver), num_tokens=NUM_SENSITIVITY_TOKENS)
    return {"requests": {"clean": _only(driver.drain())}}


def drafts(driver: Driver) -> dict[str, Any]:
    """Speculative decoding long enough that some drafts are accepted and some are not."""
    before = driver.num_accepted_drafts()
    for seed in range(3):
        driver.add(tokens(2 * driver.block_size + seed, 90 + seed), num_tokens=24)
    return {"requests": driver.drain(), "num_accepted": driver.num_accepted_drafts() - before}


def delayed_rank(driver: Driver) -> dict[str, Any]:
    """One rank is late at random layers, so that steps of different ranks overlap in time."""
    if driver.has_kvpp:
        driver.llm.collective_rpc("delay_layers", args=(1, 7, 0.02))
    outcome = mixed_batches(driver)
    if driver.has_kvpp:
        outcome["num_delays"] = sum(driver.llm.collective_rpc("stop_delays"))
    return outcome


def corrupted_layers(driver: Driver) -> dict[str, Any]:
    """One request per layer, each with one block of that layer's history spoiled after the prefill.

    The key of each result is the layer; `clean` is the same request left alone.
    """
    prompt = _sensitivity_prompt(driver)
    results = sensitivity_reference(driver)["requests"]
    num_layers = int(driver.stats()[0]["num_layers"])
    changed: dict[str, int] = {}
    for layer in range(num_layers):
        driver.engine.reset_prefix_cache()  # a hit would bring back history from before it was spoiled
        driver.add(prompt, num_tokens=NUM_SENSITIVITY_TOKENS)
        driver.step(3)
        changed[str(layer)] = driver.corrupt(layer, nth_block=1)
        results[str(layer)] = _only(driver.drain())
    return {"requests": results, "bytes_changed": changed}


def _sensitivity_prompt(driver: Driver) -> list[int]:
    """Short enough that a sparse model with a top-k of 64 attends to all of it (blocks of 16 tokens)."""
    return tokens(3 * driver.block_size + 3, 81)


def _only(finished: dict[str, Any]) -> Any:
    (result,) = finished.values()
    return result


def _as_data(output: Any) -> dict[str, Any]:
    completion = output.outputs[0]
    chosen = zip(completion.token_ids, completion.logprobs, strict=True)
    return {
        "tokens": list(completion.token_ids),
        "logprobs": [by_id[token].logprob for token, by_id in chosen],
        "num_cached_tokens": output.num_cached_tokens,
    }


SCENARIOS: dict[str, Callable[[Driver], dict[str, Any]]] = {
    function.__name__: function
    for function in (
        block_edges,
        shared_prefixes,
        mixed_batches,
        prefix_aba,
        long_prompt,
        aborts,
        preemption,
        recall_answers,
        drafts,
        delayed_rank,
        sensitivity_reference,
        corrupted_layers,
    )
}
