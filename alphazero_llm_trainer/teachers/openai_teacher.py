"""What remote models are asked: to propose one next step in text, and whether a response is finished."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ..config.sections import TeachersConfig
from ..engine.protocol import TeacherProposal
from ..types import Direction, Problem
from .answer import CallError, Failure, without_thinking
from .breaker import make_breaker
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
    """A remote model as a teacher. `ledger` is its client's, so failed attempts are in its cost too."""

    def __init__(self, client: ChatClient, max_tokens: int = 512, temperature: float = 1.0) -> None:
        self.name = client.name
        self.ledger = client.books.ledger(client.name)
        self._client = client
        self._max_tokens = max_tokens
        self._temperature = temperature

    async def propose(
        self, problem: Problem, steps: Sequence[str], direction: Direction, seed: int
    ) -> TeacherProposal | None:
        """One next step, or None when the answer holds no usable line or only repeats the last step.

        Raises:
            CallError: the model can't be asked.
        """
        books, written = self._client.books, "\n".join(steps) if steps else "(none)"
        try:
            completion = await self._client.complete(
                [
                    {"role": "system", "content": ROLE},
                    {
                        "role": "user",
                        "content": f"Problem: {problem.question}\n\nSteps so far:\n{written}\n\n{ASKS[direction]}",
                    },
                ],
                max_tokens=self._max_tokens,
                temperature=self._temperature,
                seed=seed % 2**31,  # some providers take 32 bits with a sign
                question=problem.id,
            )
        except CallError as error:
            if error.kind is not Failure.BUDGET:
                books.note(self.name, "call", direction)
            raise
        books.note(self.name, "call", direction)
        if completion.cached:
            books.note(self.name, "cached")
        text = parse_step(completion.text)
        if text is None or (steps and text == steps[-1].strip()):
            books.note(self.name, "failure", Failure.UNUSABLE)
            return None
        return TeacherProposal(text, f"teacher:{self.name}", direction)


class TerminalChecker:
    """Asks a model whether a response is finished. The rule's verdict stands in for every failure."""

    def __init__(
        self,
        client: ChatClient,
        settings: TeachersConfig | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        settings = TeachersConfig() if settings is None else settings
        self.name, self.ledger = client.name, client.books.ledger(client.name)
        self.disagreements = 0  # verdicts that were not the rule's
        self._client = client
        self._max_tokens = settings.max_tokens
        self._breaker = make_breaker(f"terminal checker {client.model.model}", settings, clock)

    async def finished(self, problem: Problem, response: str, rule: bool) -> bool:
        """Whether `response` is finished; `rule` is what the search's own rule says."""
        ticket = self._breaker.enter()
        if ticket is None:
            return rule
        prompt = (
            f"Problem: {problem.question}\n\nSolution so far:\n{response}\n\nDoes the solution so far state its final"
            " answer? Reply with one word: FINISHED or UNFINISHED."
        )
        books, error, told = self._client.books, None, False
        try:
            completion = await self._client.complete(
                [{"role": "user", "content": prompt}],
                max_tokens=self._max_tokens,
                temperature=0.0,
                question=problem.id,
            )
            told = True
        except CallError as caught:
            error, told = caught, caught.kind is not Failure.BUDGET
        finally:
            self._breaker.leave(ticket, error, told=told)
        if not told:
            return rule
        books.note(self.name, "call")
        if error is not None:
            books.note(self.name, "failure", error.kind)
            return rule
        if completion.cached:
            books.note(self.name, "cached")
        said = re.findall(r"\b(?:un)?finished\b", completion.text.lower())
        if not said:
            books.note(self.name, "failure", Failure.UNUSABLE)
            return rule
        verdict = bool(said[-1] == "finished")
        if verdict is not rule:
            self.disagreements += 1
            books.note(self.name, "disagreement")
        return verdict

    def restore(self, notes: Iterable[Mapping[str, Any]]) -> None:
        """Take in what earlier processes of the run counted."""
        self.disagreements += sum(n["teacher"] == self.name and n["what"] == "disagreement" for n in notes)

    def as_dict(self) -> dict[str, Any]:
        """For run.json."""
        return {**self.ledger.as_dict(), "disagreements": self.disagreements}
