"""Loggers that speak through vLLM's handlers."""

import logging


def get_logger(name: str) -> logging.Logger:
    """A logger below the logger `vllm`.

    vLLM configures only that one, and again whenever it builds a config: handlers put on a logger of our own
    would be lost then.
    """
    return logging.getLogger(f"vllm.{name}")
