"""KVPP's worker classes: one mixin, one file per kind of vLLM worker."""
