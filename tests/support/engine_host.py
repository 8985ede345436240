"""Runs one engine: `python engine_host.py PLAN.json RESULT.json`. Started by support.engines."""

import json
import sys
from pathlib import Path


def main() -> None:
    from vllm import LLM

    from support import scenarios

    plan = json.loads(Path(sys.argv[1]).read_text())
    kvpp = plan["kvpp"]
    llm = LLM(
        model=plan["model"],
        skip_tokenizer_init=True,
        enforce_eager=True,
        seed=0,
        disable_log_stats=False,
        additional_config=kvpp,
        worker_extension_cls="support.worker_extension.Saboteur" if kvpp else "",
        **plan["engine"],
    )
    driver = scenarios.Driver(llm, has_kvpp=bool(kvpp))
    results = {name: scenarios.run(name, driver) for name in plan["scenarios"]}
    stats = driver.stats()
    Path(sys.argv[2]).write_text(
        json.dumps({"scenarios": results, "stats": stats, "num_blocks": driver.num_blocks})
    )


if __name__ == "__main__":
    main()
