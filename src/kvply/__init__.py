"""kvply: a KV cache that lives by layer, for stock vLLM."""

__version__ = "0.1.0"
