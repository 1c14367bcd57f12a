#!/usr/bin/env bash
# The engine's tests over C kernels built with AddressSanitizer, UndefinedBehaviorSanitizer and assertions: a read or write
# outside of memory, an undefined operation or a failed assertion ends them. More arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."

runtime="$("${CC:-cc}" -print-file-name=libasan.so 2>/dev/null || true)"
if [[ "$runtime" != /* ]]; then
    echo "SKIPPED, NOT TESTED: the kernels under sanitizers need gcc and its libasan"
    exit 0
fi
python="$(python -c 'import sys; print(sys.executable)')"
# Without optimisation: gcc takes a fifth of the time for such code, and the tests are as fast.
export ALPHAZERO_KERNEL_FLAGS="-O0 -g1 -UNDEBUG -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all"
# Python keeps what it allocates until it ends: leaks can't be told from that.
export ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 OMP_NUM_THREADS=1
# The interpreter isn't instrumented, so the runtime has to be there before anything is allocated, and before it the C++
# library whose exceptions it watches. What the sanitizers say goes past pytest's capture. transformers' forward is left out.
LD_PRELOAD="$runtime libstdc++.so.6" exec "$python" -m pytest -n 0 --capture=sys \
    tests/unit/engine/test_native.py tests/contract/test_engine.py -k "not transformers" "$@"
