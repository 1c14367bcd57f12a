"""`search`, `train` and `evaluate` to be awaited: each runs in a thread, so that the event loop goes on.

Ctrl-C belongs to the main thread; a task that is cancelled leaves the work in its thread to end by itself.
"""

from __future__ import annotations

import asyncio
from typing import Any

from ..mcts.driver import SearchResult
from . import evaluate as _evaluate
from . import search as _search
from . import train as _train
from .evaluate import Table
from .train import TrainingRun


async def search(*args: Any, **kwargs: Any) -> SearchResult:
    """See `alphazero_llm_trainer.mcts`."""
    return await asyncio.to_thread(_search.search, *args, **kwargs)


async def train(*args: Any, **kwargs: Any) -> TrainingRun:
    """See `alphazero_llm_trainer.training`."""
    return await asyncio.to_thread(_train.train, *args, **kwargs)


async def evaluate(*args: Any, **kwargs: Any) -> Table:
    """See `alphazero_llm_trainer.evaluate`."""
    return await asyncio.to_thread(_evaluate.evaluate, *args, **kwargs)
