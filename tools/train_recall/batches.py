"""Training sequences: facts and questions at random places in real text or random bytes."""

import pydoc_data.topics
import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvply.testing.recall import vocabulary as words

RECORD_TOKENS = words.FACT_TOKENS
Tokens = npt.NDArray[np.int64]
Answers = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sizes of one training batch; ``mean_gap_tokens`` of filler follow a record on average."""

    sequences: int
    length_tokens: int
    mean_gap_tokens: float


def training_text() -> bytes:
    """Return the help texts of the interpreter, in ASCII and without words in angle brackets."""
    topics: dict[str, str] = pydoc_data.topics.topics
    return re.sub(rb"<(?=[a-z0-9]+>)", b"", "\n".join(topics.values()).encode("ascii", "ignore"))


class Filler:
    """Real English text mixed with random bytes, so that no byte statistics can be relied upon."""

    RANDOM_SHARE = 0.3

    def __init__(self) -> None:
        self._text = np.frombuffer(training_text(), dtype=np.uint8)

    def draw(self, rng: np.random.Generator, length_tokens: int) -> Tokens:
        """Return ``length_tokens`` filler tokens: one slice of the text, or random bytes."""
        if rng.random() < self.RANDOM_SHARE:
            return words.FIRST_BYTE + rng.integers(0, 256, length_tokens)
        start = rng.integers(0, len(self._text) - length_tokens)
        return words.FIRST_BYTE + self._text[start : start + length_tokens].astype(np.int64)


def draw_batch(rng: np.random.Generator, filler: Filler, shape: Shape) -> tuple[Tokens, Answers]:
    """Return tokens of ``shape`` and a mask that is true on the answers to be predicted."""
    rows = [_draw_sequence(rng, filler, shape) for _ in range(shape.sequences)]
    return np.stack([tokens for tokens, _ in rows]), np.stack([answers for _, answers in rows])


def _draw_sequence(
    rng: np.random.Generator, filler: Filler, shape: Shape, question_share: float = 0.6
) -> tuple[Tokens, Answers]:
    gap_tokens = shape.mean_gap_tokens * rng.uniform(0.5, 1.5)
    records = int((shape.length_tokens - 1) / (RECORD_TOKENS + gap_tokens))
    slack_tokens = shape.length_tokens - 1 - records * RECORD_TOKENS
    starts = 1 + np.sort(rng.integers(0, slack_tokens + 1, records)) + np.arange(records) * RECORD_TOKENS
    places = starts[:, None] + np.arange(RECORD_TOKENS)

    is_fact = _choose_facts(rng, records, question_share)
    facts_so_far = np.cumsum(is_fact)
    asked = (rng.random(records) * facts_so_far).astype(np.int64)
    facts = _draw_facts(rng)[np.where(is_fact, facts_so_far - 1, asked)]
    markers = np.where(is_fact, words.FACT, words.ASK)

    tokens = np.empty(shape.length_tokens, dtype=np.int64)
    is_answer = np.zeros(shape.length_tokens, dtype=np.bool_)
    is_filler = np.ones(shape.length_tokens, dtype=np.bool_)
    is_filler[places] = False
    tokens[is_filler] = filler.draw(rng, int(is_filler.sum()))
    tokens[0] = words.BOS
    tokens[places] = np.concatenate([markers[:, None], facts], axis=1)
    is_answer[places[~is_fact, 2:]] = True
    return tokens, is_answer


def _choose_facts(rng: np.random.Generator, records: int, question_share: float) -> Answers:
    """Choose which records state a fact; the rest ask for one stated before. Keys are never reused."""
    is_fact = rng.random(records) >= question_share
    is_fact[:2] = True
    return is_fact & (np.cumsum(is_fact) <= words.KEY_COUNT)


def _draw_facts(rng: np.random.Generator) -> Tokens:
    """Return one ``(key, value, value, value, value)`` row of ids for each key, in random order."""
    keys = words.FIRST_KEY + rng.permutation(words.KEY_COUNT)
    values = rng.integers(0, words.VALUES_PER_POSITION, (words.KEY_COUNT, words.ANSWER_TOKENS))
    offsets = words.FIRST_VALUE + np.arange(words.ANSWER_TOKENS) * words.VALUES_PER_POSITION
    return np.concatenate([keys[:, None], values + offsets], axis=1)
