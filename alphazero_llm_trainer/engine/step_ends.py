"""Where one reasoning step ends and the next begins: the only rule of that, decided on token
ids.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..grading.answers import is_final
from ..types import token_text

LINE = r"\n\s*\Z"  # some tokens hold a line end and the next line's indentation
SENTENCE = r"(\n\s*|[.!?]['\")\]]*\s*)\Z"


def in_number(text: str) -> bool:
    """Whether the full stop that `text` ends with may be a decimal point."""
    return re.search(r"\d\.\Z", text) is not None


def in_thought(text: str) -> bool:
    """Whether `text`, which ends with a line, goes on: a formula or code is open, or the line
    announces what follows.
    """
    if text.count("\\[") > text.count("\\]") or text.count("$$") % 2 or text.count("```") % 2:
        return True
    line = text.rstrip().rpartition("\n")[2]
    return line.rstrip("*_ ").endswith(":") or re.match(r"\s*#{1,3} ", line) is not None


# Of `search.step`: how a token ends that may end a step, and what says of a step's text that it
# goes on all the same.
RULES: dict[str, tuple[str, Callable[[str], bool] | None]] = {
    "line": (LINE, None),
    "sentence": (SENTENCE, in_number),
    "thought": (LINE, in_thought),
}


@dataclass(frozen=True, slots=True)
class StepEnds:
    """A step ends after a token of `tokens` once something in it is not blank: leading blank lines
    belong to the step.

    `blanks` are tokens of white space alone. Where there is `goes_on`, it is asked about the step's
    text so far, which `texts`, those of the tokenizer's tokens, make up; a model may have more.
    """

    tokens: frozenset[int]
    blanks: frozenset[int] = frozenset()
    texts: Sequence[str] = ()
    goes_on: Callable[[str], bool] | None = None

    def cut(self, token_ids: Sequence[int]) -> list[int]:
        """How many tokens lie before the end of each step, in order; what follows the last is a
        step that goes on.
        """
        ends: list[int] = []
        blank = True
        for count, token in enumerate(token_ids, 1):
            blank = blank and token in self.blanks
            if token not in self.tokens or blank:
                continue
            step = token_ids[ends[-1] if ends else 0 : count]
            texts = (self.texts[token_id] for token_id in step if token_id < len(self.texts))
            if self.goes_on is None or not self.goes_on("".join(texts)):
                ends.append(count)
                blank = True
        return ends

    def parts(self, token_ids: Sequence[int]) -> list[int]:
        """`cut`, with the end of a last step that goes on."""
        ends = self.cut(token_ids)
        return ends if ends[-1:] == [len(token_ids)] or not token_ids else [*ends, len(token_ids)]

    def whole(self, token_ids: Sequence[int]) -> bool:
        """Whether the last token ends a step."""
        return bool(token_ids) and self.cut(token_ids)[-1:] == [len(token_ids)]


def split_steps(text: str, rule: str) -> list[str]:
    """The steps of a text without tokens, which join to it; blank text behind the last one is left
    out.

    Blank lines belong to the step before them: most tokenizers have one token for all these line
    ends, so that a prompt which ended between them would not be the model's own chain.
    """
    ending, goes_on = RULES[rule]
    steps, start = [], 0
    for place in re.finditer(r"\n(?:\s*\n)*|[.!?]", text):
        step = text[start : place.end()]
        ends = step.strip() and re.search(ending, place.group())
        if ends and (goes_on is None or not goes_on(step)):
            steps.append(step)
            start = place.end()
    rest = text[start:]
    return [*steps, rest] if rest.strip() else steps


def response_steps(
    text: str, rule: str, before: str, most: int | None = None
) -> tuple[list[str], bool]:
    """The steps of a reply to the response `before`, at most `most`, and whether they are all of
    it: whatever follows the final answer is no part of a response.
    """
    steps = split_steps(text, rule)
    for count, step in enumerate(steps[:most], 1):
        if is_final(step, before):
            return steps[:count], count == len(steps)
        before += step
    return steps[:most], most is None or most >= len(steps)


@functools.lru_cache
def joins_texts(tokenizer: Any) -> bool:
    """Whether the texts of a tokenizer's tokens join to their whole text, and the tokens of lines
    to those of their text: byte-level ones do, and the embedded student's. SentencePiece's have a
    space before a text's first word, and none of it in the text of its tokens.
    """
    decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
    return type(decoder).__name__ in ("ByteLevel", "Fuse")


def step_ends(tokenizer: Any, rule: str = "line") -> StepEnds:
    """The step ends of a tokenizer under `search.step` (see RULES), looked for in each token's
    text.
    """
    ids = sorted({*tokenizer.get_vocab().values()})  # with gaps, where a model's file has them
    texts = [""] * (ids[-1] + 1)
    decode = functools.partial(tokenizer.decode, clean_up_tokenization_spaces=False)
    for i in ids:
        texts[i] = decode([i]) if joins_texts(tokenizer) else token_text(decode, i)
    ending, goes_on = RULES[rule]
    pattern = re.compile(ending)
    return StepEnds(
        frozenset(i for i, text in enumerate(texts) if pattern.search(text)),
        frozenset(i for i, text in enumerate(texts) if text and not text.strip()),
        texts if goes_on else (),
        goes_on,
    )
