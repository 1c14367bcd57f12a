"""The `grade` command: every gold answer against itself, and three graders against each other, on the real rows."""

from __future__ import annotations

import argparse
import contextlib
import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config.load import Config
from ..errors import ConfigError, DataError
from ..files import refused
from ..problems.load import load_tasks
from ..problems.source import SPLITS, WITH_PUBLIC_ROWS, open_source
from .base import add_config_arguments, add_json, check_least, check_out, print_json, resolve

if TYPE_CHECKING:
    from ..eval.agreement import JudgedPair
    from ..types import Task

EVERY_ROW = 1_000_000
EXAMPLES = 3  # disagreements shown a form in the JSON file

EPILOG = """\
Every gold answer must be correct against itself: exceptions are listed with their ids, and the exit code is 1. Then
responses are made from the first N rows, right and wrong ones, and judged by our grader, by math-verify alone on the
whole response, and by plain string match. A pattern such as +-+ says which of the three were right, in that order."""


def add_grade(commands: Any) -> None:
    parser = commands.add_parser("grade", help="check the graders against real rows and each other", epilog=EPILOG)
    parser.add_argument("--source", nargs="+", metavar="NAME", default=list(WITH_PUBLIC_ROWS), help="sources of rows")
    parser.add_argument("-n", "--num", type=int, default=200, metavar="N", help="rows that pairs are made from")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the counts and examples as JSON")
    add_json(parser)
    add_config_arguments(parser)
    parser.set_defaults(run=lambda args: run_grade(args, resolve(args)))


def run_grade(args: argparse.Namespace, config: Config) -> int:
    """Print the tables and write the file; 1 when a gold answer isn't correct against itself."""
    check_least(1, num=args.num)
    check_out(args.out, file=True)
    from ..eval import agreement

    results: dict[str, Any] = {}

    def say(text: str) -> None:
        if not args.json:
            print(text, flush=True)

    for source in dict.fromkeys(args.source):
        began = time.perf_counter()
        test, others = rows(source, config)
        tasks = [*others, *test]
        failed = agreement.failures(tasks)
        seconds = time.perf_counter() - began
        say(f"{source}: {len(tasks) - len(failed):,} of {len(tasks):,} gold answers are correct against themselves")
        for task_id, gold, verdict in failed:
            say(f"  {task_id}: {gold!r} is {verdict}")
        used = test[: args.num]
        began = time.perf_counter()
        judged = agreement.judge(list(agreement.pairs(used)))
        table = agreement.tally(judged)
        say(draw(table, judged) + "\n")
        results[source] = {
            "rows": len(tasks),
            "self_failures": [{"id": i, "gold": gold, "verdict": verdict} for i, gold, verdict in failed],
            "self_seconds": round(seconds, 1),
            "rows_of_pairs": len(used),
            "pair_seconds": round(time.perf_counter() - began, 1),
            "graders": list(agreement.GRADERS),
            "verdicts": Counter(one.verdict for one in judged),
            "patterns": table,
            "examples": examples(judged),
        }
    if args.out is not None:
        try:
            args.out.parent.mkdir(parents=True, exist_ok=True)
            command = f"alphazero-llm-trainer grade --source {' '.join(results)} --num {args.num}"
            args.out.write_text(
                json.dumps({"command": command, **results}, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
            )
        except OSError as error:
            raise refused("--out", args.out, error, "name another file") from error
        say(f"counts and examples are in {args.out}")
    if args.json:
        print_json(results)
    return 1 if any(result["self_failures"] for result in results.values()) else 0


def rows(name: str, config: Config) -> tuple[list[Task], list[Task]]:
    """Every test row of a source, and the rows of its other splits where it has any."""
    source = open_source(config, name)
    if source.endless:
        raise ConfigError(f"--source is {name}, which is generated: name a source of rows")
    others = []
    for split in SPLITS[:-1]:
        with contextlib.suppress(DataError):  # MATH-500 has test rows alone
            others += source.load(split, EVERY_ROW)
    return load_tasks(source, "test", EVERY_ROW), others


def draw(table: Mapping[str, Counter[str]], judged: Sequence[JudgedPair]) -> str:
    """One line a form: pairs, how often each grader is right, and the patterns; then all forms together."""
    right = {one.pair.form: one.pair.right for one in judged}
    lines = [f"  {'form':20} {'truth':6} {'pairs':>6} {'ours':>7} {'m-verify':>9} {'string':>7}  patterns"]
    whole: Counter[str] = Counter()
    for form, counts in table.items():
        whole.update(counts)
        lines.append(line(form, "right" if right[form] else "wrong", counts))
    lines.append(line("all", "", whole))
    verdicts = Counter(one.verdict for one in judged)
    lines.append("  our verdicts: " + ", ".join(f"{name} {count:,}" for name, count in sorted(verdicts.items())))
    return "\n".join(lines)


def line(form: str, truth: str, counts: Counter[str]) -> str:
    total = counts.total()
    shares = [sum(n for pattern, n in counts.items() if pattern[i] == "+") / total for i in range(3)]
    patterns = "  ".join(f"{pattern} {n}" for pattern, n in counts.most_common())
    return f"  {form:20} {truth:6} {total:>6,} {shares[0]:>7.1%} {shares[1]:>9.1%} {shares[2]:>7.1%}  {patterns}"


def examples(judged: Sequence[JudgedPair]) -> dict[str, list[dict[str, str]]]:
    """For each form the first pairs that our grader or math-verify is wrong about."""
    found: dict[str, list[dict[str, str]]] = {}
    for one in judged:
        some = found.setdefault(one.pair.form, [])
        if not one.pattern.startswith("++") and len(some) < EXAMPLES:
            # The form and the row's id give the text again: the rows are other people's.
            some.append({"id": one.pair.task.problem.id, "pattern": one.pattern, "verdict": one.verdict})
    return {form: some for form, some in found.items() if some}
