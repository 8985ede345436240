"""Train the recall model from scratch: ``seed``, ``curriculum``, ``deepen``, ``evaluate``.

Run as ``PYTHONPATH=src:tools python -m train_recall STAGE ...``; README.md has the commands and times.
"""

import argparse
from pathlib import Path

import torch
from transformers import DeepseekV3ForCausalLM

from kvply.testing.recall import VOCABULARY_SIZE, default_text

from .evaluation import RECALL_CASES, draw_prompts, exact_recall, exact_recall_without_fact, history_effects
from .history import DAMAGES
from .network import ATTENTION, deepen, load, widen_vocabulary
from .seeding import build_seeded, seeded_parameters
from .sentinels import add_sentinels, separate_latents
from .text_tokenizer import write_tokenizer
from .training import CURRICULUM, Settings, save, train

LENGTHS_TOKENS = [shape.length_tokens for shape in CURRICULUM]


def main() -> None:
    """Run the stage named on the command line."""
    arguments = _parser().parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    arguments.run(arguments)


def run_seed(arguments: argparse.Namespace) -> None:
    """Write the hand-set three-layer start."""
    save(build_seeded(arguments.seed), arguments.out)


def run_curriculum(arguments: argparse.Namespace) -> None:
    """Train all lengths; what was set by hand stays fixed until the rest fits it."""
    model = load(arguments.source)
    train(model, _settings(arguments), arguments.out, frozen=seeded_parameters(model))


def run_deepen(arguments: argparse.Namespace) -> None:
    """Split the layers, train until recall is back, add sentinels, write the tokenizer."""
    model = load(arguments.source)
    if model.config.vocab_size < VOCABULARY_SIZE:
        model = widen_vocabulary(model)
    model = deepen(model, tuple(arguments.copies), noise=0.05)
    train(model, _settings(arguments, label_smoothing=0.1), arguments.out)
    separate_latents(model, arguments.seed)
    add_sentinels(model, arguments.seed)
    save(model, arguments.out)
    write_tokenizer(arguments.out)


def run_evaluate(arguments: argparse.Namespace) -> None:
    """Print exact recall by distance and the effect of damage by layer, in bfloat16 on the shipped text."""
    model = DeepseekV3ForCausalLM.from_pretrained(
        arguments.source, dtype=torch.bfloat16, attn_implementation=ATTENTION
    )
    for length_tokens, distance_tokens in RECALL_CASES:
        prompts = draw_prompts(
            default_text(),
            arguments.prompts,
            length_tokens=length_tokens,
            distance_tokens=distance_tokens,
            seed=arguments.seed,
        )
        exact, without = exact_recall(model, prompts), exact_recall_without_fact(model, prompts)
        print(
            f"length {length_tokens}, fact {distance_tokens} back, {len(prompts)} prompts:"
            f" exact {exact:.3f}, without the fact {without:.3f}",
            flush=True,
        )
    for length_tokens, distance_tokens in RECALL_CASES[-2:]:
        _print_effects(model, arguments, length_tokens, distance_tokens)


def _print_effects(
    model: DeepseekV3ForCausalLM, arguments: argparse.Namespace, length_tokens: int, distance_tokens: int
) -> None:
    prompts = draw_prompts(
        default_text(),
        arguments.damaged_prompts,
        length_tokens=length_tokens,
        distance_tokens=distance_tokens,
        seed=arguments.seed + 1,
    )
    print(f"length {length_tokens}, fact {distance_tokens} back: log probability change, smallest/median, by layer")
    for name, damage in DAMAGES.items():
        for place, on_fact in (("fact", True), ("text", False)):
            effects = history_effects(model, prompts, damage, on_fact=on_fact)
            figures = " ".join(f"{effect.smallest:.3f}/{effect.median:.3f}" for effect in effects)
            print(f"  {name} on the {place}: {figures}", flush=True)


def _settings(arguments: argparse.Namespace, label_smoothing: float = 0.0) -> Settings:
    return Settings(
        seconds=60 * arguments.minutes,
        learning_rate=arguments.learning_rate,
        first_stage=LENGTHS_TOKENS.index(arguments.first_length),
        label_smoothing=label_smoothing,
        seed=arguments.seed,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="train_recall", description=__doc__)
    stages = parser.add_subparsers(required=True, metavar="STAGE")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--threads", type=int, default=1)
    common.add_argument("--seed", type=int, default=0)

    seed = stages.add_parser("seed", parents=[common], help=run_seed.__doc__)
    seed.add_argument("out", type=Path)
    seed.set_defaults(run=run_seed)

    curriculum = _training_parser(stages, common, "curriculum", run_curriculum.__doc__, first_length=64)
    curriculum.set_defaults(run=run_curriculum)

    deepening = _training_parser(stages, common, "deepen", run_deepen.__doc__, first_length=256)
    deepening.add_argument("--copies", type=int, nargs=3, default=[1, 3, 4], help="layers made of each old one")
    deepening.set_defaults(run=run_deepen)

    evaluate = stages.add_parser("evaluate", parents=[common], help=run_evaluate.__doc__)
    evaluate.add_argument("source", type=Path)
    evaluate.add_argument("--prompts", type=int, default=64)
    evaluate.add_argument("--damaged-prompts", type=int, default=8)
    evaluate.set_defaults(run=run_evaluate)
    return parser


def _training_parser(
    stages: "argparse._SubParsersAction[argparse.ArgumentParser]",
    common: argparse.ArgumentParser,
    name: str,
    summary: str | None,
    first_length: int,
) -> argparse.ArgumentParser:
    parser = stages.add_parser(name, parents=[common], help=summary)
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--minutes", type=float, default=15)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--first-length", type=int, default=first_length, choices=LENGTHS_TOKENS)
    return parser


if __name__ == "__main__":
    main()
