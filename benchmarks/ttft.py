"""Time to first token of a long prompt whose prefix is cached, KVPP off and on, in one run.

Two engines after each other on the recall model (2 tensor-parallel ranks, CPU reference platform, so that
prefix caching works on any CPU). Every measured prompt shares a cached prefix and ends in fresh tokens; its
first token needs the history of all layers. Also reported: the cold prompt, which has no history, and a decode
step. Figures are medians; the ratio is what counts.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

PREFIX_TOKENS = 3520
SUFFIX_TOKENS = 256
NUM_RANKS = 2
ENGINE_TIMEOUT_S = 600


def measure(enable_kvpp: bool, rounds: int) -> dict[str, Any]:
    """Runs in the engine's process; returns seconds per measured step and KVPP's counters."""
    from vllm import LLM, SamplingParams

    from kvply.testing import recall

    llm = LLM(
        model=str(recall.MODEL_DIR),
        skip_tokenizer_init=True,
        tensor_parallel_size=NUM_RANKS,
        enforce_eager=True,
        max_model_len=4096,
        max_num_batched_tokens=4096,
        async_scheduling=False,
        kv_cache_memory_bytes=128 << 20,
        seed=0,
        additional_config={"enable_kvpp": enable_kvpp},
    )
    engine = llm.llm_engine

    def stats() -> dict[str, float]:
        if not enable_kvpp:
            return {}
        ranks = [rank["total"] for rank in llm.collective_rpc("kvpp_stats")]
        return {key: max(rank[key] for rank in ranks) for key in ranks[0]}

    def ask(request_id: str, token_ids: list[int], num_tokens: int) -> tuple[float, list[float]]:
        """(seconds to the first token, seconds of each later step)."""
        params = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True, detokenize=False)
        engine.add_request(request_id, {"prompt_token_ids": token_ids}, params)
        times = []
        while engine.has_unfinished_requests():
            begin_s = time.perf_counter()
            engine.step()
            times.append(time.perf_counter() - begin_s)
        return times[0], times[1:]

    text = recall.default_text()
    filler = [392 + byte for byte in text]
    prefix = (filler * 2)[:PREFIX_TOKENS]
    cold_s, _ = ask("cold", prefix + filler[:SUFFIX_TOKENS], 1)
    before = stats()
    first_s, decode_s = [], []
    for index in range(rounds):
        suffix = filler[400 * (index + 1) : 400 * (index + 1) + SUFFIX_TOKENS]
        first, later = ask(str(index), prefix + suffix, 9)
        first_s.append(first)
        decode_s += later
    after = stats()
    return {
        "cold_s": cold_s,
        "warm_s": statistics.median(first_s),
        "decode_s": statistics.median(decode_s),
        "counters": {key: after[key] - before[key] for key in after},
    }


def run_child(enable_kvpp: bool, rounds: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as directory:
        result = Path(directory) / "result.json"
        cores = "|".join(str(rank % (os.cpu_count() or 1)) for rank in range(NUM_RANKS))
        env = {
            **{k: v for k, v in os.environ.items() if not k.startswith("VLLM_")},
            "KVPLY_CPU_REFERENCE": "1",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_CPU_OMP_THREADS_BIND": cores,
            "TORCH_COMPILE_DISABLE": "1",
            "VLLM_LOGGING_LEVEL": "ERROR",
        }
        command = [sys.executable, __file__, "--child", str(result), "--rounds", str(rounds)]
        subprocess.run(
            [*command, "--kvpp"] if enable_kvpp else command, env=env, check=True, timeout=ENGINE_TIMEOUT_S
        )
        found: dict[str, Any] = json.loads(result.read_text())
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--child", type=Path)
    parser.add_argument("--kvpp", action="store_true")
    arguments = parser.parse_args()
    if arguments.child:
        arguments.child.write_text(json.dumps(measure(arguments.kvpp, arguments.rounds)))
        return
    off, on = (run_child(enable_kvpp, arguments.rounds) for enable_kvpp in (False, True))
    print(f"prefix {PREFIX_TOKENS} tokens cached, {SUFFIX_TOKENS} fresh, median of {arguments.rounds}")
    for name in ("warm_s", "decode_s", "cold_s"):
        ratio = on[name] / off[name]
        print(f"{name[:-2]:8} off {off[name] * 1e3:8.1f} ms   on {on[name] * 1e3:8.1f} ms   ratio {ratio:.3f}")
    counters = on["counters"]
    exposed, hidden = counters["exposed_wait_s"], counters["hidden_s"]
    share = hidden / max(1e-9, hidden + exposed)
    print(
        f"{counters['bytes_sent'] / 2**20:.1f} MiB in {counters['broadcasts']:.0f} broadcasts: "
        f"{exposed * 1e3:.1f} ms exposed, {hidden * 1e3:.1f} ms hidden ({share:.0%} hidden)"
    )


if __name__ == "__main__":
    main()
