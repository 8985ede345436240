"""A small MLA model that recalls facts from far back in its prompt, and prompts to ask it with.

The model makes key/value-cache errors visible: its answer depends on what each of its layers cached
thousands of tokens ago. The modules here are plain Python; they build prompts and judge answers, and
leave running the model to vLLM.
"""

from .prompts import (
    MODEL_DIR,
    Fact,
    RecallPrompt,
    answer_text,
    build_prompt,
    default_text,
    is_correct,
    without_fact,
)
from .vocabulary import ANSWER_TOKENS, FACT_TOKENS, QUESTION_TOKENS, VOCABULARY_SIZE

__all__ = [
    "ANSWER_TOKENS",
    "FACT_TOKENS",
    "MODEL_DIR",
    "QUESTION_TOKENS",
    "VOCABULARY_SIZE",
    "Fact",
    "RecallPrompt",
    "answer_text",
    "build_prompt",
    "default_text",
    "is_correct",
    "without_fact",
]
