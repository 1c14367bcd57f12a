"""The frozen embedded student of this process: it answers on the loopback server and measures
perplexity for PRE.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from ..config.load import Config, load_config
from ..grading.answers import is_final
from ..policy.engine_steps import EngineSteps
from ..rewards.perplexity import Perplexity
from ..types import Problem, Step

if TYPE_CHECKING:
    from ..policy.student import Student

EMBEDDED_MODEL = "embedded-student"
# A name, not an address: records and `--resume` stay the same from run to run while the server's
# port changes.
EMBEDDED_URL = "embedded://student/v1"


class FrozenStudent:
    """One loaded student and its perplexity reward. Every call must come from one event loop."""

    def __init__(self, student: Student, config: Config) -> None:
        self.student, self.config = student, config
        self.perplexity = Perplexity(student, config.search.max_tokens, own=True)
        self.steps = EngineSteps(student, config.search.temperature)

    def room(self, question: str) -> int:
        """Tokens that the context leaves for a response to `question`; none, or fewer, where it
        doesn't fit.
        """
        return self.student.engine.capabilities.max_context - len(self.student.prompt_ids(question))

    def encode(self, text: str, ended: bool) -> tuple[int, ...]:
        """Token ids of `text` that somebody else wrote, with the end token where the response ended
        there.
        """
        return (*self.student.encode(text), *((self.student.engine.eos_id,) if ended else ()))

    async def perplexity_reward(
        self, problem: Problem, response: str, token_ids: Sequence[int] | None
    ) -> float:
        """PRE of a response (docs/design.md, section 5), in [0, 1]: 0.5 for the student's own
        greedy answer.

        `token_ids` are the response's where the student sampled it itself; somebody else's text is
        tokenised. A response beyond the student's context is measured on the part that fits.

        Raises:
            EngineError: the question itself doesn't fit into the student's context.
        """
        if token_ids is None:
            text = response.strip()
            # One that states its answer last ended there, and so does the baseline it is compared
            # with.
            token_ids = self.encode(text, is_final(text.rpartition("\n")[2])) if text else ()
        fitting = tuple(token_ids[: max(self.room(problem.question), 0)])
        reward, _ = await self.perplexity(problem, [Step(fitting, (), response)])
        return reward


_students: WeakKeyDictionary[asyncio.AbstractEventLoop, FrozenStudent] = WeakKeyDictionary()


def frozen_student() -> FrozenStudent:
    """The running event loop's student, loaded at the first call (about a second, and nothing else
    runs meanwhile).
    """
    loop = asyncio.get_running_loop()
    student = _students.get(loop)
    if student is None:
        from ..policy.student import load_student  # torch, which other people's models do without

        config = load_config(overrides=[{"student": "embedded"}])
        student = _students[loop] = FrozenStudent(load_student(config, inference=True), config)
    return student
