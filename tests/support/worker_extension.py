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
        owners = self.vllm_config.compilation_config.static_forward_context  # type: ignore[attr-defined]
        num_blocks, changed = kvpp.storage.layout.num_blocks, 0
        for ordinal, bundle in enumerate(kvpp.plan.bundles):
            if bundle.layer != layer or kvpp.plan.owners[ordinal] != kvpp.group.rank:
                continue
            pages = bundle.block_ranges(num_blocks, [(block, block + 1)])
            for component, (start, stop) in zip(bundle.components, pages, strict=True):
                page = kvpp.storage.bundle(ordinal)[start:stop]
                changed += _spoil(page, owners[component.name].kv_cache.dtype)
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


def _spoil(page: torch.Tensor, dtype: torch.dtype) -> int:
    """Replace the bytes of `page` by wrong but finite values; returns how many bytes changed."""
    before = page.clone()
    values = page.view(dtype)
    if dtype.is_floating_point:
        values.copy_(4 * torch.randn(values.shape, generator=torch.Generator().manual_seed(5)))
    else:
        values.bitwise_xor_(0x80)  # packed rows: signs flip, no float among them becomes infinite
    return int((page != before).sum())
