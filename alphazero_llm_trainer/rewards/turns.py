"""Turns of a student in worlds, as the steps of a search.

A turn is a step: it is drawn to its end, the world acts, and what it answers follows as given
tokens, rendered by the student's own chat template, or as a line for a student without one. So
every expansion, selector and verifier searches worlds, and every method of answering plays them.
Turns of one state are acted from the same place, by the ladder of forks (`problems.worlds`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, NamedTuple

from ..chat.tool_calls import as_message, render_turn
from ..config.sections import SearchConfig
from ..engine.protocol import Generated, Limits, PaidContinuations, StepPolicy, Wanted
from ..errors import AlphaZeroError, ConfigError, RequestError, reason_of
from ..grading.graders import Grade, Verdict
from ..mcts.seeds import derive_seed
from ..mcts.waiting import gather_all
from ..policy.chat import OPENED
from ..policy.engine_steps import drawing_cost
from ..policy.proposals import make_steps
from ..policy.tool_chat import ToolChat
from ..problems.registry import reading_of, source_of
from ..problems.source import Source
from ..problems.worlds import ERROR, Episodes, Place, Seen, Tooling
from ..tree.arena import WHOLE
from ..types import (
    Continuation,
    Cost,
    Direction,
    Facts,
    Observation,
    Problem,
    RewardParts,
    Step,
    Steps,
    Task,
    TokenIds,
    ids_of,
    in_first_question,
    text_of,
)


class Ending(NamedTuple):
    """How an episode ended: what states its answer, its reward (for reports and training alone),
    and how many turns it had, calls of tools, and calls that gave an error.
    """

    stated: str
    reward: float | None
    turns: int
    calls: int
    errors: int

    def grade(self) -> Grade:
        """The reward as a grade."""
        verdict = Verdict.CORRECT if self.reward == 1.0 else Verdict.WRONG
        return Grade(verdict, self.stated, partial=self.reward)


UNENDED = Grade(Verdict.UNPARSED, None)  # of an episode that a limit cut


class Stage:
    """The episodes of one problem, as a student sees them.

    `prompt` are the tokens before the first turn; `endings` are by the whole response's text.
    """

    def __init__(self, student: Any, settings: SearchConfig, task: Task, checked: set[str]) -> None:
        self.student, self.problem = student, task.problem
        source = source_of(task.problem)
        self.chat = ToolChat(student)
        tooling = Tooling(
            self.chat.read,
            settings.tool_seconds,
            settings.tool_tokens,
            lambda text: len(student.encode(text)),
        )
        self.outcome = source.outcome
        self.episodes = Episodes(lambda: source.world(task, tooling), checked)
        self.lock, self.users = asyncio.Lock(), 0
        self.messages: list[Facts] = []
        self.prompt: TokenIds = ()
        self.places: dict[TokenIds, Place] = {}  # by the tokens before
        # By the tokens before a turn and its own: what the turn came to, and whether that ended it.
        self.taken: dict[tuple[TokenIds, TokenIds], tuple[Step, bool]] = {}
        self.endings: dict[str, Ending] = {}

    async def open(self) -> None:
        """Begin. Raises RequestError where the world doesn't."""
        try:
            place = await self.episodes.open()
        except AlphaZeroError:
            raise
        except Exception as error:
            raise RequestError(
                f"the world of {self.problem.id} didn't open ({reason_of(error)})"
            ) from error
        tools = self.chat.tools = place.start.tools
        own = [one for one in place.start.messages if one["role"] != "system"]
        first = self.student.opening.messages(self.problem.question)
        self.messages = [*(first or place.start.messages[: -len(own)]), *own]
        shown = () if self.student.plain else tools
        if shown:
            _ = self.chat.form  # what can't be read is refused before the first turn
        if not self.student.plain:
            try:
                self.student.whole(self.messages, OPENED, shown)
            except RequestError:
                self.messages = in_first_question(self.messages)
        self.prompt = self.student.chat_ids(self.messages, tools=shown)
        self.places[()] = place

    def turn_of(self, token_ids: Sequence[int]) -> str:
        """The text of a turn's drawn tokens, calls and their marks in it, without its end."""
        if self.student.plain:
            return self.chat.decode(token_ids).removesuffix("\n")
        ended = token_ids[-1:] == (self.student.engine.eos_id,)
        return self.chat.decode(token_ids[: len(token_ids) - ended])

    async def act(self, steps: Steps, drawn: Generated) -> tuple[Step, bool]:
        """The turn with what the world answers, and whether that ends the episode. Raises
        RequestError where the world can't go on.
        """
        before, ids = ids_of(steps), drawn.token_ids
        if (before, ids) in self.taken:
            return self.taken[before, ids]
        turn = self.turn_of(ids)
        async with self.lock:
            place = await self.place(steps)
            after = await self.episodes.act(place, turn)
        seen = after.path[-1][1]
        if seen.failure is not None:
            raise RequestError(f"the world of {self.problem.id} failed: {seen.failure}")
        given = () if seen.done else self.encode_answer(place, turn, seen, before, ids)
        answer = Observation(len(given), text_in(seen), seen.calls, seen.errors)
        logprobs = (*drawn.logprobs, *(0.0 for _ in given))
        step = Step((*ids, *given), logprobs, f"{turn}\n", answer)
        path = (*steps, step)
        if seen.done:
            ending = Ending(
                self.outcome(self.chat.read(turn).text, answer.text),
                seen.reward,
                len(path),
                sum(len(one.seen.calls) for one in path if one.seen),
                sum(len(one.seen.errors) for one in path if one.seen),
            )
            if self.endings.setdefault(text_of(path), ending) != ending:
                raise RequestError(
                    f"the world of {self.problem.id} ended differently after turns that read "
                    "alike, joined: line ends in a turn tell nothing apart"
                )
        else:
            self.places[ids_of(path)] = after
        self.taken[before, ids] = step, seen.done
        return step, seen.done

    async def place(self, steps: Steps) -> Place:
        """The state after turns: of an earlier search they are played again."""
        ids = ids_of(steps)
        if ids not in self.places:
            *before, last = steps
            after = await self.episodes.act(await self.place(before), last.text[:-1])
            if last.seen is None or text_in(after.path[-1][1]) != last.seen.text:
                raise ConfigError(
                    f"the world of {self.problem.id} answers differently than its tree holds: "
                    "search it again"
                )
            self.places[ids] = after
        return self.places[ids]

    def messages_at(self, place: Place) -> list[Facts]:
        """The chat up to a state."""
        messages = [*self.messages]
        for turn, seen in place.path:
            messages += [as_message(self.chat.read(turn)), *number_messages(seen)]
        return messages

    def encode_answer(
        self, place: Place, turn: str, seen: Seen, before: TokenIds, drawn: TokenIds
    ) -> TokenIds:
        """Token ids of what follows a turn up to the next one. Raises ConfigError where the chat
        template writes earlier turns otherwise then.
        """
        if self.student.plain:
            lines = (self.line(one["content"]) for one in seen.messages)
            return tuple(self.student.encode_part("".join(lines), (*before, *drawn)))
        messages, said = self.messages_at(place), self.chat.read(turn)
        begun = self.chat.render(messages, True) + render_turn(said, messages, self.chat.render)
        whole = self.chat.render([*messages, as_message(said), *number_messages(seen)], True)
        if not whole.startswith(begun):
            raise ConfigError(
                "the chat template rewrites earlier turns: tools need one that keeps them"
            )
        ids = self.student.encode(self.student.without_thought(whole[len(begun) :]))
        end = self.student.engine.eos_id
        if drawn[-1:] == (end,) and end in ids:
            ids = ids[ids.index(end) + 1 :]
        return tuple(ids)

    def line(self, content: str) -> str:
        """An observation as a line: `error` alone where a small vocabulary lacks its words."""
        text = " ".join(content.split())
        unknown = self.student.tokenizer.unk_token_id
        if text.startswith(ERROR) and unknown in self.student.encode(text):
            text = ERROR
        return f"{text}\n"


