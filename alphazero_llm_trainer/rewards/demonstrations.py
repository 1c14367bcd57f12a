"""Worked solutions as tokens: what a student would have written, and what a world answered."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

from ..chat.tool_calls import render_turn, write_line
from ..config.sections import SearchConfig
from ..engine.protocol import Generated
from ..errors import DataError
from ..problems.registry import source_of
from ..types import Said, Step, Steps, Task, TokenIds, drawn_mask, ids_of, text_of
from .turns import Stage, TurnPolicy, steps_for_tasks


class Worked(NamedTuple):
    """A demonstration: its prompt, its response, and which of the response's tokens are the
    student's own turns; () where all are.
    """

    prompt_ids: TokenIds
    token_ids: TokenIds
    mask: tuple[bool, ...] = ()


def work_out(student: Any, settings: SearchConfig | None, tasks: Sequence[Task]) -> list[Worked]:
    """The tasks' demonstrations; those of a source with worlds are acted there, and have the tokens
    that a search of the same turns has. Runs its own event loop there.

    Raises DataError where a demonstration doesn't end its episode, or earns nothing.
    """
    turns = steps_for_tasks(student, settings or SearchConfig(), tasks)
    if not isinstance(turns, TurnPolicy):
        return [Worked(*student.solution_ids(task)) for task in tasks]

    async def act_all() -> list[Worked]:
        return [await act_out(turns, task) for task in tasks]

    return asyncio.run(act_all())


async def act_out(turns: TurnPolicy, task: Task) -> Worked:
    """The tasks' demonstrations; those of a source with worlds are acted there, and have the tokens
    that a search of the same turns has.
    """
    problem, path, over = task.problem, list[Step](), False
    async with turns.episode(problem):
        stage = turns.stages[problem.id]
        said = source_of(problem).turns(task)
        while not over and len(path) < len(said):
            ids = await turn_ids(stage, said[len(path)], path)
            step, over = await stage.act(path, Generated(ids, (0.0,) * len(ids), "eos"))
            path.append(step)
        ending = turns.ending(problem, text_of(path))
        if ending is None or len(path) < len(said) or ending.reward == 0:
            how = "doesn't end its episode" if ending is None else "ends before its last turn"
            if ending is not None and ending.reward == 0:
                how = "earns nothing"
            raise DataError(
                f"source {problem.source}: the demonstration of {problem.id!r} {how}: mend what "
                "its `turns` returns"
            )
        return Worked(stage.prompt, ids_of(path), drawn_mask(path))


async def turn_ids(stage: Stage, said: Said, before: Steps) -> TokenIds:
    """Token ids of a turn after those before it, as the student writes it: a line, or by its chat
    template with the token that ends a turn.
    """
    student, ids = stage.student, ids_of(before)
    if student.plain:
        return tuple(student.encode_part(f"{write_line(said)}\n", ids))
    text = render_turn(said, stage.messages_at(await stage.place(before)), stage.chat.render)
    return (*student.encode_part(text, ids), student.engine.eos_id)
