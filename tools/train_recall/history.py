"""Damage to a cached history, and how far an answer notices it."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional
from transformers import DeepseekV3ForCausalLM, DynamicCache

from kvply.testing.recall import ANSWER_TOKENS, QUESTION_TOKENS, RecallPrompt

BLOCK_TOKENS = 16

History = list[tuple[Tensor, Tensor]]
"""Each layer's cached latents and rope keys, both ``[rows, 1, tokens, width]``."""

Damage = Callable[[History, int, slice, torch.Generator], tuple[Tensor, Tensor]]
"""Returns what replaces the block at a slice of a layer's history."""


def noise(history: History, layer: int, block: slice, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Random values with the root mean square of the layer's own latents and rope keys."""
    latents, rope_keys = (_noise_like(cached, block, generator) for cached in history[layer])
    return latents, rope_keys


def zeros(history: History, layer: int, block: slice, _: torch.Generator) -> tuple[Tensor, Tensor]:
    """A block that was never written."""
    latents, rope_keys = history[layer]
    return torch.zeros_like(latents[:, :, block]), torch.zeros_like(rope_keys[:, :, block])


def next_layer(history: History, layer: int, block: slice, _: torch.Generator) -> tuple[Tensor, Tensor]:
    """The same block of the next layer (the first one after the last)."""
    latents, rope_keys = history[(layer + 1) % len(history)]
    return latents[:, :, block], rope_keys[:, :, block]


def moved(history: History, layer: int, block: slice, _: torch.Generator) -> tuple[Tensor, Tensor]:
    """The layer's own block one block further on."""
    latents, rope_keys = history[layer]
    after = slice(block.stop, block.stop + BLOCK_TOKENS)
    return latents[:, :, after], rope_keys[:, :, after]


DAMAGES: dict[str, Damage] = {"noise": noise, "zeros": zeros, "next layer": next_layer, "moved": moved}


@torch.no_grad()
def cached_history(model: DeepseekV3ForCausalLM, prompt: RecallPrompt) -> History:
    """Return the history of ``prompt`` up to the question."""
    cache = DynamicCache(config=model.config)
    model.model(input_ids=torch.tensor([prompt.token_ids[:-QUESTION_TOKENS]]), past_key_values=cache)
    return [(layer.keys, layer.values) for layer in cache.layers]


def block_at(token: int) -> slice:
    """Return the aligned cache block that holds position ``token``."""
    start = token // BLOCK_TOKENS * BLOCK_TOKENS
    return slice(start, start + BLOCK_TOKENS)


def answer_logprobs(
    model: DeepseekV3ForCausalLM,
    prompt: RecallPrompt,
    history: History,
    block: slice,
    damages: Sequence[Damage],
    generator: torch.Generator,
) -> Tensor:
    """Return the answer's log probabilities ``[1 + layers, 4]``; row ``i`` reads a damaged layer ``i - 1``.

    Row 0 reads the intact history. Only the question and the answer read it: the history itself was
    computed before the damage, which is the hardest case to notice. ``damages`` has one per layer.
    """
    cache = DynamicCache(config=model.config)
    rows = 1 + len(history)
    for layer, cached in enumerate(history):
        latents, rope_keys = (tensor.repeat(rows, 1, 1, 1) for tensor in cached)
        new_latents, new_rope_keys = damages[layer](history, layer, block, generator)
        latents[1 + layer, :, block] = new_latents[0]
        rope_keys[1 + layer, :, block] = new_rope_keys[0]
        cache.update(latents, rope_keys, layer)
    tail = torch.tensor([[*prompt.token_ids[-QUESTION_TOKENS:], *prompt.question.values[:-1]]])
    hidden = model.model(input_ids=tail.expand(rows, -1), past_key_values=cache).last_hidden_state
    with torch.autocast("cpu", enabled=False):
        logits = functional.linear(hidden[:, -ANSWER_TOKENS:].float(), model.lm_head.weight.float())
    answer = torch.tensor(prompt.question.values).expand(rows, -1)
    return logits.log_softmax(-1).gather(2, answer[:, :, None])[:, :, 0]


def _noise_like(cached: Tensor, block: slice, generator: torch.Generator) -> Tensor:
    scale = cached.float().square().mean().sqrt()
    return (torch.randn(cached[:, :, block].shape, generator=generator) * scale).to(cached.dtype)
