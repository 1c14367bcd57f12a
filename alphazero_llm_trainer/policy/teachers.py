"""Teachers: remote models that propose one next step in text, and the ensemble that outlives any of them."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from ..config import Config
from ..errors import ConfigError, TeacherError
from ..sections import TeacherTier
from ..types import Cost, Direction, Problem
from .openai_client import CallError, ChatClient, Failure, open_endpoint
from .protocol import Teacher, TeacherLedger, TeacherProposal

log = logging.getLogger(__name__)

MAX_STEP_CHARACTERS = 300
FAILURES_IN_A_ROW = 3  # then a teacher is left out for the rest of the run

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
_THINKING = re.compile(r"<think(?:ing)?>.*?(?:</think(?:ing)?>|\Z)", re.DOTALL | re.IGNORECASE)
# Some templates open the thinking in the prompt, so that only its end is in the answer.
_OPEN_THINKING = re.compile(r"\A.*</think(?:ing)?>", re.DOTALL | re.IGNORECASE)
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
    for raw in _OPEN_THINKING.sub("", _THINKING.sub("", text)).splitlines():
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
    """A remote model as a teacher. `ledger.cost` is its client's, so failed attempts are in it too."""

    def __init__(self, client: ChatClient, max_tokens: int = 512, temperature: float = 1.0) -> None:
        self.name = client.model.model
        self.ledger = TeacherLedger(cost=client.cost)
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
        self.ledger.calls += 1
        written = "\n".join(steps) if steps else "(none)"
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
        )
        text = parse_step(completion.text)
        if text is None or (steps and text == steps[-1].strip()):
            _count(self.ledger, Failure.UNUSABLE)
            return None
        return TeacherProposal(text, f"teacher:{self.name}", direction)


@dataclass(slots=True)
class _Breaker:
    """Opens after `limit` failures in a row and stays open."""

    name: str
    limit: int
    in_a_row: int = 0
    open: bool = False

    def succeeded(self) -> None:
        self.in_a_row = 0

    def failed(self, error: TeacherError) -> None:
        self.in_a_row += 1
        if self.in_a_row >= self.limit and not self.open:
            self.open = True
            log.warning(
                "%s failed %d times in a row and is left out for the rest of the run: %s", self.name, self.limit, error
            )


class TeacherEnsemble:
    """Several teachers asked at once. A failing one costs its proposals, never the search."""

    def __init__(
        self,
        teachers: Sequence[Teacher],
        right: int = 1,
        wrong: int = 1,
        seed: int = 0,
        max_failures: int = FAILURES_IN_A_ROW,
    ) -> None:
        """`right` and `wrong` are the proposals of each direction that one call of `propose` asks for."""
        self.teachers = tuple(teachers)
        self._asks = (Direction.RIGHT,) * right + (Direction.WRONG,) * wrong
        self._seed = seed
        self._breakers = [_Breaker(f"teacher {teacher.name}", max_failures) for teacher in self.teachers]

    @property
    def active(self) -> list[Teacher]:
        """The teachers that are still asked."""
        return [t for t, breaker in zip(self.teachers, self._breakers, strict=True) if not breaker.open]

    @property
    def ledgers(self) -> dict[str, TeacherLedger]:
        """What each teacher did, by name."""
        return {teacher.name: teacher.ledger for teacher in self.teachers}

    @property
    def cost(self) -> Cost:
        """What all teachers cost together."""
        total = Cost()
        for teacher in self.teachers:
            total.add(teacher.ledger.cost)
        return total

    async def propose(self, problem: Problem, steps: Sequence[str], seed: int) -> list[TeacherProposal]:
        """Next steps after `steps`: at most `right` + `wrong`, fewer where teachers fail or have nothing to say.

        Which teacher gets which request depends on the seeds and on who is still active, not on timing; requests of
        one call go round the teachers. With nobody left the list is empty and the search goes on with the student.
        """
        active = [i for i, breaker in enumerate(self._breakers) if not breaker.open]
        if not active:
            return []
        first = Random(f"{self._seed}/{seed}").randrange(len(active))
        found = await asyncio.gather(
            *(
                self._ask(active[(first + i) % len(active)], problem, steps, direction, seed + i)
                for i, direction in enumerate(self._asks)
            )
        )
        return list(dict.fromkeys(proposal for proposal in found if proposal is not None))

    async def _ask(
        self, index: int, problem: Problem, steps: Sequence[str], direction: Direction, seed: int
    ) -> TeacherProposal | None:
        teacher, breaker = self.teachers[index], self._breakers[index]
        try:
            proposal = await teacher.propose(problem, steps, direction, seed)
        except TeacherError as error:
            _count(teacher.ledger, error.kind if isinstance(error, CallError) else Failure.OTHER)
            breaker.failed(error)
            return None
        breaker.succeeded()
        return proposal


