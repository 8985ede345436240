"""A vLLM worker extension that spoils history and delays ranks on purpose."""

import random
import re
import time

import torch


class Saboteur:
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

    def delay_layers(self, rank: int, seed: int, max_delay_s: float) -> None:
        """From now on the worker of `rank` sleeps before about every third decoder layer."""
        self._delays: list[float] = []
        self._delay_hooks = []
        if self.rank != rank:  # type: ignore[attr-defined]
            return
        rng = random.Random(seed)

        def sleep(*_: object) -> None:
            if rng.random() < 0.3:
                self._delays.append(rng.random() * max_delay_s)
                time.sleep(self._delays[-1])

        for name, module in self.get_model().named_modules():  # type: ignore[attr-defined]
            if re.search(r"layers\.\d+$", name):
                self._delay_hooks.append(module.register_forward_pre_hook(sleep))

    def stop_delays(self) -> int:
        """Undo `delay_layers`; returns how many delays there were on this rank."""
        for hook in self._delay_hooks:
            hook.remove()
        return len(self._delays)
