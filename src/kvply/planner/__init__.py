"""What KVPP would give for a model: facts from its config.json, capacity from `layout/`. No torch, no vLLM."""
