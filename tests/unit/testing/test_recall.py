"""The recall prompts: exact sizes and places, and a text form that the tokenizer reads back."""

import dataclasses
import json
import random

import pytest
from tokenizers import Tokenizer

from kvply.testing.recall import (
    ANSWER_TOKENS,
    FACT_TOKENS,
    MODEL_DIR,
    QUESTION_TOKENS,
    VOCABULARY_SIZE,
    RecallPrompt,
    answer_text,
    build_prompt,
    default_text,
    is_correct,
    vocabulary,
    without_fact,
)

# Length, distance and distractors; lengths at and around multiples of block sizes, and the tightest fits.
SHAPES = [
    (256, 100, 10),
    (255, 100, 10),
    (257, 100, 10),
    (4096, 3900, 120),
    (4095, 2000, 127),
    (9, 6, 0),
    (1024, 6, 50),
    (1024, 1021, 50),
    (1 + 10 * FACT_TOKENS + QUESTION_TOKENS, 5 * FACT_TOKENS, 9),
]


def make_prompt(length_tokens: int = 1024, distance_tokens: int = 500, distractors: int = 40) -> RecallPrompt:
    return build_prompt(
        random.Random(1),
        default_text(),
        length_tokens=length_tokens,
        distance_tokens=distance_tokens,
        distractors=distractors,
    )


def stated_keys(prompt: RecallPrompt) -> list[int]:
    ids = prompt.token_ids
    return [ids[place + 1] for place, token in enumerate(ids) if token == vocabulary.FACT]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(MODEL_DIR / "tokenizer.json"))


@pytest.mark.parametrize(("length_tokens", "distance_tokens", "distractors"), SHAPES)
def test_prompt_has_exactly_the_asked_shape(length_tokens: int, distance_tokens: int, distractors: int) -> None:
    prompt = make_prompt(length_tokens, distance_tokens, distractors)

    assert len(prompt.token_ids) == length_tokens
    assert prompt.token_ids[0] == vocabulary.BOS
    assert prompt.token_ids[-QUESTION_TOKENS:] == (vocabulary.ASK, prompt.question.key)
    start = length_tokens - QUESTION_TOKENS - distance_tokens
    assert prompt.fact_start == start
    assert prompt.distance_tokens == distance_tokens
    assert prompt.token_ids[start : start + FACT_TOKENS] == prompt.question.token_ids
    assert len(stated_keys(prompt)) == distractors + 1


@pytest.mark.parametrize(("length_tokens", "distance_tokens", "distractors"), SHAPES)
def test_keys_are_unique(length_tokens: int, distance_tokens: int, distractors: int) -> None:
    keys = stated_keys(make_prompt(length_tokens, distance_tokens, distractors))

    assert len(set(keys)) == len(keys)


def test_distractors_stand_on_both_sides_of_the_fact() -> None:
    prompt = make_prompt()

    markers = [place for place, token in enumerate(prompt.token_ids) if token == vocabulary.FACT]
    assert markers[0] < prompt.fact_start < markers[-1]


def test_equal_seeds_give_equal_prompts() -> None:
    assert make_prompt() == make_prompt()


def test_filler_is_the_text_in_order_and_wraps_around() -> None:
    text = b"abcdefgh"
    prompt = build_prompt(random.Random(5), text, length_tokens=300, distance_tokens=200, distractors=5)

    filler = [token - vocabulary.FIRST_BYTE for token in prompt.token_ids if token >= vocabulary.FIRST_BYTE]
    offset = text.index(filler[0])
    assert bytes(filler) == bytes(text[(offset + place) % len(text)] for place in range(len(filler)))


@pytest.mark.parametrize(
    ("length_tokens", "distance_tokens", "distractors"),
    [(100, 98, 0), (100, 5, 0), (100, 50, 15), (4096, 2000, 128)],
    ids=["before the prompt", "into the question", "no room", "too few keys"],
)
def test_impossible_shapes_are_refused(length_tokens: int, distance_tokens: int, distractors: int) -> None:
    with pytest.raises(ValueError, match=r"fit|keys"):
        make_prompt(length_tokens, distance_tokens, distractors)


@pytest.mark.parametrize("text", [b"", "caf\u00e9".encode(), b"see <otter> there"])
def test_unsafe_filler_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match="filler text"):
        build_prompt(random.Random(1), text, length_tokens=64, distance_tokens=20, distractors=1)


def test_answers_must_be_exact() -> None:
    prompt = make_prompt()
    values = prompt.question.values

    assert is_correct(prompt, values)
    assert is_correct(prompt, [*values, vocabulary.EOS])
    assert not is_correct(prompt, values[:3])
    assert not is_correct(prompt, [*values[:3], values[3] ^ 1])


def test_without_fact_blanks_only_the_fact() -> None:
    prompt = make_prompt()
    blank = without_fact(prompt)

    changed = [i for i, (old, new) in enumerate(zip(prompt.token_ids, blank.token_ids, strict=True)) if old != new]
    assert changed == list(range(prompt.fact_start, prompt.fact_start + FACT_TOKENS))
    assert prompt.question.key not in stated_keys(blank)
    assert dataclasses.replace(blank, token_ids=prompt.token_ids, text=prompt.text) == prompt


def test_facts_read_as_words() -> None:
    fact = (
        vocabulary.FACT,
        vocabulary.FIRST_KEY,
        *(vocabulary.value_id(place, 1) for place in range(ANSWER_TOKENS)),
    )

    assert vocabulary.to_text(fact) == "<fact><otter><calm><azure><chair><11>"
    assert answer_text(fact[2:]) == "<calm><azure><chair><11>"


def test_word_contents_are_distinct() -> None:
    contents = vocabulary.word_contents()

    assert len(contents) == len(set(contents)) == vocabulary.FIRST_BYTE


@pytest.mark.parametrize(("length_tokens", "distance_tokens", "distractors"), SHAPES)
def test_tokenizer_reads_the_text_back(
    tokenizer: Tokenizer, length_tokens: int, distance_tokens: int, distractors: int
) -> None:
    prompt = make_prompt(length_tokens, distance_tokens, distractors)

    assert tuple(tokenizer.encode(prompt.text).ids) == prompt.token_ids
    assert tokenizer.decode(prompt.token_ids) == prompt.text


def test_tokenizer_agrees_on_every_id(tokenizer: Tokenizer) -> None:
    assert tokenizer.get_vocab_size() == VOCABULARY_SIZE
    for token, content in enumerate(vocabulary.word_contents()):
        assert tokenizer.token_to_id(content) == token
    for byte in range(128):
        assert tokenizer.encode(chr(byte), add_special_tokens=False).ids == [vocabulary.FIRST_BYTE + byte]


def test_tokenizer_reads_longer_characters_byte_by_byte(tokenizer: Tokenizer) -> None:
    text = "\u00fcber \u4e16\u754c"

    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert tuple(ids) == vocabulary.byte_ids(text.encode())
    assert tokenizer.decode(ids) == text


def test_model_config_fits_the_vocabulary() -> None:
    config = json.loads((MODEL_DIR / "config.json").read_text())

    assert config["vocab_size"] == VOCABULARY_SIZE
    assert config["num_hidden_layers"] == 8
    assert config["architectures"] == ["DeepseekV3ForCausalLM"]
