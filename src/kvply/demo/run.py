"""Serve the recall model with KVPP off, then on, and show what changed and what did not."""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from kvply.demo.protocol import MAX_MODEL_LEN, NUM_RANKS, EngineOrder, EngineOutcome
from kvply.demo.report import report_lines
from kvply.errors import ConfigError, KvplyError
from kvply.planner.estimate import estimate
from kvply.planner.model_facts import read_model
from kvply.testing import recall

ENGINE_TIMEOUT_S = 600
# How far back the asked facts lie, in turn.
_DISTANCES_TOKENS = (2000, 2500, 3000, 3500)


def run_demo(*, num_questions: int, log_directory: Path | None) -> int:
    """Print the comparison; returns 0 if KVPP changed nothing but the capacity, 1 otherwise."""
    if num_questions < 1:
        raise ConfigError(f"--num-questions must be at least 1, not {num_questions}")
    prompts = questions(num_questions)
    print(f"Asking {num_questions} questions about facts hidden 2,000 to 3,500 tokens back in real text,")
    print(f"on a small MLA model served by stock vLLM on CPU with {NUM_RANKS} tensor-parallel ranks.")
    with tempfile.TemporaryDirectory(prefix="kvply-demo-") as temporary:
        directory = log_directory or Path(temporary)
        directory.mkdir(parents=True, exist_ok=True)
        off = serve(prompts, directory, enable_kvpp=False)
        on = serve(prompts, directory, enable_kvpp=True)
    predicted = estimate(read_model(recall.MODEL_DIR), group_size=NUM_RANKS).capacity_ratio
    print()
    print("\n".join(report_lines(prompts, off, on, predicted)))
    return 0 if (off.answers, off.logprobs) == (on.answers, on.logprobs) else 1


def questions(count: int) -> list[recall.RecallPrompt]:
    """The same questions every time."""
    rng = random.Random(2026)
    return [
        recall.build_prompt(
            rng,
            recall.default_text(),
            length_tokens=MAX_MODEL_LEN - recall.ANSWER_TOKENS - index,
            distance_tokens=_DISTANCES_TOKENS[index % len(_DISTANCES_TOKENS)],
            distractors=40,
        )
        for index in range(count)
    ]


def serve(prompts: list[recall.RecallPrompt], directory: Path, *, enable_kvpp: bool) -> EngineOutcome:
    """Run one engine in a process of its own. Raises KvplyError with the end of its log if it fails."""
    name = "on" if enable_kvpp else "off"
    order, outcome, log = (directory / f"{name}.{kind}" for kind in ("order.json", "outcome.json", "log"))
    EngineOrder(
        model=str(recall.MODEL_DIR),
        enable_kvpp=enable_kvpp,
        prompts=[list(prompt.token_ids) for prompt in prompts],
        num_answer_tokens=recall.ANSWER_TOKENS,
    ).write(order)
    outcome.unlink(missing_ok=True)
    print(f"\nKVPP {name}: starting vLLM (about half a minute) ...", end=" ", flush=True)
    begin_s = time.monotonic()
    command = [sys.executable, "-m", "kvply.vllm.demo_engine", str(order), str(outcome)]
    with log.open("w", encoding="utf-8") as sink:
        status = _run_bounded(command, sink.fileno())
    if status != 0 or not outcome.exists():
        tail = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-25:])
        raise KvplyError(f"the engine with KVPP {name} ended with status {status}; the end of its log:\n{tail}")
    print(f"done in {time.monotonic() - begin_s:.0f} s")
    return EngineOutcome.read(outcome)


def _run_bounded(command: list[str], sink_fd: int) -> int | None:
    """Exit status, or None after ENGINE_TIMEOUT_S; no process of the engine outlives the call."""
    process = subprocess.Popen(
        command, stdout=sink_fd, stderr=subprocess.STDOUT, env=_environment(), start_new_session=True
    )
    try:
        return process.wait(ENGINE_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)


def _environment() -> dict[str, str]:
    """The caller's, less settings that would make the two runs differ from each other or from this text."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("VLLM_")}
    cores = "|".join(str(rank % (os.cpu_count() or 1)) for rank in range(NUM_RANKS))
    return {
        **inherited,
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": cores,
        "TORCH_COMPILE_DISABLE": "1",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
