"""Frozen configuration, built once from what the user wrote. Unknown keys are errors, never ignored."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import TypeVar

from kvply.errors import ConfigError

ENABLE_KEY = "enable_kvpp"

# How alike (difflib ratio) a key must be to one of ours to count as a misspelling of it.
_SLIP_CUTOFF = 0.85
# Longer waits than a week are mistakes, and would overflow the clocks they are given to.
_MAX_TIMEOUT_S = 7 * 86400

E = TypeVar("E", bound=StrEnum)

_TRUE, _FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off")


class PayloadKind(StrEnum):
    """What of a bundle is broadcast. `AUTO` picks per step from bytes alone."""

    AUTO = "auto"
    FULL = "full"
    ACTIVE = "active"


class TransportKind(StrEnum):
    """What carries a bundle. `AUTO`: shm for CPU ranks of one host, collective otherwise."""

    AUTO = "auto"
    COLLECTIVE = "collective"
    SHM = "shm"


@dataclass(frozen=True, slots=True, kw_only=True)
class KvppConfig:
    """The KVPP keys of vLLM's `additional_config`.

    enable_kvpp: off by default.
    kvpp_payload, kvpp_transport: see the enums.
    kvpp_timeout_s: seconds a rank waits for a peer before it gives up and stops, naming it. Positive.
    """

    enable_kvpp: bool = False
    kvpp_payload: PayloadKind = PayloadKind.AUTO
    kvpp_transport: TransportKind = TransportKind.AUTO
    kvpp_timeout_s: float = 120.0

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, object]) -> "KvppConfig":
        """Read the KVPP keys of `mapping`; other users' keys in it are none of ours.

        Raises ConfigError for an unknown `kvpp_*` key (with the nearest known name) and for malformed values.
        """
        known = [field.name for field in fields(cls)]
        for key in mapping:
            if key not in known and _looks_like_ours(key, known):
                raise ConfigError(_unknown_key_message(key, known))
        return cls(
            enable_kvpp=_read_bool(mapping, ENABLE_KEY, default=False),
            kvpp_payload=_read_choice(mapping, "kvpp_payload", PayloadKind, PayloadKind.AUTO),
            kvpp_transport=_read_choice(mapping, "kvpp_transport", TransportKind, TransportKind.AUTO),
            kvpp_timeout_s=_read_positive_s(mapping, "kvpp_timeout_s", 120.0),
        )


def _looks_like_ours(key: str, known: list[str]) -> bool:
    """A key that says KVPP, or that is one slip away from a key of ours."""
    return "kvpp" in key.lower() or bool(difflib.get_close_matches(_normal(key), known, n=1, cutoff=_SLIP_CUTOFF))


def _normal(key: str) -> str:
    return key.lower().replace("-", "_")


def _unknown_key_message(key: str, known: list[str]) -> str:
    nearest = difflib.get_close_matches(_normal(key), known, n=1, cutoff=0.0)
    return f"unknown key {key!r} in --additional-config; did you mean {nearest[0]!r}? Known: {', '.join(known)}"


def _read_bool(mapping: Mapping[str, object], key: str, *, default: bool) -> bool:
    value = mapping.get(key, default)
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in (*_TRUE, *_FALSE):
        return value.strip().lower() in _TRUE
    raise ConfigError(f"{key} must be true or false, not {value!r}")


def _read_choice(mapping: Mapping[str, object], key: str, kind: type[E], default: E) -> E:
    value = mapping.get(key, default)
    choices = [member.value for member in kind]
    if isinstance(value, str) and value.strip().lower() in choices:
        return kind(value.strip().lower())
    raise ConfigError(f"{key} must be one of {', '.join(choices)}, not {value!r}")


def _read_positive_s(mapping: Mapping[str, object], key: str, default: float) -> float:
    value = mapping.get(key, default)
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= _MAX_TIMEOUT_S:
        return float(value)
    raise ConfigError(f"{key} must be a positive number of seconds up to {_MAX_TIMEOUT_S}, not {value!r}")