def text_in(seen: Seen) -> str:
    """What a world answered, as text."""
    return "\n".join(message["content"] for message in seen.messages)


def number_messages(seen: Seen) -> list[Facts]:
    """The messages of an answer, with the ids that `as_message` gives the calls."""
    return [
        {**message, "tool_call_id": f"{at:09}"} if message["role"] == "tool" else message
        for at, message in enumerate(seen.messages)
    ]


class TurnPolicy(StepPolicy):
    """Proposes turns in problems that have worlds, and elsewhere the steps of `inner`.

    `tasks` (by problem id) have what worlds need to tell rewards; a problem that isn't among them
    has the task of its source.
    """

    def __init__(self, student: Any, settings: SearchConfig, inner: StepPolicy) -> None:
        self.student, self.settings, self.inner = student, settings, inner
        self.lead, self.temperature = inner.lead, settings.temperature
        self.tasks: dict[str, Task] = {}
        self.stages: dict[str, Stage] = {}
        self.checked: set[str] = set()

    @asynccontextmanager
    async def episode(self, problem: Problem) -> AsyncIterator[None]:
        """Everything that is asked about a problem is asked within it. Worlds are open within it,
        and none after it.
        """
        if not source_of(problem).worlds:
            yield
            return
        if problem.id not in self.stages:
            task = self.tasks.get(problem.id) or source_of(problem).task_of(problem)
            self.stages[problem.id] = Stage(self.student, self.settings, task, self.checked)
        stage = self.stages[problem.id]
        stage.users += 1
        try:
            async with stage.lock:
                if not stage.places:
                    await stage.open()
            yield
        finally:
            stage.users -= 1
            if not stage.users:
                del self.stages[problem.id]
                await stage.episodes.__aexit__()

    def prompt_ids(self, problem: Problem) -> TokenIds:
        """Token ids of the prompt that asks a problem's question."""
        if problem.id in self.stages:
            return self.stages[problem.id].prompt
        return self.inner.prompt_ids(problem)

    def ending(self, problem: Problem, response: str | None) -> Ending | None:
        """How the episode of a response ended; None where it didn't."""
        stage = self.stages.get(problem.id)
        return None if stage is None or response is None else stage.endings.get(response)

    def state_answer(self, problem: Problem, response: str) -> str:
        """What of a response states its answer: all, or what an episode ended with."""
        if problem.id not in self.stages:
            return response
        ending = self.ending(problem, response)
        return "" if ending is None else ending.stated

    def reading(self, problem: Problem) -> Callable[[str], str | None]:
        """What responses to a problem answer, for votes: what their episodes state."""
        read = reading_of(problem)
        return lambda response: read(self.state_answer(problem, response))

    def grade(self, problem: Problem, response: str) -> Grade | None:
        """The grade of an episode's response; None of a problem without a world."""
        if problem.id not in self.stages:
            return None
        ending = self.ending(problem, response)
        return UNENDED if ending is None else ending.grade()

    async def earn_one(
        self,
        problem: Problem,
        steps: Steps,
        directions: Sequence[Direction],
        verdict: str,
    ) -> RewardParts:
        """What `terminal.finished_earns_one` says, of an episode: it ended, and states an
        answer."""
        stated = self.state_answer(problem, text_of(steps))
        answers = source_of(problem).final_answer(stated) is not None
        return RewardParts(total=float(verdict in WHOLE and answers))

    async def draw(self, problem: Problem, steps: Steps, wanted: Wanted) -> PaidContinuations:
        """Turns and what their worlds answer. `without` is of single turns alone: what follows one
        depends on the world.
        """
        stage = self.stages.get(problem.id)
        if stage is None:
            return await self.inner.draw(problem, steps, wanted)
        cost, seed = Cost(), wanted.seed
        first = wanted if wanted.limits.steps == 1 else replace(wanted, without=None)
        drawn = await self.draw_turns(stage, steps, first, cost)
        made = await gather_all(
            *(
                self.go_on(stage, steps, turn, replace(wanted, seed=derive_seed(seed, at)), cost)
                for at, turn in enumerate(drawn)
            )
        )
        return made, cost

    async def draw_turns(
        self, stage: Stage, steps: Steps, wanted: Wanted, cost: Cost
    ) -> list[Generated]:
        """`wanted.n` next turns, without what the world answers; `cost` is added to."""
        prefix, most = stage.prompt + ids_of(steps), 1 if self.student.plain else None
        request = wanted.request_after(prefix, self.temperature, most)
        [generated] = await self.student.engine.generate([request])
        cost.add(drawing_cost(prefix, generated))
        return generated

    async def go_on(
        self,
        stage: Stage,
        steps: Steps,
        drawn: Generated,
        wanted: Wanted,
        cost: Cost,
    ) -> Continuation:
        """The turn `drawn` and those after it, to the episode's end or the limits. A turn that a
        limit cut, or whose answer doesn't fit, comes last, and nothing was answered to it.
        """
        path, limits = [*steps], wanted.limits
        left = limits.tokens
        while True:
            tempered = drawn.tempered if limits.steps == 1 else None
            step, done = (
                Step(drawn.token_ids, drawn.logprobs, stage.turn_of(drawn.token_ids)),
                False,
            )
            ends = self.student.engine.step_ends
            whole = drawn.finish != "length" or (self.student.plain and ends.whole(drawn.token_ids))
            if whole:
                acted, done = await stage.act(path, drawn)
                assert acted.seen is not None
                cost.add(
                    Cost(
                        turns=1,
                        tool_calls=len(acted.seen.calls),
                        tool_errors=len(acted.seen.errors),
                    )
                )
                whole = len(acted.token_ids) <= left
                step = acted if whole else step
            path.append(step)
            made = tuple(path[len(steps) :])
            if not whole:
                return Continuation(made, False, cut=True, why=limits.by, tempered=tempered)
            cost.given_tokens += len(step.token_ids) - step.drawn
            left -= len(step.token_ids)
            if done or left == 0 or len(made) >= limits.steps:
                return Continuation(made, done, tempered=tempered)
            again = Wanted(
                1, derive_seed(wanted.seed, len(made)), Limits(1, left), wanted.temperature, None
            )
            [drawn] = await self.draw_turns(stage, path, again, cost)

    async def read_step(
        self, problem: Problem, steps: Steps, text: str, ended: bool
    ) -> tuple[Step, Cost]:
        """The step after `steps` that has this text; `ended`: and ends the response. Raises
        ConfigError in a world: nobody else takes turns there.
        """
        if problem.id in self.stages:
            raise ConfigError("teachers write steps and no turns: leave them out of this source")
        return await self.inner.read_step(problem, steps, text, ended)


def steps_for(student: Any, settings: SearchConfig, sources: Sequence[Source]) -> StepPolicy:
    """What proposes steps in problems of these sources: turns where one has worlds."""
    steps = make_steps(student, settings.temperature)
    worlds = any(source.worlds for source in sources)
    return TurnPolicy(student, settings, steps) if worlds else steps


def steps_for_tasks(student: Any, settings: SearchConfig, tasks: Sequence[Task]) -> StepPolicy:
    """`steps_for` the sources of these tasks, whose rewards worlds tell."""
    sources = {task.problem.source: source_of(task.problem) for task in tasks}
    policy = steps_for(student, settings, [*sources.values()])
    if isinstance(policy, TurnPolicy):
        policy.tasks |= {task.problem.id: task for task in tasks}
    return policy
