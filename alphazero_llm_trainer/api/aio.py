"""`search`, `train` and `evaluate` to be awaited: each runs in a thread, so that the event loop goes on.

Ctrl-C belongs to the main thread; a task that is cancelled leaves the work in its thread to end by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from . import evaluate as _evaluate
from . import search as _search
from . import train as _train

P = ParamSpec("P")
T = TypeVar("T")


def awaited(plain: Callable[P, T]) -> Callable[P, Coroutine[Any, Any, T]]:
    """`plain` as a coroutine function, with its signature and its docstring."""

    @wraps(plain)
    async def call(*args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.to_thread(plain, *args, **kwargs)

    return call


search, train, evaluate = awaited(_search.search), awaited(_train.train), awaited(_evaluate.evaluate)
