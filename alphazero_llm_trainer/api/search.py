"""`search` and `load`: a student, and one question answered by tree search."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..answering.searches import answer_search
from ..answering.students import answering_student
from ..chat.remote import RemoteStudent
from ..config.load import GUIDED_SEARCH, Config, check_read, load_answering, resolve_name
from ..config.refusals import refuse_conflicts
from ..errors import ConfigError
from ..eval.named_verifiers import load_verifier
from ..live import Progress, Stop
from ..mcts.driver import SearchResult
from ..mcts.select import constant, under_verifier
from ..policy.folders import carried_value, sets_search, with_chosen, with_discount
from ..problems.load import opening, with_context
from ..problems.registry import open_source, source_of, with_worlds
from ..problems.row_texts import check_text
from ..report.html import frame_page
from ..rewards.perplexity import Perplexity
from ..rewards.turns import TurnPolicy, steps_for
from ..tree.arena import Tree
from ..types import Problem, Task
from ..viewer.page import tree_page
from ..viewer.record import token_pieces
from .settings import Display, configure_call, outside_loops, progress_of

if TYPE_CHECKING:
    from ..policy.student import Student


@dataclass(slots=True)
class Searched(SearchResult):
    """A finished search, which a notebook shows as its tree."""

    # How the search chose children, and its exploration constant.
    rule: Mapping[str, Any] = field(default_factory=dict)
    # Tokens as text.
    decode: Callable[[Sequence[int]], str] = field(default=str, repr=False, compare=False)

    @property
    def record(self) -> dict[str, Any]:
        """What `search --json` prints."""
        choice = self.choice
        record = {
            "question": self.problem.question,
            "answer": self.answer,
            "why": None if choice is None else choice.why,
            "chosen": None if choice is None else choice.node,
            "response": self.response,
            "search": dict(self.rule),
            "ended_by": self.ended_by,
            "cost": self.cost.as_dict(),
            "tree": self.tree.to_dict(),
        }
        return record | {"pieces": token_pieces(record, self.decode, {})}

    def _repr_html_(self) -> str:
        return frame_page(tree_page(self.record, title="search"))


def load(model: str | Path = "auto", *, config: dict[str, Any] | None = None) -> Student:
    """A student: model, tokenizer and engine.

    Args:
        model: a name of models.yaml, a folder that `train`, `sft` or `merge` wrote, or a hub id.
        config: keys of training.yaml, nested or dotted.

    Raises:
        CheckpointError, ConfigError: there is none, or it can't be loaded; one sentence with the
            fix.
    """
    resolved, folder = configure_call(model, config, {}, load_answering)
    resolved = with_context(resolved)
    return outside_loops(
        lambda: answering_student(
            resolved, folder, opening(resolved), inference=False, trained=True
        )
    )


def search(
    question: str | Problem,
    *,
    model: str | Path | Student = "auto",
    simulations: int | None = None,
    mode: Literal["step", "token"] | None = None,
    value: str | Path | None = None,
    base_url: str | None = None,
    seed: int | None = None,
    config: dict[str, Any] | None = None,
    progress: Display = True,
    **settings: Any,
) -> Searched:
    """Answer one question by tree search with the student alone: no gold answer, no teachers.

    Args:
        question: its text, or a problem of a source.
        model: see `load`; a loaded student is used as it is.
        simulations: expansions of the tree (`search.simulations`).
        mode: what a node is: a step or a token.
        value: a folder of the command `value`; the search asks it.
        base_url: an OpenAI-compatible server's, whose model `model` is.
        seed: of everything random.
        config: keys of training.yaml, nested or dotted.
        progress: a live line, nothing, or a function that gets each line.
        settings: keys of its section `search`, such as `temperature` or `budget_tokens`.

    Returns:
        The tree, the choice (`answer`, `response`), why it was chosen, and what it cost in tokens.
        A notebook shows the tree.

    Raises:
        AlphaZeroError: the arguments or the model are wrong; one sentence with the fix.
    """
    if not isinstance(question, str | Problem):
        raise ConfigError(
            f"question is a {type(question).__name__}: give its text, or the `problem` of a task"
        )
    arguments: dict[str, Any] = {
        "search.simulations": simulations,
        "search.mode": mode,
        "search.value": None if value is None else str(value),
        "seed": seed,
    }
    if base_url is not None:
        arguments |= {"engine.backend": "openai", "engine.openai.base_url": base_url}
    arguments |= {f"search.{name}": setting for name, setting in settings.items()}
    load = partial(load_answering, guided=value is not None)
    resolved, folder = configure_call(model, config, arguments, load)
    problem = (
        Problem("question", question, open_source(resolved).name)
        if isinstance(question, str)
        else question
    )
    student = None if isinstance(model, str | Path) else model

    def call() -> Searched:
        with progress_of(progress) as shown:
            return answer_question(problem, resolved, folder, student, shown)

    return outside_loops(call)


SHOWN = 5  # words in a warning


def unknown_words(student: Student, question: str) -> list[str]:
    """The first words of a question that a small vocabulary has no token for."""
    unknown = student.tokenizer.unk_token_id
    words = dict.fromkeys(re.findall(r"\w+", question)) if unknown is not None else ()
    return [
        word
        for word in words
        if all(unknown in student.encode(text) for text in (word, f" {word}"))
    ][:SHOWN]


def with_own_value(
    config: Config, folder: Path | None, student: Student | None, progress: Progress
) -> tuple[Config, Path | None, str | None]:
    """The search by the value that the student's folder carries: its configuration, and under the
    rule that validation chose it for, the value's folder and the verifier; None for both elsewhere.
    """
    if config.search.value is not None or config.engine.backend == "openai":
        return config, None, None
    config, own = carried_value(config, folder, student)
    if own is None:
        return config, None, None
    judged = not sets_search(config)
    config, used, said = with_chosen(config, own)
    progress.say(said)
    if judged:
        return config, used, "calculator" if used is None else "calculator+value"
    guided = {"value": str(own)} | {
        key: choice
        for key, choice in GUIDED_SEARCH["search"].items()
        if f"search.{key}" not in config.own
    }
    return config.with_values(search=guided), None, None


def turns_in(
    problem: Problem, config: Config, student: Any, task: Task | None
) -> TurnPolicy | None:
    """What proposes turns in a problem's world, which sees no gold; None where it has no world."""
    source = source_of(problem)
    turns = steps_for(student, config.search, [source]) if source.worlds else None
    if isinstance(turns, TurnPolicy):
        if task is not None:
            turns.tasks[problem.id] = replace(task, gold="", others=())
        return turns
    return None


