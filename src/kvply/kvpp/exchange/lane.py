"""What a device with streams must offer to carry transfers beside compute.

A lane is one rank's pair of streams: the compute stream, which runs the model, and one transfer stream. Each
is in order by itself; between them only events order anything. No method blocks the calling thread.
"""

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

import torch

from kvply.kvpp.payload import Ranges

E = TypeVar("E")


class Lane(ABC, Generic[E]):
    """`E` is the lane's event: it has passed once everything given to its stream before it has finished.

    Tensors handed to the transfer stream must outlive the work on it; `close` is the end of that.
    """

    keeps_time: bool = False
    """Whether `elapsed_s` works; without it no events are spent on measuring."""

    @abstractmethod
    def record_compute(self) -> E:
        """An event after all that the compute stream has been given so far."""

    @abstractmethod
    def record_transfer(self) -> E:
        """An event after all that the transfer stream has been given so far."""

    @abstractmethod
    def compute_waits(self, event: E) -> None:
        """Work given to the compute stream from now on starts after `event`."""

    @abstractmethod
    def transfer_waits(self, event: E) -> None:
        """Work given to the transfer stream from now on starts after `event`."""

    @abstractmethod
    def broadcast(self, data: torch.Tensor, owner: int) -> None:
        """On the transfer stream: send `data` of group rank `owner` into `data` of all others.

        Collective: all ranks give the same sizes and owners in the same order. On the owner it has finished
        once `data` is no longer read, on the others once `data` is complete; it says nothing about peers.

        Raises RuntimeError if the transport already knows that a peer is gone.
        """

    @abstractmethod
    def pack(self, buffer: torch.Tensor, ranges: Ranges, staged: torch.Tensor) -> None:
        """On the transfer stream: gather `ranges` of `buffer` into `staged`."""

    @abstractmethod
    def unpack(self, staged: torch.Tensor, ranges: Ranges, buffer: torch.Tensor) -> None:
        """On the transfer stream: scatter `staged` into `ranges` of `buffer`."""

    @abstractmethod
    def close(self) -> None:
        """Let the transfer stream finish, within a bound, and release it. Idempotent; safe after a failure."""

    def elapsed_s(self, begin: E, end: E) -> float | None:
        """Seconds from `begin` to `end` (negative if the other way round); None until both have passed."""
        raise NotImplementedError(f"{type(self).__name__} keeps no time for {begin} and {end}")
