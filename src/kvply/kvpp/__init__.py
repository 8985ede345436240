"""KVPP: each layer's cache on one owner rank, broadcast one layer ahead of compute. Never imports vLLM."""
