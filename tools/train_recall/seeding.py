"""A hand-set start for three layers that already knows how to look facts up.

From random weights the model stays for long at answers of the right kind but the wrong value. So the two
steps of recall are written into the weights, roughly, and training only sharpens them:

* Layer 0, head ``h`` attends to the token ``h + 1`` places back, by rope alone, and notes which token it
  was in a part of the residual stream of its own.
* Layer 1, head ``h`` predicts answer token ``h``. It looks for the position whose note "``h + 1`` back"
  names the asked key and copies the token found there. The key itself is the current token for ``h = 0``
  and is read from the note "``h`` back" for later answer tokens.

``hidden[0]`` carries a constant, the only thing that layer 0 must see to attend by position.
"""

import torch
from torch import Tensor
from transformers import DeepseekV3ForCausalLM

from .network import HEADS, LATENT_RANK, NOPE_DIM, ROPE_DIM, SEED_LAYERS, VALUE_DIM, build_config

CONSTANT = 4.0
"""The constant of ``hidden[0]``, in units of the initial weights."""
POSITION_SHARPNESS = 2.5
POSITION_PAIRS = 8
"""The fastest rope pairs; they tell neighbouring positions apart."""
NOTE_GAIN = 0.1
COPY_GAIN = 0.1
LOOKUP_SHARPNESS = 2.3
HEAD_WIDTH = NOPE_DIM + ROPE_DIM


def build_seeded(seed: int) -> DeepseekV3ForCausalLM:
    """Return a three-layer model with the hand-set start."""
    torch.manual_seed(seed)
    model = DeepseekV3ForCausalLM(build_config(SEED_LAYERS))
    with torch.no_grad():
        _seed_embedding(model)
        _seed_positions(model)
        _seed_lookup(model)
        for layer, scale in enumerate((0.2, 0.2, 0.3)):
            model.model.layers[layer].mlp.down_proj.weight.mul_(scale)
        model.model.layers[2].self_attn.o_proj.weight.mul_(0.3)
    return model


def seeded_parameters(model: DeepseekV3ForCausalLM) -> list[torch.nn.Parameter]:
    """Return what must stay fixed until the rest of the model has adapted to it."""
    first, second = (model.model.layers[layer].self_attn for layer in (0, 1))
    lookup = [weight for name, weight in second.named_parameters() if not name.startswith("o_proj")]
    return [model.model.embed_tokens.weight, *first.parameters(), *lookup]


def _seed_embedding(model: DeepseekV3ForCausalLM) -> None:
    """Give all tokens random directions of equal length and the constant; answers are read the same way."""
    embedding, unit = model.model.embed_tokens.weight, model.config.initializer_range
    embedding[:, 0] = 0
    embedding.mul_(unit * model.config.hidden_size**0.5 / embedding.norm(dim=1, keepdim=True))
    embedding[:, 0] = CONSTANT * unit
    model.lm_head.weight.copy_(embedding)


def _seed_positions(model: DeepseekV3ForCausalLM) -> None:
    """Make head ``h`` of layer 0 attend ``h + 1`` places back: its query is the key, turned back by that."""
    attention = model.model.layers[0].self_attn
    frequencies = model.model.rotary_emb.inv_freq.float()[:POSITION_PAIRS]
    pairs = 2 * torch.arange(POSITION_PAIRS)

    rope_keys = attention.kv_a_proj_with_mqa.weight[LATENT_RANK:]
    rope_keys.mul_(0.2)
    rope_keys[pairs, 0] = POSITION_SHARPNESS
    rope_keys[pairs + 1, 0] = 0
    for head, query in enumerate(attention.q_proj.weight.view(HEADS, HEAD_WIDTH, -1)):
        query[:NOPE_DIM].mul_(0.06)
        query[NOPE_DIM:].mul_(0.3)
        angles = (head + 1) * frequencies
        query[NOPE_DIM + pairs, 0] = POSITION_SHARPNESS * angles.cos()
        query[NOPE_DIM + pairs + 1, 0] = -POSITION_SHARPNESS * angles.sin()


def _seed_lookup(model: DeepseekV3ForCausalLM) -> None:
    """Let layer 0 write notes and layer 1 look them up; each note has 32 dimensions of its own."""
    hidden = model.config.hidden_size
    identity = _without_constant(_orthogonal(VALUE_DIM, hidden))
    note_parts = _without_constant(_orthogonal(hidden, hidden).T).T
    copy_parts = _without_constant(_orthogonal(hidden, hidden))

    noting, looking = (model.model.layers[layer].self_attn for layer in (0, 1))
    latents = [_orthogonal(LATENT_RANK, hidden) for _ in (noting, looking)]
    for attention, latent in zip((noting, looking), latents, strict=True):
        attention.kv_a_proj_with_mqa.weight[:LATENT_RANK] = latent

    note_reads = noting.kv_b_proj.weight.view(HEADS, NOPE_DIM + VALUE_DIM, -1)
    look_reads = looking.kv_b_proj.weight.view(HEADS, NOPE_DIM + VALUE_DIM, -1)
    queries = looking.q_proj.weight.view(HEADS, HEAD_WIDTH, -1)
    for head in range(HEADS):
        part = slice(head * VALUE_DIM, (head + 1) * VALUE_DIM)
        note, copy = note_parts[:, part], copy_parts[part]
        asked = identity if head == 0 else note_parts[:, (head - 1) * VALUE_DIM : head * VALUE_DIM].T

        note_reads[head, NOPE_DIM:] = identity @ latents[0].T / 2
        noting.o_proj.weight[:, part] = NOTE_GAIN * note
        queries[head, :NOPE_DIM] = LOOKUP_SHARPNESS * asked
        queries[head, NOPE_DIM:] *= 0.1
        look_reads[head, :NOPE_DIM] = LOOKUP_SHARPNESS * (note.T @ latents[1].T) / 2
        look_reads[head, NOPE_DIM:] = copy @ latents[1].T / 2
        looking.o_proj.weight[:, part] = COPY_GAIN * copy.T


def _orthogonal(rows: int, columns: int) -> Tensor:
    """Return a random matrix with orthonormal columns, or rows where it has fewer rows than columns."""
    basis = torch.linalg.qr(torch.randn(max(rows, columns), min(rows, columns)))[0]
    return basis if rows >= columns else basis.T


def _without_constant(projection: Tensor) -> Tensor:
    """Return ``projection`` (``[parts, hidden]``) blind to the constant in ``hidden[0]``."""
    blind = projection.clone()
    blind[:, 0] = 0
    return blind
