"""The exchange contract: carry one layer's history from its owner to the group.

An exchange is to KVPP what a stream of transfers is to a device: `start` returns at once, `wait` orders the
caller's compute after the transfer. All ranks of a group must start the same transfers in the same order.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch

from kvply.kvpp.payload import Payload, Ranges, total_bytes


@dataclass(frozen=True, slots=True)
class Transfer:
    """One broadcast, as one rank sees it.

    step, ordinal, layer: for error messages and ordering.
    owner: rank in the group whose `buffer` is the source.
    buffer: this rank's bytes of the bundle. Shape: [bundle bytes], uint8. The owner must not write to it, and
        nobody may use it, between `start` and `wait`.
    """

    step: int
    ordinal: int
    layer: int
    owner: int
    buffer: torch.Tensor
    payload: Payload


@dataclass(frozen=True, slots=True)
class WaitReport:
    """Seconds the caller stood still in `wait`, and seconds the transfer took in all.

    A device's clock is read late, so its report may be of earlier transfers; sums are right.
    """

    exposed_s: float
    transfer_s: float


class Ticket:
    """Handle of a started transfer; opaque to the runtime."""

    __slots__ = ("transfer",)

    def __init__(self, transfer: Transfer) -> None:
        self.transfer = transfer


class Exchange(ABC):
    """One rank's end of a transport. Used from the thread that runs the model, unless stated otherwise.

    rank: of this end, in the group of `group_size` ranks.
    """

    rank: int
    group_size: int

    @abstractmethod
    def start(self, transfer: Transfer) -> Ticket:
        """Begin the transfer after everything the compute stream has been given so far. Does not block.

        Raises PeerLostError, naming rank, peer, layer and step, if the transport knows already.
        """

    @abstractmethod
    def wait(self, ticket: Ticket) -> WaitReport:
        """Order compute after the transfer, on every rank, owner included.

        After `wait`, work given to the compute stream may read and write the buffer.

        Raises PeerLostError or ExchangeTimeoutError naming rank, peer, layer and step; both are final.
        """

    @abstractmethod
    def close(self) -> None:
        """Release threads and handles. Idempotent; safe after a failure."""

    def cost_bytes(self, ranges: Ranges) -> int:
        """What a transfer of `ranges` costs, in bytes of one long range; the same on all ranks.

        Transports that pay for every message override it, so that scattered blocks are not sent one by one
        where the whole bundle would be quicker.
        """
        return total_bytes(ranges)

    def describe(self, transfer: Transfer) -> str:
        """Rank, peers, layer and step, for error messages."""
        peers = [r for r in range(self.group_size) if r != transfer.owner]
        peer = f"receivers {peers}" if self.rank == transfer.owner else f"owner rank {transfer.owner}"
        return f"KVPP rank {self.rank} with {peer}, layer {transfer.layer}, step {transfer.step}"
