"""Token ids of the recall model and their readable forms.

Layout of the 704 ids::

    0 <bos>  1 <eos>  2 <fact>  3 <ask>  4-7 reserved
    8-135    keys: 128 nouns
    136-391  values: 4 positions of 64 words each
    392-647  bytes: token 392 + b stands for the byte b
    648-703  reserved (pads the vocabulary to a multiple of 64)

Every id below :data:`FIRST_BYTE` is written as one word in angle brackets, so that a prompt reads as
plain text with facts such as ``<fact><otter><brave><amber><lamp><42>`` in it.
"""

from collections.abc import Iterable

BOS, EOS, FACT, ASK = 0, 1, 2, 3
FIRST_KEY = 8
KEY_COUNT = 128
FIRST_VALUE = FIRST_KEY + KEY_COUNT
VALUES_PER_POSITION = 64
ANSWER_TOKENS = 4
FIRST_BYTE = FIRST_VALUE + ANSWER_TOKENS * VALUES_PER_POSITION
VOCABULARY_SIZE = 704

FACT_TOKENS = 2 + ANSWER_TOKENS
"""Tokens of one fact: the marker, the key and its values."""
QUESTION_TOKENS = 2
"""Tokens of one question: the marker and the key."""

_KEYS = """
    otter badger falcon rabbit walrus beaver donkey ferret gopher heron ibis jackal koala lemur magpie newt
    ocelot panda quail raven salmon tapir urchin viper weasel yak zebra acorn barley cactus daisy elm fern
    ginger hazel iris jasmine kelp lotus maple nettle orchid poppy quince rose saffron thistle violet willow
    yarrow anchor bridge candle drum easel flute guitar hammer island jacket kettle ladder mirror needle oven
    piano quilt ribbon saddle teapot umbrella violin wagon xylophone yacht zipper almond biscuit carrot
    dumpling eggplant fig grape honey icing juice kiwi lentil mango noodle olive pepper radish spinach tomato
    vanilla walnut yogurt atlas beacon canyon desert estuary forest glacier harbor inlet jungle kingdom lagoon
    meadow nebula oasis prairie quarry river summit tundra valley volcano waterfall comet planet meteor
    eclipse monsoon tornado zephyr
"""
_MOODS = """
    brave calm clever eager gentle happy jolly kind lively merry noble patient proud quiet shy witty
    angry bold careful dizzy early famous grumpy honest idle jealous keen lonely modest nervous odd polite
    rapid silly tidy useful vivid warm young zealous ancient bitter clumsy daring elegant fierce graceful humble
    icy joyful lazy mighty nimble obedient playful rough sleepy tender unusual vague wild yearning zany loyal
"""
_SHADES = """
    amber azure beige black blue bronze brown coral cream crimson cyan ebony emerald golden gray green
    indigo ivory jade khaki lavender lemon lilac lime magenta maroon mauve mint mustard navy ochre onyx
    opal orange peach pearl pink platinum plum purple red ruby russet rust sable sand sapphire scarlet
    sepia silver slate snow steel tan teal topaz turquoise umber vermilion white wine yellow copper charcoal
"""
_OBJECTS = """
    lamp chair table clock basket bottle brush bucket button camera carpet chest compass cradle crown cup
    curtain desk door engine fan fence fork frame funnel gate globe glove hat helmet hinge hook
    jar key kite knife lantern lever lock magnet map mask medal mug nail oar paddle pen
    pillow plate pump purse ring rope ruler scarf shovel spoon stool sword tent towel trumpet wheel
"""
_NUMBERS = tuple(str(number) for number in range(10, 10 + VALUES_PER_POSITION))

KEYS = tuple(_KEYS.split())
VALUES = (tuple(_MOODS.split()), tuple(_SHADES.split()), tuple(_OBJECTS.split()), _NUMBERS)
"""The words of each of the four answer positions."""


def word_contents() -> tuple[str, ...]:
    """Return the written form of every id below :data:`FIRST_BYTE`, in id order."""
    markers = ("bos", "eos", "fact", "ask", "reserved4", "reserved5", "reserved6", "reserved7")
    return tuple(f"<{word}>" for word in (*markers, *KEYS, *(word for words in VALUES for word in words)))


def key_id(key: int) -> int:
    """Return the token id of the key with index ``key``."""
    return FIRST_KEY + key


def value_id(position: int, value: int) -> int:
    """Return the token id of value ``value`` at answer position ``position`` (both from 0)."""
    return FIRST_VALUE + position * VALUES_PER_POSITION + value


def byte_ids(text: bytes) -> tuple[int, ...]:
    """Return one token id per byte of ``text``."""
    return tuple(FIRST_BYTE + byte for byte in text)


def to_text(token_ids: Iterable[int]) -> str:
    """Return the readable form of ``token_ids``; reserved padding ids read as nothing.

    Bytes that are not valid UTF-8 become the replacement character, as in any byte-level decoder.
    """
    pieces = (_WORD_BYTES[token] if token < FIRST_BYTE else _byte(token) for token in token_ids)
    return b"".join(pieces).decode("utf-8", errors="replace")


def _byte(token: int) -> bytes:
    byte = token - FIRST_BYTE
    return bytes((byte,)) if byte < 256 else b""


_WORD_BYTES = tuple(content.encode("ascii") for content in word_contents())
