"""The demo's engine process: `python -m kvply.vllm.demo_engine ORDER.json OUTCOME.json`."""

import sys
import time
from pathlib import Path

from kvply.demo.protocol import KV_CACHE_BYTES, MAX_MODEL_LEN, NUM_RANKS, EngineOrder, EngineOutcome


def main() -> None:
    order = EngineOrder.read(Path(sys.argv[1]))
    run(order).write(Path(sys.argv[2]))


def run(order: EngineOrder) -> EngineOutcome:
    """Serve the order's model in this process (the engine core too, so that batches are the same every time)."""
    from vllm import LLM, SamplingParams

    llm = LLM(
        model=order.model,
        skip_tokenizer_init=True,
        tensor_parallel_size=NUM_RANKS,
        enforce_eager=True,
        max_model_len=MAX_MODEL_LEN,
        max_num_seqs=4,
        max_num_batched_tokens=MAX_MODEL_LEN,
        kv_cache_memory_bytes=KV_CACHE_BYTES,
        seed=0,
        additional_config={"enable_kvpp": order.enable_kvpp},
    )
    sampling = SamplingParams(
        temperature=0, max_tokens=order.num_answer_tokens, ignore_eos=True, logprobs=1, detokenize=False
    )
    prompts = [{"prompt_token_ids": prompt} for prompt in order.prompts]
    begin_s = time.perf_counter()
    completions = [output.outputs[0] for output in llm.generate(prompts, sampling, use_tqdm=False)]
    seconds = time.perf_counter() - begin_s
    cache = llm.llm_engine.vllm_config.cache_config
    return EngineOutcome(
        num_blocks=cache.num_gpu_blocks,
        capacity_tokens=cache.num_gpu_blocks * cache.block_size,
        answers=[list(c.token_ids) for c in completions],
        logprobs=[[p[t].logprob for t, p in zip(c.token_ids, c.logprobs, strict=True)] for c in completions],
        seconds=seconds,
        stats=llm.collective_rpc("kvpp_stats") if order.enable_kvpp else [],
    )


if __name__ == "__main__":
    main()
