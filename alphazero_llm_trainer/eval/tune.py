"""What a student's value is good for: searches with and without it on validation problems, and the
best of them in the value's folder, for those that ask the student later.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from ..answering.students import answering_student
from ..config.load import Config
from ..config.sections import SearchConfig
from ..errors import ConfigError
from ..files import write_json
from ..live import Progress, StopAsked, run_until
from ..policy.folders import CHOOSES, CHOSEN, carried_value, read_note
from ..problems.load import opening, tasks_of, with_context
from ..problems.registry import open_source, with_worlds
from ..types import JsonObject
from .attempt import MethodContext
from .cells import Benchmark, Cell, run_cell
from .metrics import paired_bootstrap
from .named_verifiers import load_verifier
from .results import interval_triple

# A method and its `search.*`: of answers without the value, and of those by it.
UNGUIDED_METHODS = "step-rejection, mcts select=puct, mcts select=best-first, mcts select=phs"
GUIDED_METHODS = (
    "mcts select=puct backup=mean exploration=0.1, mcts select=puct backup=mean exploration=0.5, "
    "mcts select=puct backup=max exploration=0.02, mcts select=puct backup=max exploration=0.1, "
    "mcts select=best-first, "
    "mcts select=phs exploration=1, mcts select=phs exploration=2, mcts select=phs exploration=4"
)


def tune_search(
    config: Config,
    path: Path | None,
    num: int,
    start: int,
    budget: int,
    progress: Progress,
    stop: StopAsked,
) -> JsonObject:
    """What critic.json says from now on as `search`, under the source's rule: `select`, `backup`
    and `exploration` of the best tree search; whether the value `helps`: its best search is better
    than the best without it, with 95% confidence; and the `table` of all. `num` validation problems
    of the source from number `start` on are answered with `budget` tokens each.

    Raises:
        ConfigError: the student carries no value.
        StoppedError: the user asked to stop; nothing is written.
    """
    source, config = open_source(config), with_worlds(config, "eval")
    config, place = carried_value(with_context(config, source), path)
    if place is None:
        raise ConfigError(
            "--tune chooses a search for the value in a student's folder, and this one carries "
            "none: name a student that train --config alphazero wrote with --model"
        )
    benchmark = Benchmark("validation", tasks_of(config, "validation", num, start))
    student = answering_student(config, path, opening(config), inference=False)
    rows, cells = list[JsonObject](), list[Cell]()
    for verifier, tried in (("calculator", UNGUIDED_METHODS), ("calculator+value", GUIDED_METHODS)):
        rule = load_verifier(verifier, student, config, None, place)
        for doing in tried.split(", "):
            method, *words = doing.split()
            settings = dict(word.split("=") for word in words)
            if settings.get("backup") == "max" and not source.deterministic:
                continue
            search = SearchConfig.model_validate(settings)
            settings = {key: getattr(search, key) for key in settings}
            context = MethodContext(
                student, rule, config.with_values(search=settings), tasks=benchmark.tasks
            )
            progress.start(len(benchmark.tasks), unit="problem", doing=doing)
            cell = run_until(stop, run_cell(context, benchmark, method, budget, progress))
            cells.append(cell)
            rows.append({"verifier": verifier, "method": method, **settings})
            rows[-1] |= {"accuracy": fmean(cell.right), "tokens": fmean(cell.tokens)}
            progress.say(f"{doing} under {verifier}: {fmean(cell.right):.3f}")
    progress.stop()
    record = choose_settings(rows, cells)
    facts = {"source": source.name, "problems": len(benchmark.tasks), "start": start}
    record |= facts | {"budget": budget, "table": rows}
    write_json(place / "critic.json", read_note(place, "critic.json") | {CHOSEN: record})
    return record


def choose_settings(rows: Sequence[JsonObject], cells: Sequence[Cell]) -> JsonObject:
    """The settings of the best tree search, and whether and by how much the value helps; the first
    of equals.
    """

    def best(guided: bool, method: str = "") -> int:
        of_kind = [
            at
            for at, row in enumerate(rows)
            if row["verifier"].endswith("value") == guided and row["method"].startswith(method)
        ]
        return max(of_kind, key=lambda at: rows[at]["accuracy"])

    by_value, alone = cells[best(True)], cells[best(False)]
    gain = paired_bootstrap(by_value.right, alone.right, groups=by_value.groups)
    helps = gain.low > 0
    row = rows[best(helps, "mcts")]
    return {key: row[key] for key in CHOOSES if key in row} | {
        "helps": helps,
        "gain": interval_triple(gain),
    }
