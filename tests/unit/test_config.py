import dataclasses
from collections.abc import Mapping

import pytest

from kvply.config import KvppConfig, PayloadKind, TransportKind
from kvply.errors import ConfigError


def test_nothing_written_means_off_with_defaults() -> None:
    assert KvppConfig.from_mapping({}) == KvppConfig(
        enable_kvpp=False,
        kvpp_payload=PayloadKind.AUTO,
        kvpp_transport=TransportKind.AUTO,
        kvpp_timeout_s=120.0,
    )


def test_every_key_is_read() -> None:
    written = {
        "enable_kvpp": True,
        "kvpp_payload": "full",
        "kvpp_transport": "shm",
        "kvpp_timeout_s": 7,
    }
    config = KvppConfig.from_mapping(written)
    assert dataclasses.asdict(config) == written
    assert isinstance(config.kvpp_timeout_s, float)


def test_config_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        KvppConfig().enable_kvpp = True  # type: ignore[misc]


@pytest.mark.parametrize("text", ["true", "True", " TRUE ", "1", "yes", "On"])
def test_words_for_true(text: str) -> None:
    assert KvppConfig.from_mapping({"enable_kvpp": text}).enable_kvpp is True


@pytest.mark.parametrize("text", ["false", "False", " FALSE ", "0", "no", "Off"])
def test_words_for_false(text: str) -> None:
    assert KvppConfig.from_mapping({"enable_kvpp": text}).enable_kvpp is False


@pytest.mark.parametrize("kind", PayloadKind)
def test_payload_ignores_case_and_blanks(kind: PayloadKind) -> None:
    assert KvppConfig.from_mapping({"kvpp_payload": f" {kind.value.upper()} "}).kvpp_payload is kind


@pytest.mark.parametrize("kind", TransportKind)
def test_transport_ignores_case_and_blanks(kind: TransportKind) -> None:
    assert KvppConfig.from_mapping({"kvpp_transport": f" {kind.value.upper()} "}).kvpp_transport is kind


@pytest.mark.parametrize(
    ("key", "value", "remedy"),
    [
        *(("enable_kvpp", value, "true or false") for value in ("", "maybe", 1, 0, 1.0, None, [], {})),
        *(("kvpp_payload", value, "auto, full, active") for value in ("", "fulll", 1, True, None, ["full"])),
        *(("kvpp_transport", value, "auto, collective, shm") for value in ("", "nccl", 0, False, None)),
        *(
            ("kvpp_timeout_s", value, "positive number of seconds")
            for value in (0, -1, -0.5, True, "30", None, [3], float("nan"), float("inf"), float("-inf"))
        ),
        pytest.param("kvpp_timeout_s", 10**400, "positive number of seconds", id="beyond-float"),
    ],
)
def test_malformed_value_names_key_remedy_and_value(key: str, value: object, remedy: str) -> None:
    with pytest.raises(ConfigError) as caught:
        KvppConfig.from_mapping({key: value})
    assert key in str(caught.value)
    assert remedy in str(caught.value)
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize(
    ("typo", "nearest"),
    [
        ("kvpp_paylod", "kvpp_payload"),
        ("KVPP_PAYLOAD", "kvpp_payload"),
        ("kvpp-transport", "kvpp_transport"),
        ("kvpp_timeout", "kvpp_timeout_s"),
        ("enable-kvpp", "enable_kvpp"),
        ("ENABLE_KVPP", "enable_kvpp"),
        ("enabled_kvpp", "enable_kvpp"),
        ("kvpp", "enable_kvpp"),
    ],
)
def test_unknown_key_of_ours_is_an_error_with_the_nearest_known_name(typo: str, nearest: str) -> None:
    with pytest.raises(ConfigError, match=f"{typo!r}.*did you mean {nearest!r}"):
        KvppConfig.from_mapping({typo: True})


@pytest.mark.parametrize(
    "others",
    [{"ascend_scheduler_config": {"enabled": True}}, {"payload": "full"}, {"timeout_s": -1, "": None}],
)
def test_keys_of_other_plugins_are_none_of_ours(others: Mapping[str, object]) -> None:
    assert KvppConfig.from_mapping({**others, "enable_kvpp": True}) == KvppConfig(enable_kvpp=True)


@pytest.mark.parametrize("slip", ["enable_kvp", "enable_kvvp", "Enable-KVPP", "kvp_payload", "kvpptimeout_s"])
def test_a_slip_of_the_keyboard_is_refused_not_ignored(slip: str) -> None:
    with pytest.raises(ConfigError, match="did you mean"):
        KvppConfig.from_mapping({slip: True})
