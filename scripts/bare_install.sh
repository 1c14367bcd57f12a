#!/usr/bin/env bash
# The wheel without extras in an empty environment, beside the transformers that prime-rl pins: vf-eval, vf-validate and a
# search ask `serve`, which runs in the checkout's environment; what needs PyTorch says so in a sentence.
set -euo pipefail
cd "$(dirname "$0")/.."

place=$(mktemp -d)
trap 'kill "${server:-}" 2>/dev/null || true; rm -rf "$place"' EXIT
uv build --quiet --wheel --out-dir "$place" .
uv run python -m alphazero_llm_trainer serve --model embedded --port 0 >"$place/serve" 2>&1 &
server=$!
cd "$place" # outside the checkout, whose constraints are not a user's
uv venv --quiet bare
uv pip install --quiet --python bare/bin/python ./*.whl "transformers==5.6.2"
bare/bin/python -c 'import importlib.util as u; assert u.find_spec("torch") is None, "torch came along"'
for _ in $(seq 120); do
    url=$(sed -n 's/.* answers at \([^ ]*\) .*/\1/p' serve)
    [ -n "$url" ] && break
    sleep 1
done
export OPENAI_API_KEY=none
bare/bin/vf-eval alphazero-llm-trainer -n 3 -m student --client.base-url "$url" --env.taskset.source embedded | tee said
grep -q "3 rollouts, 0 failed" said
bare/bin/vf-validate alphazero-llm-trainer -n 2 --taskset.source embedded --runtime.type subprocess | grep '"valid_rate": 1.0'
bare/bin/alphazero-llm-trainer search --base-url "$url" --model student --simulations 2 | grep "^answer "
bare/bin/alphazero-llm-trainer eval --base-url "$url" --model student -n 2 --methods greedy mcts --out eval
bare/bin/alphazero-llm-trainer sample --base-url "$url" --model student -n 2 --out trees
for command in "vf-eval alphazero-llm-trainer -n 1" "alphazero-llm-trainer search" "alphazero-llm-trainer train"; do
    code=0
    # shellcheck disable=SC2086
    bare/bin/$command >said 2>&1 || code=$?
    grep -q "alphazero-llm-trainer\[train\]" said && [ "$code" = 2 ]
done
echo "the wheel without extras works"
