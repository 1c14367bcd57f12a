"""An evaluation as the `eval` command runs it: load, answer cell by cell, keep each, read the results off them."""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config.load import Config
from ..errors import ConfigError
from ..eval.cells import Benchmark, StoppedError, graded, run_cell, run_samples
from ..eval.combination import Combination, fit_combination
from ..eval.results import (
    CARD,
    RESULTS,
    TABLES,
    EvalFolder,
    at_k,
    newest_folder,
    next_folder,
    paired,
    summary,
    write_json,
)
from ..eval.verifiers import COMBINATION, Product, load_parts
from ..live import Progress
from .base import EXIT_STOPPED, Stop, print_json

if TYPE_CHECKING:
    from ..engine.protocol import Verifier
    from ..policy.student import Student
    from ..types import Task


def run(args: argparse.Namespace, config: Config) -> int:
    """Compare, print the tables and write the folder. 130 when the user stopped it."""
    from ..policy.student import load_student
    from ..policy.value_function import policy_fingerprint

    directory = Path(config.train.checkpoint_dir)
    out: Path = args.out or (newest_folder(directory) if args.resume else next_folder(directory))
    if not args.resume and (out / CARD).exists():
        raise ConfigError(f"--out {out} holds an evaluation already: add --resume to go on with it, or name another")
    benchmarks = [Benchmark(name, load(config, name, "test", args.num, args.start)) for name in args.benchmarks]
    student = load_student(config, path=args.path, inference=args.prm is None and args.value is None)
    identity = settings_of(args, config) | {"weights": policy_fingerprint(student.model)}
    folder = EvalFolder(out, identity, {one.name: one.data_hash for one in benchmarks}, args.resume)
    progress, stop = Progress(args.quiet), Stop()
    for one in benchmarks:
        if len(one.tasks) < args.num:
            progress.say(f"{one.name} has {len(one.tasks):,} test problems from number {args.start} on: these are used")
    facts: dict[str, Any] = {one.name: {"problems": len(one.tasks), "data_hash": one.data_hash} for one in benchmarks}
    try:
        with progress:
            work(args, config, student, benchmarks, folder, facts, progress, stop)
    except StoppedError:
        progress.say(f"stopped; go on with the same command and --resume --out {out}")
        return EXIT_STOPPED
    results = gather(args, config, student, folder, facts, identity)
    write_json(out / RESULTS, results)
    from ..report.evaluation import result_text, results_markdown
    from ..report.folder import write_report

    (out / TABLES).write_text(results_markdown(results), encoding="utf-8")
    write_report(out)
    if args.json:
        print_json(results)
        return 0
    print(result_text(results))
    print(f"{RESULTS}, {TABLES} and report.html are in {out}")
    return 0


def settings_of(args: argparse.Namespace, config: Config) -> dict[str, Any]:
    """What decides the figures of a cell, besides the student's weights and the benchmarks' rows."""
    search = config.search.model_dump(mode="json", exclude={"concurrent", "budget_tokens", "budget_seconds"})
    return {
        "seed": config.seed,
        "verifier": args.verifier,
        "num": args.num,
        "start": args.start,
        "levels": config.problems.levels,
        **({} if config.problems.hold_out == "questions" else {"hold_out": config.problems.hold_out}),
        "engine.max_context": config.engine.max_context,
        "search": search,
        "eval": config.eval.model_dump(mode="json"),
        "prm": digest(args.prm),
        "value": digest(args.value),
    }


def digest(folder: Path | None) -> str | None:
    """A hash of the cards of a trained verifier's folder, which name the hashes of its other files."""
    if folder is None:
        return None
    found = hashlib.sha256()
    for file in sorted(folder.glob("*.json")):
        found.update(file.name.encode() + file.read_bytes())
    return found.hexdigest()


def load(config: Config, name: str, split: str, count: int, start: int) -> list[Task]:
    from ..problems.load import load_tasks
    from ..problems.source import open_one_of

    return load_tasks(open_one_of(config, name), split, count, start=start)


