"""A served model that scores responses and their steps by a rubric: a verifier, and a reward."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path

from ..config.sections import JudgeConfig, TeacherModel, TeachersConfig
from ..engine.protocol import UNJUDGED, Judgement
from ..errors import ConfigError, RewardError
from ..types import Problem, Steps, TokenIds
from .answer import UNUSABLE, CallError
from .client import ChatClient, Endpoint

RUBRIC = (
    "You judge solutions. Score the LAST step of the solution so far: 1 where it is correct and "
    "leads to the answer of the problem, 0 where it is wrong, and between them where you doubt. "
    "Check each calculation and each number against the problem."
)
SCORE_FORM = "Think briefly if you must. End your reply with a line `SCORE: x`, x from 0 to 1."
SCORE = re.compile(r"score\W{0,4}\s*(1(?:\.0+)?|0?\.\d+|0)(?![\d.]*\d)", re.IGNORECASE)


class Judge:
    """The model of `rewards.judge` as a verifier (see `engine.protocol.Verifier`).

    Each beginning of a response is asked for once, eight at a time, and kept. A step of which the
    judge says no score, whatever the reason, is unread. The total is the least step.
    """

    name, checks, guides, computes = "judge", True, False, True

    def __init__(self, settings: JudgeConfig, limits: TeachersConfig) -> None:
        self.rubric = RUBRIC if settings.rubric is None else rubric_of(settings.rubric)
        key = None if settings.key_variable is None else os.environ.get(settings.key_variable)
        if settings.key_variable is not None and not key:
            raise ConfigError(
                f"rewards.judge.key_variable is {settings.key_variable}, which isn't set: set it"
            )
        model = TeacherModel(model=settings.model)
        self.client = ChatClient(Endpoint(settings.base_url, key, limits), model, self.name)
        self.kept: dict[tuple[str, str], asyncio.Future[float]] = {}

    @property
    def scored_tokens(self) -> int:
        """What the judge read and wrote, by its own count."""
        cost = self.client.ledgers.of(self.name).cost
        return cost.prompt_tokens + cost.cached_tokens + cost.sampled_tokens

    async def score(self, question: str, response: str) -> float:
        """The score of a response's last step, in [0, 1]. Raises CallError where there is none."""
        key = (question, response)
        # Another event loop's futures can't be waited for: what is done can be read.
        kept = self.kept.get(key)
        if kept is None or (not kept.done() and kept.get_loop() is not asyncio.get_running_loop()):
            kept = self.kept[key] = asyncio.ensure_future(self.ask(question, response))
        if kept.done():
            return kept.result()
        try:
            return await asyncio.shield(kept)
        except (CallError, asyncio.CancelledError):
            self.kept.pop(key, None)  # it may be asked again
            raise

    async def ask(self, question: str, response: str) -> float:
        """`score` by a call."""
        try:
            scores = SCORE.findall(await self.reply(question, response))
            if not scores:
                raise CallError(UNUSABLE, f"{self.name} said no SCORE from 0 to 1")
        except CallError as error:
            self.client.ledgers.count_failure(self.name, error)
            raise
        return float(scores[-1])

    async def __call__(self, problem: Problem, prompt_ids: TokenIds, steps: Steps) -> Judgement:
        """The judgement of `steps` (lines of a response, the last one may end it) after the prompt
        that the policy read.
        """
        texts = ["".join(step.text for step in steps[: at + 1]) for at in range(len(steps))]
        asked = (self.score(problem.question, text) for text in texts)
        scores = await asyncio.gather(*asked, return_exceptions=True)
        for score in scores:
            if isinstance(score, BaseException) and not isinstance(score, CallError):
                raise score
        unchecked = frozenset(at for at, score in enumerate(scores) if not isinstance(score, float))
        known = tuple(score if isinstance(score, float) else 1.0 for score in scores)
        return Judgement(known, min(known, default=UNJUDGED), unchecked, unread=unchecked)

    async def reply(self, question: str, response: str) -> str:
        """What the judge says of a response's last step. Raises CallError where it says nothing."""
        asked = f"Problem:\n{question}\n\nSolution so far:\n{response}\n\n{SCORE_FORM}"
        messages = [{"role": "system", "content": self.rubric}, {"role": "user", "content": asked}]
        async with self.client.endpoint.session():
            return await self.client.complete(messages, temperature=0.0)

    def greet(self) -> None:
        """Raise ConfigError where the judge's server doesn't answer, or not for such a model."""
        try:
            asyncio.run(self.reply("What is 1 + 1?", "1 + 1 = 2"))
        except CallError as error:
            if error.kind != UNUSABLE:
                raise ConfigError(f"--judge-url: {error}") from error

    async def reward(self, problem: Problem, response: str, task: object) -> float:
        """The score of a whole response, as a reward. Raises RewardError where there is none."""
        try:
            return await self.score(problem.question, response)
        except CallError as error:
            raise RewardError(f"rewards.judge: {error}") from error


def rubric_of(place: str) -> str:
    """The text of a rubric's file. Raises ConfigError where there is none."""
    try:
        text = Path(place).expanduser().read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"rubric {place} can't be read ({reason}): name a text file") from error
    if not text:
        raise ConfigError(f"rubric {place} is empty: write what a good step is")
    return text


def open_judge(settings: JudgeConfig | None, limits: TeachersConfig, asker: str) -> Judge:
    """The judge of `rewards.judge`, for messages that of `asker`. Raises ConfigError where none is
    named.
    """
    if settings is None:
        raise ConfigError(
            f"{asker} is judge and no judge is named: add --judge-url and --judge-model"
        )
    return Judge(settings, limits)
