#!/usr/bin/env bash
# First contact with a CUDA machine: benchmarks/gpu.py by the environment that is there (PYTHON, a checkout's .venv, or uv's).
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
if [ ! -x "$(command -v "$python")" ]; then
    uv sync --extra gpu
fi
PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" HF_HUB_OFFLINE=1 "$python" benchmarks/gpu.py "$@"
