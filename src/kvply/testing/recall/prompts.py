"""Prompts that state facts in running text and end with a question about one of them."""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from . import vocabulary as words

MODEL_DIR = Path(__file__).parent / "model"
"""Checkpoint and tokenizer, as ``vllm serve`` takes them."""

_TEXT_FILE = Path(__file__).parent / "text.txt"
_WORD = re.compile(rb"<[a-z0-9]+>")


@dataclass(frozen=True, slots=True)
class Fact:
    """A key and its four values, as token ids."""

    key: int
    values: tuple[int, ...]

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The fact as it stands in a prompt."""
        return (words.FACT, self.key, *self.values)


@dataclass(frozen=True, slots=True)
class RecallPrompt:
    """A prompt to be answered with the four values of ``question``.

    ``text`` reads like ``token_ids`` without the leading ``<bos>``, which the tokenizer adds itself.
    ``distance_tokens`` counts from the ``<fact>`` marker to the ``<ask>`` marker.
    """

    token_ids: tuple[int, ...]
    text: str
    question: Fact
    distance_tokens: int

    @property
    def fact_start(self) -> int:
        """Position in ``token_ids`` of the asked fact's marker."""
        return len(self.token_ids) - words.QUESTION_TOKENS - self.distance_tokens


def default_text() -> bytes:
    """Return the prose that ships with the model."""
    return _TEXT_FILE.read_bytes()


def build_prompt(
    rng: random.Random, text: bytes, *, length_tokens: int, distance_tokens: int, distractors: int
) -> RecallPrompt:
    """Build a prompt of exactly ``length_tokens`` around a slice of ``text``.

    The slice starts anywhere and wraps around at the end. The asked fact stands ``distance_tokens``
    before the question, ``distractors`` other facts are spread over the rest, and no key occurs twice.
    Equal arguments and an equal state of ``rng`` give an equal prompt.

    Raises:
        ValueError: the facts do not fit, there are too few keys, or ``text`` is empty, not ASCII or
            contains a word in angle brackets, which the tokenizer would read as one token.
    """
    _check_text(text)
    fact_start = length_tokens - words.QUESTION_TOKENS - distance_tokens
    before_tokens, after_tokens = fact_start - 1, distance_tokens - words.FACT_TOKENS
    if before_tokens < 0 or after_tokens < 0:
        raise ValueError(f"a fact {distance_tokens} tokens back does not fit into {length_tokens} tokens")

    asked, *others = _draw_facts(rng, 1 + distractors)
    count_before = _share_before(distractors, before_tokens, after_tokens)
    starts = [
        *_spread(rng, count_before, first=1, room_tokens=before_tokens),
        *_spread(rng, distractors - count_before, first=fact_start + words.FACT_TOKENS, room_tokens=after_tokens),
    ]
    placed = {fact_start: asked.token_ids}
    placed |= {start: fact.token_ids for start, fact in zip(starts, others, strict=True)}
    placed |= {0: (words.BOS,), length_tokens - words.QUESTION_TOKENS: (words.ASK, asked.key)}
    token_ids = _fill_gaps(placed, length_tokens, text, offset=rng.randrange(len(text)))
    return RecallPrompt(token_ids, words.to_text(token_ids[1:]), asked, distance_tokens)


def without_fact(prompt: RecallPrompt) -> RecallPrompt:
    """Return ``prompt`` with the asked fact blanked out: same length, but the answer cannot be known."""
    start, end = prompt.fact_start, prompt.fact_start + words.FACT_TOKENS
    blank = words.byte_ids(b" " * words.FACT_TOKENS)
    token_ids = prompt.token_ids[:start] + blank + prompt.token_ids[end:]
    return replace(prompt, token_ids=token_ids, text=words.to_text(token_ids[1:]))


def is_correct(prompt: RecallPrompt, answer_token_ids: Sequence[int]) -> bool:
    """Tell whether an answer starts with exactly the four values asked for; later tokens do not count."""
    return tuple(answer_token_ids[: words.ANSWER_TOKENS]) == prompt.question.values


def answer_text(answer_token_ids: Sequence[int]) -> str:
    """Return the readable form of an answer, such as ``<brave><amber><lamp><42>``."""
    return words.to_text(answer_token_ids[: words.ANSWER_TOKENS])


def _check_text(text: bytes) -> None:
    if not text or not text.isascii():
        raise ValueError("the filler text must be non-empty ASCII: facts could split longer characters")
    if found := _WORD.search(text):
        raise ValueError(f"the filler text contains {found.group().decode()}, which reads as one token")


def _draw_facts(rng: random.Random, count: int) -> list[Fact]:
    if not 1 <= count <= words.KEY_COUNT:
        raise ValueError(f"{count} facts asked for, there are {words.KEY_COUNT} keys")
    return [
        Fact(
            words.key_id(key),
            tuple(
                words.value_id(position, rng.randrange(words.VALUES_PER_POSITION))
                for position in range(words.ANSWER_TOKENS)
            ),
        )
        for key in rng.sample(range(words.KEY_COUNT), count)
    ]


def _share_before(distractors: int, before_tokens: int, after_tokens: int) -> int:
    """Return how many distractors go before the asked fact: in proportion to the room there."""
    most_before, most_after = before_tokens // words.FACT_TOKENS, after_tokens // words.FACT_TOKENS
    if distractors > most_before + most_after:
        raise ValueError(f"{distractors} distractors do not fit, at most {most_before + most_after} do")
    if not distractors:
        return 0
    wanted = round(distractors * before_tokens / (before_tokens + after_tokens))
    return min(max(wanted, distractors - most_after), most_before)


def _spread(rng: random.Random, count: int, *, first: int, room_tokens: int) -> list[int]:
    """Return the random, non-overlapping starts of ``count`` facts in the room from ``first`` on."""
    slack_tokens = room_tokens - count * words.FACT_TOKENS
    gaps = sorted(rng.randint(0, slack_tokens) for _ in range(count))
    return [first + gap + index * words.FACT_TOKENS for index, gap in enumerate(gaps)]


def _fill_gaps(
    placed: dict[int, tuple[int, ...]], length_tokens: int, text: bytes, *, offset: int
) -> tuple[int, ...]:
    """Return ``length_tokens`` tokens: the ``placed`` runs at their starts and ``text`` between them."""
    token_ids: list[int] = []
    for start in (*sorted(placed), length_tokens):
        needed = start - len(token_ids)
        token_ids += words.byte_ids(bytes(text[(offset + i) % len(text)] for i in range(needed)))
        offset += needed
        token_ids += placed.get(start, ())
    return tuple(token_ids)
