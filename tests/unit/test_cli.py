"""The command line: what it prints, and that bad input gets one line and a non-zero status."""

import json
from pathlib import Path

import pytest

from kvply import cli

MODEL = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "num_hidden_layers": 8, "dtype": "bfloat16"}


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "config.json").write_text(json.dumps(MODEL))
    return str(tmp_path)


def test_plan_prints_the_ratio(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", model, "--tensor-parallel-size", "2"]) == 0
    assert "x1.33" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plan", "/nowhere", "-tp", "2"], "cannot read a model config"),
        (["plan", "MODEL", "-tp", "2", "--layers-per-stage", "4,x"], "must look like 38,40"),
        (["plan", "MODEL", "-tp", "2", "--layers-per-stage", "3,3"], "do not fit"),
        (["demo", "--num-questions", "0"], "at least 1"),
    ],
)
def test_bad_input_gets_one_line(
    model: str, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    status = cli.main([model if argument == "MODEL" else argument for argument in arguments])
    error = capsys.readouterr().err
    assert status == cli.EXIT_BAD_INPUT
    assert message in error
    assert error.count("\n") == 1


def test_unknown_commands_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["fly"])
    assert stop.value.code == 2
    assert "invalid choice" in capsys.readouterr().err
