"""The kernels' threads: the same bits for any number of them, in forks, and where two forwards want them at once."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from random import Random
from typing import Any

import pytest
from support import run
from test_native import SHAPES, engine_of, llama, needs_compiler, with_lora

from alphazero_llm_trainer.engine import native
from alphazero_llm_trainer.engine.protocol import GenerateRequest

pytestmark = needs_compiler
TASKS = Path("/proc/self/task")
MODEL = with_lora(llama("qwen2", **SHAPES["heads of 32, grouped"]))
RNG = Random(3)
REQUESTS = [
    GenerateRequest(tuple(RNG.randrange(77) for _ in range(RNG.randint(1, 60))), n=2, max_new_tokens=10, seed=i)
    for i in range(20)
]


def results(threads: int, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> list[Any]:
    monkeypatch.setattr(native, "kernel_threads", lambda parameters, available: threads)
    engine = engine_of(MODEL, **settings)
    assert engine.facts["forward"]["threads"] == threads
    return [[(one.token_ids, one.logprobs) for one in group] for group in run(lambda: engine.generate(REQUESTS))]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_any_number_of_threads_gives_the_same_bits(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if dtype == "bfloat16" and not native.library().bf16_unit():  # type: ignore[union-attr]
        pytest.skip("neither AMX nor AVX512-BF16 here")
    alone = results(1, monkeypatch, dtype=dtype)
    for threads in (2, 3, 8, 2, 100):  # more than there are, fewer than before, more than the pool has
        assert results(threads, monkeypatch, dtype=dtype) == alone


needs_proc = pytest.mark.skipif(not TASKS.exists(), reason="needs Linux's list of a process's threads")


@needs_proc
def test_a_fork_has_threads_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = results(1, monkeypatch)
    assert results(3, monkeypatch) == alone
    child = os.fork()
    if not child:
        try:
            same = results(3, monkeypatch) == alone and len(list(TASKS.iterdir())) >= 3
        except BaseException:  # noqa: BLE001 - the parent reads the exit status alone
            same = False
        os._exit(0 if same else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_forwards_at_once_wait_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """One has the threads, the others compute alone; nobody waits, nothing is mixed up."""
    alone = results(1, monkeypatch)
    monkeypatch.setattr(native, "kernel_threads", lambda parameters, available: 3)
    engines = [engine_of(MODEL) for _ in range(4)]
    found: list[Any] = [None] * len(engines)

    def ask(i: int) -> None:
        groups = run(lambda: engines[i].generate(REQUESTS))
        found[i] = [[(one.token_ids, one.logprobs) for one in group] for group in groups]

    askers = [threading.Thread(target=ask, args=(i,)) for i in range(len(engines))]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join(120)
    assert found == [alone] * len(engines)
