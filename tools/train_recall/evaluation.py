"""Figures of a trained model, in bfloat16: exact recall, and how much each layer's history matters."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import DeepseekV3ForCausalLM

from kvply.testing.recall import ANSWER_TOKENS, RecallPrompt, build_prompt, without_fact

from .history import Damage, answer_logprobs, block_at, cached_history

RECALL_CASES = ((1024, 500), (2048, 1000), (4096, 2000), (4096, 3000), (4096, 3900))
"""Prompt length and fact distance, in tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """Change of an answer's log probabilities when one block of one layer's cache is overwritten.

    The figure of a prompt is the largest absolute change among its four answer tokens.
    """

    smallest: float
    median: float


def draw_prompts(
    text: bytes, count: int, *, length_tokens: int, distance_tokens: int, seed: int
) -> list[RecallPrompt]:
    """Return ``count`` prompts with as many distractor facts as leave half of the prompt to the text."""
    distractors = min(120, length_tokens // 12)
    rng = random.Random(seed)
    return [
        build_prompt(
            rng, text, length_tokens=length_tokens, distance_tokens=distance_tokens, distractors=distractors
        )
        for _ in range(count)
    ]


def exact_recall(model: DeepseekV3ForCausalLM, prompts: list[RecallPrompt]) -> float:
    """Return the share of prompts whose four tokens are all the most probable ones.

    The right answer is fed, which is what greedy decoding feeds as long as it is right.
    """
    exact = [bool((_predicted(model, prompt) == torch.tensor(prompt.question.values)).all()) for prompt in prompts]
    return sum(exact) / len(exact)


def exact_recall_without_fact(model: DeepseekV3ForCausalLM, prompts: list[RecallPrompt]) -> float:
    """Return :func:`exact_recall` with the asked fact blanked out."""
    return exact_recall(model, [without_fact(prompt) for prompt in prompts])


@torch.no_grad()
def history_effects(
    model: DeepseekV3ForCausalLM, prompts: list[RecallPrompt], damage: Damage, *, on_fact: bool
) -> Iterator[Effect]:
    """Yield, layer by layer, the effect of overwriting one block of the layer's cache.

    The block covers the fact's first token, or lies in the middle between fact and question.
    """
    generator = torch.Generator().manual_seed(0)
    damages = [damage] * model.config.num_hidden_layers
    changes = []
    for prompt in prompts:
        block = block_at(prompt.fact_start + (0 if on_fact else prompt.distance_tokens // 2))
        logprobs = answer_logprobs(model, prompt, cached_history(model, prompt), block, damages, generator)
        changes.append((logprobs[1:] - logprobs[:1]).abs().amax(dim=1))
    for layer in torch.stack(changes, dim=1):
        yield Effect(smallest=layer.min().item(), median=layer.median().item())


@torch.no_grad()
def _predicted(model: DeepseekV3ForCausalLM, prompt: RecallPrompt) -> Tensor:
    ids = torch.tensor([[*prompt.token_ids, *prompt.question.values[:-1]]])
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state[0, -ANSWER_TOKENS:]
    return model.lm_head(hidden).argmax(-1)
