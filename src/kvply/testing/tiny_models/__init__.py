"""Tiny MLA checkpoints with random weights, for comparing engines with each other.

:func:`write_checkpoint` writes a directory that vLLM loads like any other model, in well under a second. There
is no tokenizer: use ``skip_tokenizer_init=True`` and prompts of token ids below :data:`VOCABULARY_SIZE`.

The weights are scaled so that the network is not chaotic: rounding differences stay small through all layers,
and greedy tokens are decided by clear margins. The text means nothing, and the models barely look at distant
tokens; use :mod:`kvply.testing.recall` where the context must matter.
"""

from kvply.testing.tiny_models.architecture import VOCABULARY_SIZE, TinyDtype, TinyKind
from kvply.testing.tiny_models.checkpoint import write_checkpoint

__all__ = ["VOCABULARY_SIZE", "TinyDtype", "TinyKind", "write_checkpoint"]
