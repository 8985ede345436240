"""The plan of one stage: bundles in execution order, their owners, and what each rank stores."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from kvply.errors import LayoutError
from kvply.layout.budget import RankBudget
from kvply.layout.bundle import Bundle
from kvply.layout.placement import contiguous_owners


@dataclass(frozen=True)
class StagePlan:
    """Same on every rank of the group; `fingerprint` proves it.

    bundles: target bundles, index = ordinal (rising layer index = execution order).
    owners: owner rank (in the group) per ordinal.
    local_bundles: MTP bundles, which every rank keeps for itself.
    """

    group_size: int
    bundles: tuple[Bundle, ...]
    owners: tuple[int, ...]
    local_bundles: tuple[Bundle, ...] = ()

    @classmethod
    def build(cls, group_size: int, targets: Sequence[Bundle], local: Sequence[Bundle] = ()) -> "StagePlan":
        """Raises LayoutError if there is no target layer or a layer appears twice."""
        bundles = tuple(sorted(targets, key=lambda b: b.layer))
        if not bundles:
            raise LayoutError("the stage has no target layer with a KV cache")
        layers = [b.layer for b in (*bundles, *local)]
        if len(set(layers)) != len(layers):
            raise LayoutError(f"a layer has more than one bundle: {sorted(layers)}")
        local_bundles = tuple(sorted(local, key=lambda b: b.layer))
        return cls(group_size, bundles, contiguous_owners(len(bundles), group_size), local_bundles)

    @property
    def num_layers(self) -> int:
        return len(self.bundles)

    @cached_property
    def largest_bytes_per_block(self) -> int:
        return max(bundle.bytes_per_block for bundle in self.bundles)

    def owned_ordinals(self, rank: int) -> tuple[int, ...]:
        return tuple(ordinal for ordinal, owner in enumerate(self.owners) if owner == rank)

    def budget(self, rank: int, *, has_staging: bool) -> RankBudget:
        """What `rank` pays per block."""
        targets = [bundle.bytes_per_block for bundle in self.bundles]
        local = sum(bundle.bytes_per_block for bundle in self.local_bundles)
        return RankBudget(
            owned_bytes_per_block=sum(targets[ordinal] for ordinal in self.owned_ordinals(rank)),
            local_bytes_per_block=local,
            largest_bytes_per_block=self.largest_bytes_per_block,
            logical_bytes_per_block=sum(targets) + local,
            has_staging=has_staging,
        )

    @cached_property
    def fingerprint(self) -> bytes:
        """SHA-256 over everything ranks must agree on."""
        facts = {
            "group_size": self.group_size,
            "owners": self.owners,
            "bundles": [_facts(bundle) for bundle in self.bundles],
            "local": [_facts(bundle) for bundle in self.local_bundles],
        }
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).digest()

    def describe(self, rank: int) -> str:
        """Layers of `rank` in words, e.g. `layers 0-3` or `no layer`."""
        layers = [self.bundles[ordinal].layer for ordinal in self.owned_ordinals(rank)]
        if not layers:
            return "no layer"
        return f"layer {layers[0]}" if len(layers) == 1 else f"layers {layers[0]}-{layers[-1]}"


def _facts(bundle: Bundle) -> list[object]:
    return [bundle.layer, [[c.name, c.page_bytes] for c in bundle.components]]
