"""What makes a comparison of KVPP on and off count."""

from collections.abc import Callable
from functools import cache
from typing import Any

from support.engines import EngineSetup, run_engine

PARITY_SCENARIOS = (
    "block_edges",
    "shared_prefixes",
    "mixed_batches",
    "prefix_aba",
    "long_prompt",
    "aborts",
    "preemption",
)


@cache
def _run(key: str) -> dict[str, Any]:
    return run_engine(_SETUPS[key])


_SETUPS: dict[str, EngineSetup] = {}


def outcome(setup: EngineSetup) -> dict[str, Any]:
    """Result of `setup`'s engine; each engine runs once per test session, however many tests look at it."""
    known = _SETUPS.setdefault(setup.name, setup)
    assert known == setup, f"two different engines are called {setup.name}"
    return _run(setup.name)


RecordProperty = Callable[[str, object], None]


def note(record_property: RecordProperty, row: str, compared: str) -> None:
    """What docs/support.md will say this test stands for."""
    record_property("row", row)
    record_property("compared", compared.replace("_", " "))


def assert_parity(off: dict[str, Any], on: dict[str, Any], scenario: str) -> None:
    """Tokens and logprobs are equal bit for bit, and history really moved between ranks."""
    assert off["num_blocks"] == on["num_blocks"], "different caches schedule differently; compare equal ones"
    expected, found = off["scenarios"][scenario], on["scenarios"][scenario]
    assert expected["requests"], "the scenario finished no request"
    assert found["requests"] == expected["requests"]
    assert found["bytes_sent"] > 0, "no byte of history was moved: this comparison proves nothing"


def assert_sensitive(off: dict[str, Any], on: dict[str, Any]) -> None:
    """Left alone, the request equals stock vLLM's; with one block of any one layer spoiled, it does not."""
    results, changed = on["scenarios"]["corrupted_layers"]["requests"], on["scenarios"]["corrupted_layers"]
    expected = off["scenarios"]["sensitivity_reference"]["requests"]["clean"]
    assert results["clean"] == expected
    layers = sorted(key for key in results if key != "clean")
    assert len(layers) == on["stats"][0]["num_layers"]
    for layer in layers:
        assert changed["bytes_changed"][layer] > 0, f"nothing was spoiled in layer {layer}"
        assert results[layer] != expected, f"spoiled history of layer {layer} went unnoticed"
