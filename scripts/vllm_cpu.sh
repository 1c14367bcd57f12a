#!/usr/bin/env bash
# The vLLM backends' contract against the real vLLM (see scripts/vllm_cpu.py). CI: scripts/vllm_cpu.sh --if-possible
# VLLM_CPU_ENV names a folder for the environment that is kept; otherwise it is made in a temporary one, and removed.
set -euo pipefail
cd "$(dirname "$0")/.."
python="$(command -v python3.11 || command -v python3)"
exec "$python" scripts/vllm_cpu.py ${VLLM_CPU_ENV:+--env-dir "$VLLM_CPU_ENV"} "$@"
