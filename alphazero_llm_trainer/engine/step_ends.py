"""Where one reasoning step ends and the next begins: the only rule of that, decided on token ids."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

LINE = r"\n\s*\Z"  # some tokens hold a line end and the next line's indentation
SENTENCE = r"(\n\s*|[.!?]['\")\]]*\s*)\Z"


@dataclass(frozen=True, slots=True)
class StepEnds:
    """A step ends after a token of `tokens` once something in it is not blank: leading blank lines belong to the step.

    `blanks` are tokens of white space alone. A token of `points` is a full stop and nothing else: after one of `digits`,
    whose text ends with a digit, it may be a decimal point and ends nothing.
    """

    tokens: frozenset[int]
    blanks: frozenset[int] = frozenset()
    points: frozenset[int] = frozenset()
    digits: frozenset[int] = frozenset()

    def cut(self, token_ids: Sequence[int]) -> list[int]:
        """How many tokens lie before the end of each step, in order; what follows the last is a step that goes on."""
        found: list[int] = []
        blank, before = True, -1
        for count, token in enumerate(token_ids, 1):
            blank = blank and token in self.blanks
            if token in self.tokens and not blank and not (token in self.points and before in self.digits):
                found.append(count)
                blank = True
            before = token
        return found

    def parts(self, token_ids: Sequence[int]) -> list[int]:
        """`cut`, with the end of a last step that goes on."""
        found = self.cut(token_ids)
        return found if found[-1:] == [len(token_ids)] or not token_ids else [*found, len(token_ids)]

    def whole(self, token_ids: Sequence[int]) -> bool:
        """Whether the last token ends a step."""
        return bool(token_ids) and self.cut(token_ids)[-1:] == [len(token_ids)]


def step_ends(tokenizer: Any, rule: str = "line") -> StepEnds:
    """The step ends of a tokenizer under `search.step`: "line" or "sentence", looked for in each token's text."""
    ids = range(len(tokenizer))
    texts = tokenizer.batch_decode([[i] for i in ids])
    pattern = re.compile(SENTENCE if rule == "sentence" else LINE)
    points, digits = [], []
    if rule == "sentence":
        points = [i for i, text in zip(ids, texts, strict=True) if text == "."]
        digits = [i for i, text in zip(ids, texts, strict=True) if text[-1:].isdigit()]
    return StepEnds(
        frozenset(i for i, text in zip(ids, texts, strict=True) if pattern.search(text)),
        frozenset(i for i, text in zip(ids, texts, strict=True) if text and not text.strip()),
        frozenset(points),
        frozenset(digits),
    )
