"""What remote models are asked: to propose one next step in text, and whether a response is
finished.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from ..engine.protocol import TeacherLedger, TeacherProposal
from ..types import Direction, Opening, Problem
from .answer import UNUSABLE, CallError, without_thinking
from .client import ChatClient
from .server import CONTINUE_FIELDS

MAX_STEP_CHARACTERS = 300

ROLE = (
    "You help to study how word problems are solved. You get a problem and the steps written so "
    "far, and you write the one line that comes next: a single short calculation such as `16 - 3 = "
    "13`, or, when the steps already give the answer, the last line `#### N` with the answer N. "
    "Reply with that line only: no explanation, no number, no label."
)
ASKS = {
    Direction.RIGHT: "Write the next line, and make it correct.",
    Direction.NONE: "Write the next line.",
    Direction.WRONG: (
        "Write a next line with a plausible mistake that a careless student could make (a wrong "
        "operation, a wrong number or a slip in the arithmetic), so that a checker can be trained "
        "to find it. Don't mark it as wrong."
    ),
}
_REPLY_LABEL = re.compile(
    r"(?:#{1,3}\s+|>\s+|[-*•]\s+|\(?\d{1,2}[.)]\s+|(?:the\s+)?(?:next\s+)?(?:step"
    r"|line)\s*\d*\s*[:.)]\s*)",
    re.IGNORECASE,
)
_REFUSAL = re.compile(
    r"(?:i['’]?m sorry|i am sorry|sorry|i can(?:no|['’])?t|i won['’]t|as an ai)\b", re.IGNORECASE
)


def parse_step(text: str) -> str | None:
    """The first usable line of a model's answer without list marks, labels and code fences, or
    None.

    Reasoning between `<think>` tags, introductions that end in a colon, refusals and lines of more
    than 300 characters are not usable.
    """
    for raw in without_thinking(text).splitlines():
        line = raw.strip()
        if line.startswith("```"):
            continue
        line = line.strip("`*\"' ")
        while label := _REPLY_LABEL.match(line):
            line = line[label.end() :]
        line = " ".join(line.strip("`*\"' ").split())
        if not line or line.endswith(":"):
            continue
        return None if _REFUSAL.match(line) or len(line) > MAX_STEP_CHARACTERS else line
    return None


class RemoteModel:
    """A model behind `client`."""

    def __init__(self, client: ChatClient) -> None:
        self.name, self.client = client.name, client

    @property
    def ledger(self) -> TeacherLedger:
        """What the model did and cost, failed calls included."""
        return self.client.ledgers.of(self.name)


class OpenAITeacher(RemoteModel):
    """A remote model as a teacher, told what a step is."""

    async def propose(
        self, problem: Problem, steps: Sequence[str], direction: Direction, seed: int
    ) -> TeacherProposal:
        """One next step.

        Raises:
            CallError: the model can't be asked, its answer has no usable line, or repeats the last
                step.
        """
        text = await self._ask(problem, steps, direction, seed)
        if text is None or (steps and text == steps[-1].strip()):
            raise CallError(UNUSABLE, f"{self.name} wrote no line that is a next step")
        return TeacherProposal(text, f"teacher:{self.name}", direction)

    async def _ask(
        self, problem: Problem, steps: Sequence[str], direction: Direction, seed: int
    ) -> str | None:
        """The step in the model's answer, or None."""
        written = "\n".join(steps) if steps else "(none)"
        asked = f"Problem: {problem.question}\n\nSteps so far:\n{written}\n\n{ASKS[direction]}"
        messages = [{"role": "system", "content": ROLE}, {"role": "user", "content": asked}]
        return parse_step(await self.client.complete(messages, seed=seed))


class ContinuingTeacher(OpenAITeacher):
    """A remote model that goes on from the student's own chat: `opening`, the question, the steps.

    It needs no word of what a step is: its next line is one. A server must continue a last message
    of the assistant: vLLM and this package's `serve` do where they are asked to, others do it of
    themselves or not at all. With `stops` it is told to stop at a line's end; a chat model, which
    may begin with an empty line, writes to its end, and the rest is dropped.
    """

    def __init__(self, client: ChatClient, opening: Opening, stops: bool) -> None:
        super().__init__(client)
        self._opening, self._stops = opening, stops

    async def _ask(
        self, problem: Problem, steps: Sequence[str], direction: Direction, seed: int
    ) -> str | None:
        user = {"role": "user", "content": problem.question}
        messages = [*self._opening.messages(problem.question), user]
        more: dict[str, Any] = {"stop": ["\n"]} if self._stops else {}
        if steps:
            messages.append({"role": "assistant", "content": "\n".join(steps) + "\n"})
            more["extra_body"] = CONTINUE_FIELDS
        text = await self.client.complete(messages, seed=seed, **more)
        line = text.strip().partition("\n")[0].strip()
        return line if 0 < len(line) <= MAX_STEP_CHARACTERS else None


class TerminalChecker(RemoteModel):
    """Asks a model whether a response is finished. The rule's verdict stands in for every
    failure.
    """

    async def is_finished(self, problem: Problem, response: str, rule: bool) -> bool:
        """Whether `response` is finished; `rule` is what the search's own rule says."""
        asked = (
            f"Problem: {problem.question}\n\nSolution so far:\n{response}\n\nDoes the solution so "
            "far state its final answer? Reply with one word: FINISHED or UNFINISHED."
        )
        messages = [{"role": "user", "content": asked}]
        try:
            answer = await self.client.complete(messages, temperature=0.0)
            words = re.findall(r"\b(?:un)?finished\b", answer.lower())
            if not words:
                raise CallError(UNUSABLE, f"{self.name} said neither FINISHED nor UNFINISHED")
        except CallError as error:
            self.client.ledgers.count_failure(self.name, error)
            return rule
        return bool(words[-1] == "finished")
