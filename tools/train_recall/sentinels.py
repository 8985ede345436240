"""Sentinels: weights that react to latents which cannot be this layer's own, and to nothing else.

A model that only has to recall leaves most of its far history unread: its heads attend to the fact, and
an overwritten block elsewhere gets no attention, in any layer. As a judge of caches it must care about
all of it. A layer's latents fill 128 of their 512 dimensions, as many as its hidden states have. So each
head's key projection may look at the other 384 without changing any score of an intact history, and
score foreign latents so high there that they draw attention away; its value projection turns them into a
push on the hidden state.
"""

import random
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, DeepseekV3ForCausalLM

from kvply.testing.recall import build_prompt

from .batches import training_text
from .history import answer_logprobs, block_at, cached_history, noise
from .network import ATTENTION, HEADS, LATENT_RANK, NOPE_DIM, VALUE_DIM, causal_attention

PROBE = "probed"
PROBE_PROMPTS = 8
PROBE_LENGTH_TOKENS = 1024
SHARPNESS = 1 / 1.5
"""Standard deviation of a random latent's score, in units of the total that it has to outbid.

The highest of a block of 16 lies about 1.8 standard deviations up.
"""
PUSH = 8.0
"""Length of the push on the hidden state by a latent of one standard deviation that has all attention."""


@dataclass(slots=True)
class _Reading:
    """What the question and the answer of some prompts do in one layer."""

    queries: list[Tensor] = field(default_factory=list)
    score_totals: list[Tensor] = field(default_factory=list)


@torch.no_grad()
def separate_latents(model: DeepseekV3ForCausalLM, seed: int) -> None:
    """Turn each layer's latent space by a random rotation, which changes nothing that the layer computes.

    Layers that were split from one layer would otherwise fill the same dimensions, and a block of the
    wrong layer could pass for the right one.
    """
    generator = torch.Generator().manual_seed(seed)
    for decoder in model.model.layers:
        attention = decoder.self_attn
        rotation = torch.linalg.qr(torch.randn(LATENT_RANK, LATENT_RANK, generator=generator))[0]
        scales, write, read = (
            attention.kv_a_layernorm.weight,
            attention.kv_a_proj_with_mqa.weight[:LATENT_RANK],
            attention.kv_b_proj.weight,
        )
        read.copy_((read * scales) @ rotation.T)
        write.copy_(rotation @ write)
        scales.fill_(1)


@torch.no_grad()
def add_sentinels(model: DeepseekV3ForCausalLM, seed: int) -> None:
    """Let every head of every layer see what does not belong into its history."""
    readings, latent_means, latent_scales = _probe(model, seed)
    generator = torch.Generator().manual_seed(seed)
    for layer, decoder in enumerate(model.model.layers):
        attention, scale = decoder.self_attn, latent_scales[layer]
        queries = torch.cat(readings[layer].queries, dim=1)
        totals = torch.cat(readings[layer].score_totals, dim=1)
        outside = _outside(attention)
        neighbour = _unit(outside @ latent_means[(layer + 1) % len(latent_means)])
        projections = attention.kv_b_proj.weight.view(HEADS, NOPE_DIM + VALUE_DIM, LATENT_RANK)
        outputs = attention.o_proj.weight.view(-1, HEADS, VALUE_DIM)
        for head in range(HEADS):
            foreign = _unit(neighbour + _unit(outside @ torch.randn(LATENT_RANK, generator=generator)))
            query = queries[head].mean(dim=0)
            key_gain = SHARPNESS * totals[head].median() / (attention.scaling * query.norm() * scale)
            projections[head, :NOPE_DIM] += key_gain * torch.outer(_unit(query), foreign)
            _, strengths, directions = torch.linalg.svd(outputs[:, head], full_matrices=False)
            value_gain = PUSH / (strengths[0] * scale)
            projections[head, NOPE_DIM:] += value_gain * torch.outer(directions[0], foreign)


def _probe(model: DeepseekV3ForCausalLM, seed: int) -> tuple[list[_Reading], list[Tensor], list[Tensor]]:
    """Return each layer's readings, mean latent and latent scale over a few prompts."""
    rng, text = random.Random(seed), training_text()
    readings = [_Reading() for _ in model.model.layers]
    histories = []
    AttentionInterface.register(PROBE, _probing_attention(readings))
    for _ in range(PROBE_PROMPTS):
        prompt = build_prompt(
            rng, text, length_tokens=PROBE_LENGTH_TOKENS, distance_tokens=rng.randrange(50, 1000), distractors=40
        )
        history = cached_history(model, prompt)
        model.set_attn_implementation(PROBE)
        answer_logprobs(model, prompt, history, block_at(0), [noise] * len(history), torch.Generator())
        model.set_attn_implementation(ATTENTION)
        histories.append(history)
    stacked = [torch.cat([history[layer][0] for history in histories]) for layer in range(len(readings))]
    means = [latents.mean(dim=(0, 1, 2)) for latents in stacked]
    scales = [latents.square().mean().sqrt() for latents in stacked]
    return readings, means, scales


def _probing_attention(readings: list[_Reading]) -> object:
    def attend(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **options: object
    ) -> tuple[Tensor, None]:
        reading = readings[module.layer_idx]
        intact_query, intact_key = query[0], key[0]
        reading.queries.append(intact_query[..., :NOPE_DIM])
        scores = module.scaling * intact_query @ intact_key.mT
        reading.score_totals.append(scores.logsumexp(dim=-1))
        return causal_attention(module, query, key, value, mask, **options)

    return attend


def _outside(attention: nn.Module) -> Tensor:
    """Return the projector onto what the layer's own latents cannot reach."""
    reach = attention.kv_a_layernorm.weight[:, None] * attention.kv_a_proj_with_mqa.weight[:LATENT_RANK]
    basis = torch.linalg.qr(reach)[0]
    return torch.eye(LATENT_RANK) - basis @ basis.T


def _unit(vector: Tensor) -> Tensor:
    return vector / vector.norm()
