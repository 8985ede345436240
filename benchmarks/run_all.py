"""Every measurement of README.md, one after the other: `make bench`."""

import subprocess
import sys
from pathlib import Path

SCRIPTS = ("exchange.py", "bookkeeping.py", "ttft.py")


def main() -> None:
    for script in SCRIPTS:
        print(f"\n== {script}", flush=True)
        subprocess.run([sys.executable, str(Path(__file__).with_name(script))], check=True, timeout=1800)


if __name__ == "__main__":
    main()
