"""What the demo says about two outcomes."""

from dataclasses import replace

from kvply.demo.protocol import EngineOutcome
from kvply.demo.report import report_lines
from kvply.demo.run import questions

PROMPTS = questions(4)
TOTAL = {
    "steps": 8,
    "steps_with_history": 6,
    "broadcasts": 48,
    "bytes_sent": 64 << 20,
    "useful_bytes": 60 << 20,
    "exposed_wait_s": 0.012,
    "hidden_s": 0.3,
}
OFF = EngineOutcome(
    num_blocks=300,
    capacity_tokens=4800,
    answers=[list(prompt.question.values) for prompt in PROMPTS],
    logprobs=[[-0.5] * 4 for _ in PROMPTS],
    seconds=2.0,
)
ON = replace(OFF, capacity_tokens=6400, stats=[{"total": TOTAL}, {"total": {**TOTAL, "exposed_wait_s": 0.02}}])


def test_the_numbers_a_user_wants_are_there() -> None:
    text = "\n".join(report_lines(PROMPTS, OFF, ON, 1.333))
    assert "x1.33 (predicted x1.33)" in text
    assert "4 of 4" in text
    assert "identical, bit for bit, in all 16 generated tokens" in text
    assert "64.0 MiB in 48 broadcasts (60.0 MiB of it history)" in text
    assert "Compute waited 20.0 ms" in text


def test_a_difference_is_not_hidden() -> None:
    logprobs = [[-0.5, -0.5, -0.5, -0.5000001], *ON.logprobs[1:]]
    text = "\n".join(report_lines(PROMPTS, OFF, replace(ON, logprobs=logprobs), 1.333))
    assert "DIFFER" in text
    assert "identical" not in text


def test_wrong_answers_are_counted_and_marked() -> None:
    answers = [[0, 0, 0, 0], *ON.answers[1:]]
    text = "\n".join(report_lines(PROMPTS, OFF, replace(ON, answers=answers), 1.333))
    assert "WRONG" in text
    assert "3 of 4" in text