async def search_within(
    turns: TurnPolicy | None, search: Awaitable[SearchResult], problem: Problem
) -> SearchResult:
    """The result of a search, which runs in the problem's episode where it has one."""
    async with nullcontext() if turns is None else turns.episode(problem):
        return await search


def answer_question(
    problem: Problem,
    config: Config,
    folder: Path | None,
    student: Student | None,
    progress: Progress,
    heard: Callable[[int, str], None] | None = None,
    task: Task | None = None,
) -> Searched:
    """`search` with a whole configuration: `student`, or the one of `config` and `folder`, searches
    one problem.

    On `progress` the simulations are counted; `heard` is `RemoteStudent`'s. `task` has the columns
    that the problem's world begins with, if any.
    """
    if not problem.question.strip():
        raise ConfigError("the question is empty: write its text")
    check_text(problem.question, "the question")
    check_read(config, command="search", searches="yes")
    source = source_of(problem)
    config = with_worlds(config, "search", config.search.value is None, None, source)
    config, own, judge = with_own_value(config, folder, student, progress)
    alone = config.search.value is None and own is None
    if judge is None:
        refuse_conflicts(config, "search", valued=not alone, verified=False)
    if student is None:
        progress.wait(f"loading {folder or resolve_name(config)}")
        config = with_context(config, question=problem.question)
        student = answering_student(config, folder, opening(config), inference=alone)
    remote = student if isinstance(student, RemoteStudent) else None
    if remote is not None and heard is not None:
        remote.heard = heard
    strange = unknown_words(student, problem.question) if remote is None else []
    if strange:
        progress.say(
            f"{student.name} doesn't know {', '.join(map(repr, strange))}: its answer means little"
        )
    perplexity = (
        Perplexity(student, config.search.max_tokens, own=True)
        if config.rewards.measures and remote is None
        else None
    )
    turns = turns_in(problem, config, student, task)
    value = None
    if config.search.value is not None:
        from ..policy.critic import load_value

        folder = Path(config.search.value)
        value = load_value(folder, student, config)
        config = with_discount(config, folder)
    verifier = None if judge is None else load_verifier(judge, student, config, None, own)
    tree = Tree()
    with Stop(progress) as stop:

        def ask_stop() -> bool:
            """Whether to stop; the search asks before each simulation."""
            progress.at(len(tree.simulations))
            return stop()

        search = answer_search(
            student, config, perplexity, ask_stop, value, policy=turns, verifier=verifier
        )
        held = "after the simulation in hand"
        progress.start(config.search.simulations, unit="simulation", held=held)
        result = asyncio.run(search_within(turns, search.run(problem, config.seed, tree), problem))
        progress.at(len(tree.simulations))
        progress.stop()
    if remote is not None and (word := remote.word):
        progress.say(word)
    selector = config.search.selector(verifier is not None)
    largest = config.search.backup == "max"
    rule = {
        "rule": selector if judge is None else under_verifier(selector),
        "exploration": constant(selector, config.search.exploration, not alone, largest),
    }
    if judge is not None:
        rule["verifier"] = judge
    decode = partial(student.tokenizer.decode, skip_special_tokens=False)
    return Searched(
        **{part.name: getattr(result, part.name) for part in fields(result)},
        rule=rule,
        decode=decode,
    )
