"""The tokenizer files: bytes without merges, plus one word in angle brackets per fact token."""

from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from kvply.testing.recall import vocabulary as words


def _byte_letters() -> dict[int, str]:
    """Return the letter that byte-level tokenizers write for each byte.

    Printable Latin-1 stands for itself; the other bytes take letters from U+0100 on, in order.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {byte: chr(byte) for byte in printable}
    return letters | {byte: chr(0x100 + index) for index, byte in enumerate(others)}


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Return the tokenizer; it puts ``<bos>`` first and reads every other byte as one token."""
    contents = list(words.word_contents())
    padding = [f"<reserved{token}>" for token in range(words.FIRST_BYTE + 256, words.VOCABULARY_SIZE)]
    ids = {content: token for token, content in enumerate(contents)}
    ids |= {letter: words.FIRST_BYTE + byte for byte, letter in _byte_letters().items()}
    ids |= {content: words.FIRST_BYTE + 256 + index for index, content in enumerate(padding)}

    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(contents[token], special=True) for token in (words.BOS, words.EOS)])
    # Not special: facts and answers must survive decoding with skip_special_tokens.
    tokenizer.add_tokens([AddedToken(content, normalized=False) for content in (*contents[2:], *padding)])
    bos = contents[words.BOS]
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{bos} $A", special_tokens=[(bos, words.BOS)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=bos,
        eos_token=contents[words.EOS],
        clean_up_tokenization_spaces=False,
        model_max_length=8192,
    )


def write_tokenizer(directory: Path) -> None:
    """Write ``tokenizer.json`` and ``tokenizer_config.json`` into ``directory``."""
    build_tokenizer().save_pretrained(directory)
