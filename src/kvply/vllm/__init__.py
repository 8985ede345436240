"""The only package of kvply that imports vLLM."""
