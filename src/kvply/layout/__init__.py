"""Pure arithmetic of where cache bytes live. No torch, no vLLM, no I/O."""
