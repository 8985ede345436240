"""The demo: the main job on a small model, with real vLLM on CPU."""
