"""The frozen embedded student of this process: it answers on the loopback server and measures perplexity for PRE."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from weakref import WeakKeyDictionary

from ..answers import is_final
from ..config.load import Config, load_config
from ..policy.student import Student, load_student
from ..rewards.perplexity import Perplexity
from ..types import Problem, Step

EMBEDDED_MODEL = "embedded-student"
# A name, not an address: records and `--resume` stay the same from run to run while the server's port changes.
EMBEDDED_URL = "embedded://student/v1"


class FrozenStudent:
    """One loaded student and its perplexity reward. Every call must come from one event loop."""

    def __init__(self, student: Student, config: Config) -> None:
        self.student, self.config = student, config
        self.perplexity = Perplexity(student, config.search.max_tokens, own=True)

    @property
    def eos_id(self) -> int:
        """The token that ends a response."""
        return self.student.engine.eos_id

    def fits(self, question: str) -> bool:
        """Whether the prompt of `question` leaves room in the context for a response."""
        return len(self.student.prompt_ids(question)) < self.student.engine.capabilities.max_context

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of `text` alone: no special tokens."""
        return tuple(self.student.encode(text))

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of token ids, special tokens left out."""
        return self.student.decode(token_ids)

    async def perplexity_reward(self, problem: Problem, response: str, token_ids: Sequence[int] | None = None) -> float:
        """PRE of a response (docs/design.md, section 5), in [0, 1]: 0.5 for the student's own greedy answer.

        `token_ids` are the response's where the student sampled it itself; somebody else's text is tokenised. A response
        beyond the student's context is measured on the part that fits.

        Raises:
            EngineError: the question itself doesn't fit into the student's context.
        """
        if token_ids is None:
            token_ids = self.encode(response.strip()) if response.strip() else ()
            if is_final(response.strip().rpartition("\n")[2]):
                token_ids = (*token_ids, self.eos_id)  # it ended there, and so does the baseline it is compared with
        room = self.student.engine.capabilities.max_context - len(self.student.prompt_ids(problem.question))
        reward, _ = await self.perplexity(problem, [Step(tuple(token_ids[: max(room, 0)]), (), response)])
        return reward


_students: WeakKeyDictionary[asyncio.AbstractEventLoop, FrozenStudent] = WeakKeyDictionary()


def frozen_student() -> FrozenStudent:
    """The running event loop's student, loaded at the first call (about a second, and nothing else runs meanwhile)."""
    loop = asyncio.get_running_loop()
    student = _students.get(loop)
    if student is None:
        config = load_config(overrides=[{"student": "embedded"}])
        student = _students[loop] = FrozenStudent(load_student(config, inference=True), config)
    return student
