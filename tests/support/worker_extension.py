"""A vLLM worker extension that spoils history on purpose, for the sensitivity tests."""

import torch


class HistoryCorrupter:
    """Mixed into the worker by vLLM (`worker_extension_cls`)."""

    def corrupt_history(self, layer: int, block: int) -> int:
        """Overwrite `block` of target layer `layer` where it is owned; returns the bytes changed on this rank."""
        kvpp = self.kvpp  # type: ignore[attr-defined]
        changed = 0
        for ordinal, bundle in enumerate(kvpp.plan.bundles):
            if bundle.layer != layer or kvpp.plan.owners[ordinal] != kvpp.group.rank:
                continue
            num_blocks = kvpp.storage.layout.num_blocks
            for offset, page_bytes in zip(bundle.component_offsets_bytes(num_blocks), bundle.pages, strict=True):
                start = offset + block * page_bytes
                page = kvpp.storage.bundle(ordinal)[start : start + page_bytes]
                before = page.clone()
                # Zeros are finite in every cache dtype, and no history consists of zeros.
                page.zero_()
                changed += int((page != before).sum())
                assert torch.count_nonzero(page) == 0
        return changed
