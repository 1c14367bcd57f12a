"""What remote models are asked: to propose one next step in text, and whether a response is finished."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from ..engine.protocol import TeacherProposal
from ..types import NOTHING, Direction, Opening, Problem
from .answer import UNUSABLE, CallError, without_thinking
from .client import ChatClient

MAX_STEP_CHARACTERS = 300

ROLE = (
    "You help to study how word problems are solved. You get a problem and the steps written so far, and you write the"
    " one line that comes next: a single short calculation such as `16 - 3 = 13`, or, when the steps already give the"
    " answer, the last line `#### N` with the answer N. Reply with that line only: no explanation, no number, no label."
)
ASKS = {
    Direction.RIGHT: "Write the next line, and make it correct.",
    Direction.NONE: "Write the next line.",
    Direction.WRONG: (
        "Write a next line with a plausible mistake that a careless student could make (a wrong operation, a wrong"
        " number or a slip in the arithmetic), so that a checker can be trained to find it. Don't mark it as wrong."
    ),
}
_LABEL = re.compile(
    r"(?:#{1,3}\s+|>\s+|[-*•]\s+|\(?\d{1,2}[.)]\s+|(?:the\s+)?(?:next\s+)?(?:step|line)\s*\d*\s*[:.)]\s*)",
    re.IGNORECASE,
)
_REFUSAL = re.compile(r"(?:i['’]?m sorry|i am sorry|sorry|i can(?:no|['’])?t|i won['’]t|as an ai)\b", re.IGNORECASE)


def parse_step(text: str) -> str | None:
    """The first usable line of a model's answer without list marks, labels and code fences, or None.

    Reasoning between `<think>` tags, introductions that end in a colon, refusals and lines of more than 300 characters
    are not usable.
    """
    for raw in without_thinking(text).splitlines():
        line = raw.strip()
        if line.startswith("```"):
            continue
        line = line.strip("`*\"' ")
        while label := _LABEL.match(line):
            line = line[label.end() :]
        line = " ".join(line.strip("`*\"' ").split())
        if not line or line.endswith(":"):
            continue
        return None if _REFUSAL.match(line) or len(line) > MAX_STEP_CHARACTERS else line
    return None


class OpenAITeacher:
    """A remote model as a teacher. `ledger` is the books' of its client, so failed calls are in its cost too."""

    def __init__(self, client: ChatClient) -> None:
        self.name = client.name
        self.ledger = client.books.ledger(client.name)
        self._client = client

    async def propose(
        self, problem: Problem, steps: Sequence[str], direction: Direction, seed: int
    ) -> TeacherProposal | None:
        """One next step, or None when the answer holds no usable line or only repeats the last step.

        Raises:
            CallError: the model can't be asked.
        """
        written = "\n".join(steps) if steps else "(none)"
        asked = f"Problem: {problem.question}\n\nSteps so far:\n{written}\n\n{ASKS[direction]}"
        messages = [{"role": "system", "content": ROLE}, {"role": "user", "content": asked}]
        # Some providers take seeds of 32 bits with a sign.
        text = parse_step(await self._client.complete(messages, seed=seed % 2**31))
        if text is None or (steps and text == steps[-1].strip()):
            self._client.books.note(self.name, "failure", UNUSABLE)
            return None
        return TeacherProposal(text, f"teacher:{self.name}", direction)


class ContinuingTeacher:
    """A remote model that goes on from the student's own chat: `opening`, the question, and the steps as the model's turn.

    It needs no word of what a step is: its next line is one. A server must continue a last message of the assistant:
    vLLM and this package's `serve` do where they are asked to, others do it of themselves or not at all. `stops`: it is told
    to stop at a line's end; a chat model, which may begin with an empty line, writes to its end, and the rest is dropped.
    """

    def __init__(self, client: ChatClient, opening: Opening = NOTHING, stops: bool = True) -> None:
        self.name = client.name
        self.ledger = client.books.ledger(client.name)
        self._client, self._opening, self._stops = client, opening, stops

    async def propose(
        self, problem: Problem, steps: Sequence[str], direction: Direction, seed: int
    ) -> TeacherProposal | None:
        """The model's next line, or None where there is none or it is too long.

        Raises:
            CallError: the model can't be asked.
        """
        messages = [*self._opening.messages(problem.question), {"role": "user", "content": problem.question}]
        more: dict[str, Any] = {"stop": ["\n"]} if self._stops else {}
        if steps:
            messages.append({"role": "assistant", "content": "\n".join(steps) + "\n"})
            more["extra_body"] = {"continue_final_message": True, "add_generation_prompt": False}
        text = await self._client.complete(messages, seed=seed % 2**31, **more)
        line = next((line.strip() for line in text.splitlines() if line.strip()), "")
        if not line or len(line) > MAX_STEP_CHARACTERS:
            self._client.books.note(self.name, "failure", UNUSABLE)
            return None
        return TeacherProposal(line, f"teacher:{self.name}", direction)


class TerminalChecker:
    """Asks a model whether a response is finished. The rule's verdict stands in for every failure."""

    def __init__(self, client: ChatClient) -> None:
        self.name, self.ledger = client.name, client.books.ledger(client.name)
        self._client = client

    async def finished(self, problem: Problem, response: str, rule: bool) -> bool:
        """Whether `response` is finished; `rule` is what the search's own rule says."""
        asked = (
            f"Problem: {problem.question}\n\nSolution so far:\n{response}\n\nDoes the solution so far state its final"
            " answer? Reply with one word: FINISHED or UNFINISHED."
        )
        books = self._client.books
        try:
            answer = await self._client.complete([{"role": "user", "content": asked}], temperature=0.0)
        except CallError as error:
            books.failed(self.name, error)
            return rule
        said = re.findall(r"\b(?:un)?finished\b", answer.lower())
        if not said:
            books.note(self.name, "failure", UNUSABLE)
            return rule
        return bool(said[-1] == "finished")
