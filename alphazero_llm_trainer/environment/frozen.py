"""The frozen students of this process: the embedded one answers on the loopback server, and the
run's own measures perplexity for PRE.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from ..config.load import AUTO_SMALL as EMBEDDED
from ..config.load import Config, load_config
from ..config.sections import StudentModel
from ..grading.answers import is_final
from ..policy.engine_steps import EngineSteps
from ..policy.folders import find_model
from ..rewards.perplexity import Perplexity
from ..types import JsonObject, Opening, Problem, Step, TokenIds

if TYPE_CHECKING:
    from ..policy.student import Student

STUDENT_FLAG = "--env.taskset.task.student"
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

    def encode(self, text: str, ended: bool, before: Sequence[int] = ()) -> TokenIds:
        """Token ids of `text` that somebody else wrote after the tokens `before`, with the end
        token where the response ended there.
        """
        end = (self.student.engine.eos_id,) if ended else ()
        return (*self.student.encode_part(text, before), *end)

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


Key = tuple[str, str | None]  # of a student: its name, and what its prompts begin with
_students: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Key, FrozenStudent]]
_students = WeakKeyDictionary()


def shared_student(
    name: str = EMBEDDED, entry: StudentModel | None = None, system_prompt: str | None = None
) -> FrozenStudent:
    """A student of the running event loop, loaded at the first call, while nothing else runs.

    Args:
        name: a name of models.yaml, a folder or a hub id.
        entry: what models.yaml would say of it, None where it does.
        system_prompt: what its prompts begin with; the embedded student's template leaves it out.
    """
    known = _students.setdefault(asyncio.get_running_loop(), {})
    key = name, None if name == EMBEDDED else system_prompt
    if key not in known:
        from ..policy.student import load_student  # torch, which other people's models do without

        keys, folder = find_student(name, entry)
        config = load_config(overrides=[keys])
        student = load_student(config, folder, Opening(key[1]), inference=True)
        known[key] = FrozenStudent(student, config)
    return known[key]


def find_student(name: str, entry: StudentModel | None = None) -> tuple[JsonObject, Path | None]:
    """The configuration's keys of a frozen student, and its folder where it is one (`find_model`).
    Raises ConfigError where there is none.
    """
    if entry is None:
        return find_model(name, load_config(), STUDENT_FLAG)
    return {"student": name, "models": {name: entry.model_dump()}}, None
