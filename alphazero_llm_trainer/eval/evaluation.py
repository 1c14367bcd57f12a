"""A whole evaluation: methods x budgets x sources, cell by cell, each kept as it is finished; then
what is read off them.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..config.load import Config, explain_error
from ..config.objects import hash_code
from ..config.refusals import refuse_conflicts
from ..errors import ConfigError
from ..live import Progress, StopAsked, run_until
from ..mcts.waiting import gather_all
from ..policy.chat import check_prompts
from ..policy.folders import carried_value, check_critic, with_chosen, with_discount
from ..problems.load import ALL, load_tasks, opening, with_context
from ..problems.registry import check_reads, open_one_of, with_worlds
from ..problems.source import Source
from ..rewards.custom import JUDGE, open_reward
from ..tree.extract import remedy, shortfall
from ..types import JsonObject
from .agreement import measure_agreement
from .attempt import MethodContext
from .cells import SAMPLES_METHOD, Benchmark, refusal_reasons, run_cell, run_samples
from .methods import run_method
from .named_verifiers import RANKING, check_judged, load_verifier, named_verifier
from .names import UNJUDGED_METHODS, MethodName
from .results import (
    EvalFolder,
    find_leaders,
    list_failures,
    pair_methods,
    pass_rows,
    summarise_cell,
)

if TYPE_CHECKING:
    from ..policy.student import Student

PositiveCount = Annotated[int, Field(ge=1)]
TRIED_FIRST = 2  # questions of each source that are answered before the others


class Evaluation(BaseModel):
    """What is compared on which problems; `az.evaluate` says what each is."""

    model_config = ConfigDict(frozen=True)

    source: Annotated[list[str], Field(min_length=1)]
    methods: Annotated[list[MethodName], Field(min_length=1)]
    budget_tokens: Annotated[list[PositiveCount], Field(min_length=1)]
    verifier: str | None
    prm: Path | None
    value: Path | None
    num: PositiveCount
    start: Annotated[int, Field(ge=0)]
    split: Literal["train", "validation", "arena", "test", "all"]
    samples: Annotated[int, Field(ge=0)]

    @classmethod
    def of(cls, flag: Callable[[str], str], **asked: Any) -> Evaluation:
        """What is `asked` for. Raises ConfigError for the first argument that can't be; `flag` says
        how it is called.
        """
        words = ",".join(asked["methods"]).split(",")  # `a,b` is as good as `a b`
        asked["methods"] = [word for word in map(str.strip, words) if word]
        try:
            work = cls(**asked)
        except ValidationError as error:
            place = [str(part) for part in error.errors()[0]["loc"]]
            raise ConfigError(
                flag(place[0]) + explain_error(error).removeprefix(".".join(place))
            ) from error
        if work.guide is not None and "mcts" not in work.methods:
            raise ConfigError(
                f"{flag('verifier')} is 'none' and {flag('value')} guides mcts alone: add mcts to "
                f"{flag('methods')}, or leave {flag('verifier')} out"
            )
        for name, critic in (("prm", work.prm), ("value", work.value)):
            if critic is not None:
                check_critic(critic, name, f"{flag(name)} {critic}")
        if (
            work.judge != "none"
            and set(work.methods) <= set(UNJUDGED_METHODS)
            and (work.verifier or work.prm or work.value)
        ):
            raise ConfigError(
                f"{flag('verifier')} is {work.judge!r} and none of {flag('methods')} "
                f"{', '.join(work.methods)} asks a verifier: "
                "leave it out, or add a method such as mcts"
            )
        return work

    @property
    def judge(self) -> str:
        """The verifier's name; see `named_verifier`."""
        return named_verifier(self.verifier, self.prm, None if self.guide else self.value)

    @property
    def guide(self) -> Path | None:
        """The folder of the value that guides searches and judges nothing, if any."""
        return self.value if self.verifier == "none" else None

    @property
    def cells(self) -> list[tuple[str, str, int]]:
        """(source, method, budget) of every cell, budgets from small to large; samples last."""
        budgets, sources = sorted(set(self.budget_tokens)), dict.fromkeys(self.source)
        methods = dict.fromkeys(self.methods)
        cells = [
            (source, method, budget)
            for source in sources
            for budget in budgets
            for method in methods
        ]
        return cells + [
            (source, SAMPLES_METHOD, self.samples) for source in sources if self.samples
        ]

    def run(
        self,
        config: Config,
        path: Path | None,
        student: Student | None,
        folder: EvalFolder,
        progress: Progress,
        stop: StopAsked,
    ) -> JsonObject:
        """Every cell that is missing in `folder`; returns what results.json holds. `path`
        is the student's folder.

        Raises:
            StoppedError: the user asked to stop; finished cells are kept.
        """
        config, work = self.with_own_value(config, path, student, progress)
        config.refuse(
            {"search.budget_tokens": "and --budget-tokens are an evaluation's: name them"}
        )
        if work.value is not None:
            config = with_discount(config, work.value)
        return work.measure_cells(config, path, student, folder, progress, stop)

    def with_own_value(
        self, config: Config, path: Path | None, student: Student | None, progress: Progress
    ) -> tuple[Config, Evaluation]:
        """The evaluation with the value that the student's folder carries, where no verifier is
        named.
        """
        if self.verifier or self.prm or self.value or set(self.methods) <= set(UNJUDGED_METHODS):
            return config, self
        config, carried = carried_value(config, path, student)
        if carried is None:
            return config, self
        config, value, said = with_chosen(config, carried)
        progress.say(f"{said}; --verifier calculator leaves all of it out")
        asked = {"value": value, "verifier": "calculator+value" if value else "calculator"}
        return config, self.model_copy(update=asked)

    def measure_cells(
        self,
        config: Config,
        path: Path | None,
        student: Student | None,
        folder: EvalFolder,
        progress: Progress,
        stop: StopAsked,
    ) -> JsonObject:
        """`run` without the student's own value."""
        steps = config.search.mode == "step"
        refuse_conflicts(config, "evaluation")
        judged = self.guide is None and (self.judge != "none" or steps)
        if judged:
            check_judged(self.judge, config)
        refuse_conflicts(
            config,
            "search",
            valued=self.value is not None and (self.guide is not None or steps),
            verified=False,
        )
        config, sources = self.open_sources(config)
        custom = open_reward(config.rewards, config.teachers, greet=True)
        benchmarks = {
            name: self.benchmark(config, name, source, progress) for name, source in sources.items()
        }
        identity, config = self.identity(config), with_context(config, *sources.values())
        # Here, because torch takes seconds to load.
        from ..answering.students import answering_student

        if student is None:
            alone = self.prm is None and self.value is None
            student = answering_student(config, path, inference=alone)
        if config.engine.backend == "openai":
            self.check_remote(student)
        openings = {name: opening(config, source, student.name) for name, source in sources.items()}
        facts = {
            name: {
                "problems": len(benchmark.tasks),
                "data_hash": benchmark.data_hash,
                "system_prompt": openings[name].system_prompt,
                "shots": openings[name].shots,
            }
            for name, benchmark in benchmarks.items()
        }
        folder.begin(identity | {"weights": student.weights}, facts)
        verifier = value = None
        if self.guide is not None:
            from ..policy.critic import load_value

            value = load_value(self.guide, student, config)
        elif judged:
            verifier = load_verifier(self.judge, student, config, self.prm, self.value)
        context = MethodContext(
            student,
            verifier,
            config,
            value=value,
            tasks=[*chain.from_iterable(made.tasks for made in benchmarks.values())],
        )
        progress.follow(student.engine)
        cells, most = [], 0
        for name, benchmark in benchmarks.items():
            if any(cell[0] == name and folder.read(*cell) is None for cell in self.cells):
                student.opening = openings[name]
                most = max(most, self.try_first(context, benchmark, progress, stop))
        for number, (name, method, budget) in enumerate(self.cells, 1):
            cell = folder.read(name, method, budget)
            if cell is None:
                student.opening, benchmark = openings[name], benchmarks[name]
                if method == SAMPLES_METHOD:
                    what = f"{budget} samples each"
                    work = run_samples(context, benchmark, budget, progress)
                else:
                    what = f"{method} at {budget:,} tokens"
                    work = run_cell(context, benchmark, method, budget, progress, custom)
                doing = f"{number} of {len(self.cells)}, {name}, {what}"
                progress.start(
                    len(benchmark.tasks),
                    unit="problem",
                    doing=doing,
                    rest=self.most_left(number, folder, most),
                )
                cell = run_until(stop, work)
                folder.write(cell)
            cells.append(cell)
        end_progress(progress, student)
        measured = [cell for cell in cells if cell.method != SAMPLES_METHOD]
        folder.write_answers(measured)
        return {
            "student": student.title,
            "verifier": self.judge,
            "seed": config.seed,
            "split": self.split,
            "identity": folder.identity,
            "config": config.model_dump(mode="json", exclude={"models", "teacher_tiers"}),
            "benchmarks": facts,
            "rows": [summarise_cell(cell) for cell in measured],
            "pairs": pair_methods(measured),
            "leaders": find_leaders(measured),
            "failures": list_failures(measured),
            "judge": {
                name: run_until(stop, measure_agreement(context, benchmark, openings[name]))
                for name, benchmark in benchmarks.items()
                if JUDGE in self.judge.split("+")
            },
            "at_k": [pass_rows(cell) for cell in cells if cell.method == SAMPLES_METHOD],
        }

    def open_sources(self, config: Config) -> tuple[Config, dict[str, Source]]:
        """The configuration as they have it, and the sources by their names."""
        sources = {name: open_one_of(config, name) for name in self.source}
        check_reads(config.problems, [*sources.values()])
        return with_worlds(config, "eval", False, None, *sources.values()), sources

    def most_left(self, number: int, folder: EvalFolder, greedy: int) -> int:
        """Tokens that the missing cells from `number` on take at most, where a greedy answer takes
        `greedy` at most; samples for pass@k are not among them.
        """
        left = 0
        for source, method, budget in self.cells[number:]:
            if method != SAMPLES_METHOD and folder.read(source, method, budget) is None:
                each = greedy if method == "greedy" else budget
                left += each * folder.benchmarks[source]["problems"]
        return left

    def try_first(
        self,
        context: MethodContext,
        benchmark: Benchmark,
        progress: Progress,
        stop: StopAsked,
    ) -> int:
        """Say what the first questions' answers take, and which questions are too long, before all
        wait for the others; returns the tokens of the longest. Raises ConfigError where most are.
        """
        name, longest = benchmark.name, context.settings.max_tokens
        questions = [task.problem.question for task in benchmark.tasks]
        said = check_prompts(context.student, questions)
        if said is not None:
            progress.say(f"{name}: {said}")
        tasks = benchmark.tasks[:TRIED_FIRST]
        tried = [
            run_method("greedy", context, task.problem, context.config.seed, longest)
            for task in tasks
        ]
        progress.wait(f"trying {len(tried)} questions")
        answers = run_until(stop, gather_all(*tried))
        refusal_reasons(tasks, answers)
        most, few = max(answer.tokens for answer in answers), min(self.budget_tokens)
        said = f"{name}: {len(tried)} questions tried, up to {most:,} tokens an answer"
        ends, search = Counter(filter(None, (answer.why for answer in answers))), context.settings
        if ends:
            said = f"{said}; {shortfall(ends, search.model_dump(), longest, 'answers')}"
        elif few < 2 * most and self.methods != ["greedy"]:
            more = remedy("budget", {}, few)
            said += f"; a budget of {few:,} tokens pays for {few / most:.1f}: {more}"
        progress.say(said)
        return most

    def check_remote(self, student: Any) -> None:
        """Raise ConfigError where the verifier needs what the student's server doesn't have."""
        if self.prm is not None or self.value is not None:
            raise ConfigError(
                f"--verifier is {self.judge!r} and the model is behind --base-url: a network reads "
                "the student's own tokens; take calculator, or a model that is here"
            )
        server = student.engine.server
        asyncio.run(server.greet())
        if RANKING in self.judge.split("+") and not server.logprobs:
            raise ConfigError(
                f"--verifier is {self.judge!r} and the server tells no log-probabilities: take "
                "calculator"
            )

    def benchmark(self, config: Config, name: str, source: Source, progress: Progress) -> Benchmark:
        """Problems of one source: `num` of the split from number `start` on, or as many as there
        are.
        """
        tasks = load_tasks(source, self.split, self.num, start=self.start, rewards=config.rewards)
        if len(tasks) < self.num:
            first = f" from number {self.start} on" if self.start else ""
            used = f"{name} has {len(tasks):,} problems in {self.split}{first}: these are used"
            whole = (
                "" if source.endless or self.split == ALL else ", --split all takes every split's"
            )
            progress.say(used + whole)
        return Benchmark(name, tasks)

    def identity(self, config: Config) -> JsonObject:
        """What decides the figures of a cell, besides the student's weights and the benchmarks'
        rows.
        """
        judge = config.rewards.judge
        search, custom = config.search, config.rewards.custom
        return {
            **hash_code(self.value, search.value, search.select, custom, *self.source),
            "seed": config.seed,
            "verifier": self.judge,
            "num": self.num,
            "start": self.start,
            "split": self.split,
            "levels": config.problems.levels,
            "rewards.custom": config.rewards.custom,
            "rewards.judge": None if judge is None else judge.model_dump(),
            "engine.max_context": config.engine.max_context,
            "search": config.search.model_dump(
                mode="json", exclude={"concurrent", "budget_tokens"}
            ),
            "prm": critic_digest(self.prm),
            "value": critic_digest(self.value),
        }


def end_progress(progress: Progress, student: Any) -> None:
    """Stop the progress, and say what is known by now of a server that answered."""
    progress.stop()
    if word := getattr(student, "word", None):
        progress.say(word)


def critic_digest(critic: Path | None) -> str | None:
    """A hash of a critic's name on the hub, or of its folder's cards, which name the hashes of its
    other files.
    """
    if critic is None:
        return None
    content = hashlib.sha256(b"" if critic.is_dir() else str(critic).encode())
    for file in sorted(critic.glob("*.json")):
        content.update(file.name.encode() + file.read_bytes())
    return content.hexdigest()
