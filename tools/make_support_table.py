"""Writes docs/support.md from the tests' own results.

    pytest tests/e2e tests/vllm --junitxml report.xml && python tools/make_support_table.py report.xml

Of several reports, the later ones have the last word on a refusal.

A row of the matrix is supported if every comparison of it passed; a refusal is listed with the message that its
test saw.
"""

import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs" / "support.md"
MATRIX = "test_kvpp_matrix"

NOT_RUN = (
    "CUDA, ROCm: the same code path over streams, proved on a virtual device only",
    "NPU: vLLM-Ascend's worker class is not wired up and is refused",
    "CPUs other than x86-64: `collective` only, not run",
)

HEAD = """# What is supported

Made by `tools/make_support_table.py` from a test run; do not edit. Every row compares KVPP on with KVPP off at
the same layout: tokens and logprobs bit for bit, bytes moved counted, one spoiled block of any layer noticed.
"""


@dataclass(frozen=True)
class Case:
    """One test: module, name with parameters, outcome, recorded properties, why it was skipped."""

    module: str
    name: str
    outcome: str
    properties: dict[str, str]
    reason: str


def read_cases(report: Path) -> list[Case]:
    return [_case(element) for element in ET.parse(report).getroot().iter("testcase")]


def _case(element: ET.Element) -> Case:
    outcome, reason = "passed", ""
    for kind in ("failure", "error", "skipped"):
        found = element.find(kind)
        if found is not None:
            outcome, reason = kind, found.get("message", "")
    properties = {p.get("name", ""): p.get("value", "") for p in element.iter("property")}
    module = element.get("classname", "").rsplit(".", 1)[-1]
    return Case(module, element.get("name", ""), outcome, properties, reason)


def table(cases: list[Case]) -> str:
    refused = {case.properties["refused"]: case for case in cases if "refused" in case.properties}
    skipped = sorted({case.reason for case in cases if case.outcome == "skipped"})
    lines = [HEAD, "| row | compared | result |", "|---|---|---|", *_matrix_lines(cases), "", "## Refused", ""]
    lines += ["| what | message |", "|---|---|"]
    lines += [f"| {name} | {case.properties['message']} |" for name, case in refused.items()]
    lines += ["", "## Not run", "", *(f"- {text}" for text in NOT_RUN)]
    lines += [f"- in the run behind this page: {reason}" for reason in skipped]
    return "\n".join(lines) + "\n"


def _matrix_lines(cases: list[Case]) -> Iterator[str]:
    rows: dict[str, list[Case]] = {}
    for case in cases:
        row = case.properties.get("row")
        if row is not None:
            rows.setdefault(row, []).append(case)
    for row, found in rows.items():
        compared = sorted({case.properties["compared"] for case in found})
        bad = [case.name for case in found if case.outcome != "passed"]
        yield f"| {row} | {', '.join(compared)} | {'failed: ' + ', '.join(bad) if bad else 'equal'} |"


def main() -> int:
    if len(sys.argv) < 2:
        print(f"usage: {sys.argv[0]} REPORT.xml ...", file=sys.stderr)
        return 2
    cases = [case for report in sys.argv[1:] for case in read_cases(Path(report))]
    TARGET.write_text(table(cases), encoding="utf-8")
    print(f"wrote {TARGET}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
