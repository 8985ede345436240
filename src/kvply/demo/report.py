"""The demo's comparison in words."""

from collections.abc import Sequence
from typing import Any

from kvply.demo.protocol import KV_CACHE_BYTES, EngineOutcome
from kvply.testing import recall

_MIB = 1 << 20
_NUM_SHOWN = 3


def report_lines(
    prompts: Sequence[recall.RecallPrompt], off: EngineOutcome, on: EngineOutcome, predicted_ratio: float
) -> list[str]:
    """Questions and answers, then capacity, parity and what the broadcasts cost."""
    return [
        *_question_lines(prompts, on),
        "",
        f"{'':24}{'KVPP off':>14}{'KVPP on':>14}",
        f"{'KV capacity (tokens)':24}{off.capacity_tokens:>14,}{on.capacity_tokens:>14,}"
        f"   x{on.capacity_tokens / off.capacity_tokens:.2f} (predicted x{predicted_ratio:.2f}), "
        f"{KV_CACHE_BYTES // _MIB} MiB per rank",
        f"{'answers right':24}{_right(prompts, off):>14}{_right(prompts, on):>14}",
        f"{'seconds to answer':24}{off.seconds:>14.1f}{on.seconds:>14.1f}",
        "",
        _parity_line(off, on),
        *_cost_lines(on),
    ]


def _question_lines(prompts: Sequence[recall.RecallPrompt], on: EngineOutcome) -> list[str]:
    lines = ["Questions, answers with KVPP on, and what was hidden:"]
    for prompt, answer in list(zip(prompts, on.answers, strict=True))[:_NUM_SHOWN]:
        mark = "right" if recall.is_correct(prompt, answer) else "WRONG"
        question = prompt.text[-40:].replace("\n", " ")
        lines.append(
            f"  ...{question} -> {recall.answer_text(answer)} {mark} (fact {prompt.distance_tokens} tokens back)"
        )
    if len(prompts) > _NUM_SHOWN:
        lines.append(f"  ... and {len(prompts) - _NUM_SHOWN} more")
    return lines


def _right(prompts: Sequence[recall.RecallPrompt], outcome: EngineOutcome) -> str:
    right = sum(recall.is_correct(p, a) for p, a in zip(prompts, outcome.answers, strict=True))
    return f"{right} of {len(prompts)}"


def _parity_line(off: EngineOutcome, on: EngineOutcome) -> str:
    num_tokens = sum(len(answer) for answer in off.answers)
    if (off.answers, off.logprobs) == (on.answers, on.logprobs):
        return f"Tokens and logprobs are identical, bit for bit, in all {num_tokens} generated tokens."
    return "Tokens or logprobs DIFFER: this is a defect, please report it with the logs (--log-directory)."


def _cost_lines(on: EngineOutcome) -> list[str]:
    totals: list[Any] = [rank["total"] for rank in on.stats]
    first = totals[0]
    exposed_s = max(total["exposed_wait_s"] for total in totals)
    hidden_s = max(total["hidden_s"] for total in totals)
    return [
        f"Broadcast: {first['bytes_sent'] / _MIB:.1f} MiB in {first['broadcasts']} broadcasts "
        f"({first['useful_bytes'] / _MIB:.1f} MiB of it history), "
        f"{first['steps_with_history']} of {first['steps']} steps had history.",
        f"Compute waited {exposed_s * 1e3:.1f} ms in all on the slowest rank; {hidden_s * 1e3:.1f} ms of "
        f"transfer were hidden behind it.",
    ]
