"""vLLM's entry point: registers names, nothing else.

vLLM calls `register` in every process (front end, engine core, workers), perhaps more than once. Importing
this module does no work: vLLM swallows exceptions raised while a plugin is imported, and a broken plugin
would silently serve stock behaviour.
"""


def register() -> None:
    """Put kvply's hook behind vLLM's configuration. Idempotent; serves stock vLLM unless KVPP is enabled."""
    from kvply.vllm import config_hook, cpu_reference

    config_hook.install()
    cpu_reference.register()