def work(
    args: argparse.Namespace,
    config: Config,
    student: Student,
    benchmarks: Sequence[Benchmark],
    folder: EvalFolder,
    facts: dict[str, Any],
    progress: Progress,
    stop: Any,
) -> None:
    """Every cell that is missing, budgets from small to large; each is kept as soon as it is finished."""
    from ..eval.attempt import MethodContext
    from ..problems.source import open_one_of

    cells = [(b, m, budget) for b in benchmarks for budget in sorted(args.budget_tokens) for m in args.methods]
    cells += [(b, "samples", args.samples) for b in benchmarks if args.samples]
    done = [folder.file(b.name, m, budget).exists() for b, m, budget in cells]
    progress.start(
        sum(len(b.tasks) for b, _, _ in cells),
        sum(len(b.tasks) for (b, _, _), finished in zip(cells, done, strict=True) if finished),
        "problem",
    )
    parts = load_verifiers(args, config, student)
    judges: dict[str, Verifier] = {}
    for (benchmark, method, budget), finished in zip(cells, done, strict=True):
        student.system_prompt = open_one_of(config, benchmark.name).system_prompt
        if benchmark.name not in judges:
            judge = parts
            if COMBINATION in args.verifier.split("+"):
                progress.say(f"fitting the combination on {benchmark.name} validation problems")
                combination = Combination(parts.get("prm", parts.get("value")))
                facts[benchmark.name]["combination"] = fit(combination, config, student, benchmark.name)
                judge = parts | {COMBINATION: combination}
            asked = [judge[name] for name in args.verifier.split("+")]
            judges[benchmark.name] = asked[0] if len(asked) == 1 else Product(asked)
        if finished:
            continue
        progress.describe(f"{benchmark.name}, {method}, {budget}")
        sampler = MethodContext(student, judges[benchmark.name], config)

        def tell(tokens: int) -> None:
            progress.advance(tokens=tokens)

        if method == "samples":
            found = asyncio.run(run_samples(sampler, benchmark, budget, stop, tell))
            folder.write(found)
        else:
            folder.write(asyncio.run(run_cell(sampler, benchmark, method, budget, stop, tell)))


def load_verifiers(args: argparse.Namespace, config: Config, student: Student) -> dict[str, Verifier]:
    """The verifiers that `--verifier` is made of, by name; of a combination the network, where one is named."""
    names = [name for name in args.verifier.split("+") if name != COMBINATION]
    if COMBINATION in args.verifier.split("+"):
        names += ["prm"] * (args.prm is not None) + ["value"] * (args.value is not None)
    loaded = load_parts(names, student, config, args.prm, args.value)
    return dict(zip(names, loaded, strict=True))


def fit(combination: Combination, config: Config, student: Student, name: str) -> dict[str, Any]:
    """Fit on validation problems that no checkpoint was selected on, where there are as many; returns the facts."""
    from ..engine.protocol import Limits
    from ..policy.engine_steps import EngineSteps
    from ..problems.source import open_one_of

    start = config.train.validation_size if open_one_of(config, name).endless else 0
    tasks = load(config, name, "validation", config.eval.fit_problems, start)

    async def right(response: str, task: Task) -> bool:
        [grade] = await graded([response], [task])
        return grade is not None and grade.correct

    asyncio.run(
        fit_combination(
            combination,
            EngineSteps(student, config.search.temperature),
            tasks,
            right,
            samples=config.eval.fit_samples,
            limits=Limits(config.search.max_depth, config.search.max_tokens),
            seed=config.seed,
        )
    )
    return combination.facts


def gather(
    args: argparse.Namespace,
    config: Config,
    student: Student,
    folder: EvalFolder,
    facts: dict[str, Any],
    identity: dict[str, Any],
) -> dict[str, Any]:
    """results.json: everything that is read off the cells of this command."""
    cells = [
        cell
        for name in args.benchmarks
        for budget in sorted(args.budget_tokens)
        for method in args.methods
        if (cell := folder.read(name, method, budget)) is not None
    ]
    sampled = [folder.read_samples(name, args.samples) for name in args.benchmarks if args.samples]
    return {
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "student": student.name if args.path is None else str(args.path),
        "verifier": args.verifier,
        "seed": config.seed,
        "identity": identity,
        "config": config.model_dump(mode="json", exclude={"models", "teacher_tiers"}),
        "benchmarks": facts,
        "rows": [summary(cell) for cell in cells],
        "pairs": paired(cells),
        "at_k": [at_k(found) for found in sampled if found is not None],
    }
