"""The hard reward estimate: is the final answer right?"""

from __future__ import annotations

from ..answers import equal, extract


def hre(response: str, gold: str, strict: bool = False) -> float:
    """1.0 when the answer that `response` ends with equals `gold`, else 0.0. Meant for terminal states only.

    Args:
        response: the whole response text.
        gold: the gold answer, in any spelling.
        strict: count a `####` line only (see `answers.extract`).
    """
    answer = extract(response, strict=strict)
    return 1.0 if answer is not None and equal(answer, gold) else 0.0
