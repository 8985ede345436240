"""The compiler half of the backend: there is none."""

import os
from types import ModuleType
from typing import Any, NoReturn

from triton.backends.compiler import BaseBackend, GPUTarget
from typing_extensions import override

if os.environ.get("TRITON_INTERPRET") != "1":
    raise ImportError("the interpreter-only Triton backend needs TRITON_INTERPRET=1")


class InterpreterBackend(BaseBackend):
    """Accepts the target of :class:`~kvply_triton_interpreter.driver.InterpreterDriver`, compiles nothing."""

    @staticmethod
    def supports_target(target: GPUTarget) -> bool:
        return bool(target.backend == "cpu")

    def hash(self) -> str:
        return "kvply-triton-interpreter"

    @override
    def parse_options(self, options: dict[str, Any]) -> NoReturn:
        raise RuntimeError("a kernel reached the compiler although TRITON_INTERPRET=1")

    @override
    def add_stages(self, stages: dict[str, Any], options: object, language: object = None) -> NoReturn:
        self.parse_options(stages)

    def load_dialects(self, context: object) -> None:
        """The interpreter uses no MLIR."""

    def get_module_map(self) -> dict[str, ModuleType]:
        return {}
