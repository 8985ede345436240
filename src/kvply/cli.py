"""The `kvply` command line. Bad input gets one line on stderr and exit status 2."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from kvply import __version__
from kvply.errors import ConfigError, KvplyError

EXIT_FAILED = 1
EXIT_BAD_INPUT = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand; returns the exit status."""
    arguments = _parser().parse_args(argv)
    try:
        status: int = arguments.run(arguments)
    except ConfigError as error:
        print(f"kvply: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    except KvplyError as error:
        print(f"kvply: {error}", file=sys.stderr)
        return EXIT_FAILED
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="kvply", description="A KV cache that lives by layer, for stock vLLM.")
    parser.add_argument("--version", action="version", version=f"kvply {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    plan = commands.add_parser("plan", help="predict the KV capacity of a model with and without KVPP")
    plan.add_argument("model", type=Path, help="model directory, or its config.json")
    plan.add_argument("-tp", "--tensor-parallel-size", type=int, required=True)
    plan.add_argument("-pcp", "--prefill-context-parallel-size", type=int, default=1)
    plan.add_argument("--layers-per-stage", help="pipeline split, for example 38,40 (default: one stage)")
    plan.add_argument("--mtp", action="store_true", help="count the model's MTP layers, which stay on every rank")
    plan.set_defaults(run=_plan)

    demo = commands.add_parser("demo", help="serve a small model on CPU with KVPP off, then on, and compare")
    demo.add_argument("--num-questions", type=int, default=8)
    demo.add_argument("--log-directory", type=Path, help="keep the engines' logs there")
    demo.set_defaults(run=_demo)

    doctor = commands.add_parser("doctor", help="say whether KVPP can run in this environment")
    doctor.set_defaults(run=_doctor)
    return parser


def _plan(arguments: argparse.Namespace) -> int:
    from kvply.planner.estimate import estimate
    from kvply.planner.model_facts import read_model
    from kvply.planner.report import estimate_lines

    facts = read_model(arguments.model)
    found = estimate(
        facts,
        group_size=arguments.tensor_parallel_size * arguments.prefill_context_parallel_size,
        layers_per_stage=_split(arguments.layers_per_stage),
        with_mtp=arguments.mtp,
    )
    print("\n".join(estimate_lines(facts, found)))
    return 0


def _split(text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise ConfigError(f"--layers-per-stage must look like 38,40, not {text!r}") from error


def _demo(arguments: argparse.Namespace) -> int:
    from kvply.demo.run import run_demo

    return run_demo(num_questions=arguments.num_questions, log_directory=arguments.log_directory)


def _doctor(_arguments: argparse.Namespace) -> int:
    from kvply.doctor import diagnose

    findings = diagnose()
    for finding in findings:
        print(finding.line())
    return EXIT_FAILED if any(finding.is_fatal for finding in findings) else 0