class TerminalChecker:
    """Asks a model whether a response is finished. The rule's verdict stands in for every failure."""

    def __init__(self, client: ChatClient, max_failures: int = FAILURES_IN_A_ROW) -> None:
        self.ledger = TeacherLedger(cost=client.cost)
        self.disagreements = 0  # verdicts that were not the rule's
        self._client = client
        self._breaker = _Breaker(f"terminal checker {client.model.model}", max_failures)

    async def finished(self, problem: Problem, response: str, rule: bool) -> bool:
        """Whether `response` is finished; `rule` is what the search's own rule says."""
        if self._breaker.open:
            return rule
        self.ledger.calls += 1
        prompt = (
            f"Problem: {problem.question}\n\nSolution so far:\n{response}\n\nDoes the solution so far state its final"
            " answer? Reply with one word: FINISHED or UNFINISHED."
        )
        try:
            completion = await self._client.complete([{"role": "user", "content": prompt}], temperature=0.0)
        except CallError as error:
            _count(self.ledger, error.kind)
            self._breaker.failed(error)
            return rule
        self._breaker.succeeded()
        said = re.findall(r"\b(?:un)?finished\b", _OPEN_THINKING.sub("", _THINKING.sub("", completion.text)).lower())
        if not said:
            _count(self.ledger, Failure.UNUSABLE)
            return rule
        verdict = said[-1] == "finished"
        self.disagreements += verdict is not rule
        return verdict


def build_teachers(config: Config, scripted: Callable[[], Teacher]) -> TeacherEnsemble | None:
    """The ensemble of `teachers.tier`, or None for tier "none".

    Args:
        config: the resolved configuration.
        scripted: makes the scripted teacher of tier "embedded".

    Raises:
        ConfigError: the tier is unknown or empty, or its key is missing.
    """
    wanted = config.teachers
    if wanted.tier == "none":
        return None
    if wanted.tier == "embedded":
        teachers: list[Teacher] = [scripted()]
    else:
        tier = _tier(config)
        if not tier.teachers:
            raise ConfigError(
                f"teacher_tiers.{wanted.tier}.teachers is empty: name a model there or choose another tier"
            )
        endpoint = open_endpoint(wanted.tier, tier, wanted)
        teachers = [OpenAITeacher(ChatClient(endpoint, model, config.seed)) for model in tier.teachers]
    return TeacherEnsemble(teachers, wanted.right, wanted.wrong, config.seed)


def build_terminal_checker(config: Config) -> TerminalChecker | None:
    """The terminal checker, or None where `teachers.terminal_checker` is off.

    Raises:
        ConfigError: the tier has no checker, or its key is missing.
    """
    if not config.teachers.terminal_checker:
        return None
    tier = _tier(config)
    if tier.terminal_checker is None:
        raise ConfigError(f"teacher_tiers.{config.teachers.tier}.terminal_checker is missing: name a model there")
    endpoint = open_endpoint(config.teachers.tier, tier, config.teachers)
    return TerminalChecker(ChatClient(endpoint, tier.terminal_checker, config.seed))


def _tier(config: Config) -> TeacherTier:
    tier = config.teacher_tiers.get(config.teachers.tier)
    if tier is None:
        names = ", ".join(config.teacher_tiers)
        raise ConfigError(f"teachers.tier is {config.teachers.tier!r}, which has no models: choose one of {names}")
    return tier


def _count(ledger: TeacherLedger, kind: Failure) -> None:
    ledger.failures[kind.value] = ledger.failures.get(kind.value, 0) + 1
