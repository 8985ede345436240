"""The training loop: a curriculum of growing lengths within a fixed time."""

import copy
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from transformers import DeepseekV3ForCausalLM

from kvply.testing.recall import vocabulary as words

from .batches import Answers, Filler, Shape, Tokens, draw_batch

CURRICULUM = (
    Shape(sequences=48, length_tokens=64, mean_gap_tokens=0.5),
    Shape(sequences=24, length_tokens=128, mean_gap_tokens=1),
    Shape(sequences=8, length_tokens=256, mean_gap_tokens=2),
    Shape(sequences=4, length_tokens=512, mean_gap_tokens=2),
    Shape(sequences=2, length_tokens=1024, mean_gap_tokens=3),
    Shape(sequences=1, length_tokens=2048, mean_gap_tokens=4),
    Shape(sequences=1, length_tokens=4096, mean_gap_tokens=8),
)

FIRST_VALUE_WEIGHT = 2.0
"""Weight of the first answer token: it alone needs the key, the other three follow the fact."""
WARMUP_STEPS = 40
SAVE_INTERVAL_S = 60.0
AVERAGE_DECAY = 0.95
MIN_STEPS_PER_STAGE = 30
EARLIER_STAGE_SHARE = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What one training run may use and when it moves on.

    With ``label_smoothing`` answers never become so certain that their log probabilities hide small
    differences.
    """

    seconds: float
    learning_rate: float
    first_stage: int
    pass_accuracy: float = 0.955
    decay_share: float = 0.35
    label_smoothing: float = 0.0
    seed: int = 0


@dataclass(slots=True)
class RunningAccuracy:
    """Exponential mean of the answer-token accuracy in the current stage, without start-up bias."""

    steps: int = 0
    _sum: float = field(default=0.0)

    def add(self, accuracy: float) -> None:
        self.steps += 1
        self._sum = AVERAGE_DECAY * self._sum + (1 - AVERAGE_DECAY) * accuracy

    @property
    def mean(self) -> float:
        return self._sum / (1 - AVERAGE_DECAY**self.steps) if self.steps else 0.0

    def reaches(self, accuracy: float) -> bool:
        return self.steps >= MIN_STEPS_PER_STAGE and self.mean > accuracy


def train(
    model: DeepseekV3ForCausalLM,
    settings: Settings,
    checkpoint: Path,
    *,
    frozen: Sequence[torch.nn.Parameter] = (),
    unfreeze_accuracy: float = 0.9,
) -> None:
    """Train ``model`` for ``settings.seconds`` and leave it, in bfloat16, in ``checkpoint``.

    ``frozen`` parameters stay fixed until the first stage reaches ``unfreeze_accuracy``.
    """
    rng, filler = np.random.default_rng(settings.seed), Filler()
    optimizer = _optimizer(model, settings.learning_rate)
    stage, accuracy = settings.first_stage, RunningAccuracy()
    _set_trainable(frozen, trainable=False)
    start = saved = time.monotonic()
    step = 0
    while (elapsed := time.monotonic() - start) < settings.seconds:
        for group in optimizer.param_groups:
            group["lr"] = _learning_rate(settings, step, elapsed)
        drawn = stage if rng.random() >= EARLIER_STAGE_SHARE else int(rng.integers(0, stage + 1))
        loss, step_accuracy = _answer_loss(
            model, draw_batch(rng, filler, CURRICULUM[drawn]), settings.label_smoothing
        )
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step += 1
        if drawn == stage:
            accuracy.add(step_accuracy)
        if step % 10 == 0:
            print(
                f"{elapsed:.0f} s, step {step}, length {CURRICULUM[stage].length_tokens}:"
                f" loss {loss.item():.3f}, accuracy {accuracy.mean:.3f}",
                flush=True,
            )
        if frozen and accuracy.reaches(unfreeze_accuracy):
            print(f"{elapsed:.0f} s: all parameters are free", flush=True)
            _set_trainable(frozen, trainable=True)
            frozen = ()
        if accuracy.reaches(settings.pass_accuracy) and stage < len(CURRICULUM) - 1:
            stage, accuracy = stage + 1, RunningAccuracy()
            print(f"{elapsed:.0f} s: length {CURRICULUM[stage].length_tokens}", flush=True)
        if time.monotonic() - saved > SAVE_INTERVAL_S:
            save(model, checkpoint)
            saved = time.monotonic()
    save(model, checkpoint)


def save(model: DeepseekV3ForCausalLM, checkpoint: Path) -> None:
    """Write ``model`` in bfloat16, the precision it is served in; training goes on in float32."""
    served = copy.deepcopy(model).to(torch.bfloat16)
    served.save_pretrained(checkpoint)
    checkpoint.joinpath("model.safetensors").chmod(0o644)


def _optimizer(model: DeepseekV3ForCausalLM, learning_rate: float) -> torch.optim.AdamW:
    matrices = [weight for weight in model.parameters() if weight.dim() > 1]
    scales = [weight for weight in model.parameters() if weight.dim() == 1]
    groups = [{"params": matrices, "weight_decay": 0.01}, {"params": scales, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.98), fused=True)


def _learning_rate(settings: Settings, step: int, elapsed_s: float) -> float:
    """Warm up over steps, then hold, then decay linearly to 2 % over the last share of the time."""
    left = (1 - elapsed_s / settings.seconds) / settings.decay_share
    return settings.learning_rate * min(1.0, (step + 1) / WARMUP_STEPS) * min(1.0, max(0.02, left))


def _answer_loss(
    model: DeepseekV3ForCausalLM, batch: tuple[Tokens, Answers], label_smoothing: float
) -> tuple[Tensor, float]:
    tokens, is_answer = batch
    ids, answers = torch.from_numpy(tokens), torch.from_numpy(is_answer)[:, 1:]
    wanted = ids[:, 1:][answers]
    with torch.autocast("cpu", torch.bfloat16):
        hidden = model.model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state
        logits = model.lm_head(hidden[answers]).float()
    is_first = wanted < words.FIRST_VALUE + words.VALUES_PER_POSITION
    weights = torch.where(is_first, FIRST_VALUE_WEIGHT, 1.0)
    losses = functional.cross_entropy(logits, wanted, reduction="none", label_smoothing=label_smoothing)
    accuracy = (logits.argmax(-1) == wanted).float().mean().item()
    return (losses * weights).sum() / weights.sum(), accuracy


def _set_trainable(parameters: Sequence[torch.nn.Parameter], *, trainable: bool) -> None:
    for parameter in parameters:
        parameter.requires_grad_(trainable)
