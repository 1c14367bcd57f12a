#!/usr/bin/env bash
# The engine's tests over C kernels built with AddressSanitizer, UndefinedBehaviorSanitizer and assertions.
# A read or write outside of memory, an undefined operation or a failed assertion ends the tests. More arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."

runtime="$("${CC:-cc}" -print-file-name=libasan.so 2>/dev/null || true)"
if [[ "$runtime" != /* ]]; then
    echo "SKIPPED, NOT TESTED: the kernels under sanitizers need gcc and its libasan"
    exit 0
fi
python="$(python -c 'import sys; print(sys.executable)')"
export ALPHAZERO_KERNEL_FLAGS="-g -UNDEBUG -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all"
# Python keeps what it allocates until it ends: leaks can't be told from that.
export ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 OMP_NUM_THREADS=1
# The interpreter itself is not instrumented, so the runtime has to be there before anything is allocated.
LD_PRELOAD="$runtime" exec "$python" -m pytest tests/test_native.py tests/test_engine.py "$@"
