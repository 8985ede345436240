"""Which transport a group ends up with."""

import pytest

from kvply.config import TransportKind
from kvply.errors import UnsupportedError
from kvply.kvpp.exchange import shm
from kvply.kvpp.exchange.choose import choose_transport, host_identity

AUTO, SHM, COLLECTIVE = TransportKind.AUTO, TransportKind.SHM, TransportKind.COLLECTIVE


@pytest.fixture(autouse=True)
def shared_memory_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shm, "refuse_reason", lambda: None)


@pytest.mark.parametrize(
    ("wanted", "device", "hosts", "expected"),
    [
        (AUTO, "cpu", [1, 1], SHM),
        (SHM, "cpu", [1, 1], SHM),
        (COLLECTIVE, "cpu", [1, 1], COLLECTIVE),
        (AUTO, "cpu", [1, 2], COLLECTIVE),
        (AUTO, "cuda", [1, 1], COLLECTIVE),
    ],
)
def test_auto_takes_shared_memory_where_it_can_work(
    wanted: TransportKind, device: str, hosts: list[int], expected: TransportKind
) -> None:
    assert choose_transport(wanted, device, hosts) is expected


@pytest.mark.parametrize(
    ("device", "hosts", "reason"),
    [("cuda", [1, 1], "the cache lives on cuda"), ("cpu", [1, 2], "different hosts")],
)
def test_shared_memory_by_name_is_refused_where_it_cannot(device: str, hosts: list[int], reason: str) -> None:
    with pytest.raises(UnsupportedError, match=reason) as refusal:
        choose_transport(SHM, device, hosts)
    assert "set kvpp_transport to 'collective'" in str(refusal.value)


def test_a_machine_without_shared_memory_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shm, "refuse_reason", lambda: "no store order")
    assert choose_transport(AUTO, "cpu", [1, 1]) is COLLECTIVE
    with pytest.raises(UnsupportedError, match="no store order"):
        choose_transport(SHM, "cpu", [1, 1])


def test_host_identity_is_the_same_for_every_process_of_a_host() -> None:
    assert host_identity() == host_identity()
    assert 0 <= host_identity() < 1 << 63
