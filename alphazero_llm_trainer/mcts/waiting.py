"""Waiting for several evaluations at once, leaving none behind."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any


async def gather_all(*waits: Awaitable[Any]) -> list[Any]:
    """All results, in order. When one fails, the others are cancelled and waited for before its
    error goes on.
    """
    if len(waits) == 1:
        return [await waits[0]]
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        left = [task for task in tasks if not task.done()]
        for task in left:
            task.cancel()
        if left:
            await asyncio.gather(*left, return_exceptions=True)
