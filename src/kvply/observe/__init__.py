"""What happened, in numbers. No torch, no vLLM."""
