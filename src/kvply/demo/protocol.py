"""What the demo and its engine process tell each other, as JSON files."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

# One rank's cache memory. Small on purpose: the point is how much fits.
KV_CACHE_BYTES = 48 << 20
NUM_RANKS = 2
MAX_MODEL_LEN = 4096


@dataclass(frozen=True, kw_only=True)
class EngineOrder:
    """Prompts (token ids) to answer with `num_answer_tokens` tokens each, greedily, KVPP on or off."""

    model: str
    enable_kvpp: bool
    prompts: list[list[int]]
    num_answer_tokens: int

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> "EngineOrder":
        return cls(**json.loads(path.read_text(encoding="utf-8")))


@dataclass(frozen=True, kw_only=True)
class EngineOutcome:
    """capacity_tokens: KV cache capacity as vLLM plans with it. stats: `kvpp_stats` of every rank, empty when
    KVPP is off. seconds: of answering, without start-up."""

    num_blocks: int
    capacity_tokens: int
    answers: list[list[int]]
    logprobs: list[list[float]]
    seconds: float
    stats: list[dict[str, object]] = field(default_factory=list)

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> "EngineOutcome":
        return cls(**json.loads(path.read_text(encoding="utf-8")))
