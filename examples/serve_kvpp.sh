#!/usr/bin/env bash
# Serve an MLA model with KVPP: serve_kvpp.sh MODEL_PATH [TENSOR_PARALLEL_SIZE]
set -euo pipefail
model=${1:?usage: serve_kvpp.sh MODEL_PATH [TENSOR_PARALLEL_SIZE]}
size=${2:-2}
kvply plan "$model" --tensor-parallel-size "$size"
exec vllm serve "$model" \
    --host 127.0.0.1 \
    --tensor-parallel-size "$size" \
    --enforce-eager \
    --additional-config '{"enable_kvpp": true}'
