"""A real model on real rows: what it knows, and how it answers at equal tokens.

    ../shared/models/qwen-coder-0.5b.sh runs/qwen
    uv run python benchmarks/real.py T0 --model runs/qwen
    uv run python benchmarks/real.py T3 --model runs/qwen

Stages are those of PROTOCOL.md. Every step is a command of the package in a process of its own;
what left its last file is not run again and a stopped command goes on, so the same line goes on
after a stop. A stage writes `results/real_STAGE.json`, with the outcome of each problem, as far as
it has come.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import provenance
from arms import Seed, add_work, flags, read, side_by_side

from alphazero_llm_trainer.eval.metrics import mean_interval, paired_bootstrap, wilson
from alphazero_llm_trainer.eval.names import UNJUDGED_METHODS
from alphazero_llm_trainer.eval.results import interval_triple
from alphazero_llm_trainer.policy.verifiers import RANKING

TEST, VALIDATION, SAMPLES = 1319, 500, 8  # rows, rows, answers to a validation row
LONGEST = 400  # tokens of an answer
SHOTS = (0, 4)  # worked solutions before the question

# T3: the tokens of an answer, the judge of all methods, the trees among them, validation rows that
# choose one of those, the test rows of the chosen one and of what it is held against, the test rows
# at smaller caps. "at 0.6" is the temperature of samples, where it isn't 1.
CAP, JUDGE = 1200, "calculator+log-probability"
TREES = ("mcts", "beam")
# A greedy answer, drawn again until one states an answer, whatever the judge would say of it.
AGAIN = "greedy again"
AGAINST = ("step-rejection", "majority at 0.6", "adaptive-best-of-n at 0.6", f"{AGAIN} at 0.6")
SMALL = ("majority at 0.6", "step-rejection", "best-of-n at 0.6")
CHOOSING, MANY, SOME, CHUNK = 100, 600, 200, 100
OTHERS, OTHER = ("math", "hotpotqa"), 250  # R4's other sources, and rows of each
# T4: tokens of an answer to a source (a method has twice as many), its methods, and its rows.
ELSEWHERE = {"math": 800, "hotpotqa": 200}
SEARCHED = ("mcts", "greedy", f"{AGAIN} at 0.6", "step-rejection")
FEW = (100, 200)

Rows = list[dict[str, Any]]


def one_of(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """What a row is about."""
    return tuple(row.get(name) for name in ("seed", "split", "shots", "method", "budget"))


def answered(
    seed: Seed,
    name: str,
    model: Path | str,
    split: str,
    num: int,
    *more: str,
    source: str = "gsm8k",
) -> dict[str, Any]:
    """`eval` of the first rows of a split; its results. Greedy answers, unless `more` names other
    methods.
    """
    out = seed.folder(name)
    if seed.args.rows is not None:
        num, split = min(num, seed.args.rows), "train"
    words = ["eval", "--model", str(model), "--source", source, "--split", split, "-n", str(num)]
    words += ["--methods", "greedy", "--budget-tokens", str(LONGEST), "--out", str(out)]
    words += flags("search.temperature=1")  # as training draws; `more` may name another
    words += [*more, *["--resume"] * (out / "cells").is_dir()]
    seed.stage(name, words, out / "results.json")
    return read(out / "results.json")


def samples(folder: Path) -> dict[str, Any]:
    """How many of each row's samples were right, a digit a row, and the share of rows with right
    and wrong ones.
    """
    counts = [
        sum(map(bool, one))
        for one in read(folder / "cells" / f"gsm8k.samples.{SAMPLES}.json")["correct"]
    ]
    return {
        "right": "".join(map(str, counts)),
        "mixed": interval_triple(mean_interval([float(0 < one < SAMPLES) for one in counts])),
    }


def t0(seed: Seed, keep: Callable[[Rows], None]) -> None:
    """What the published model knows."""
    rows = []
    for shots in seed.args.shots:
        given = flags(f"problems.shots={shots}")
        wide = answered(
            seed, f"validation, {shots} shots", seed.args.model, "validation", VALIDATION, *given,
            "--samples", str(SAMPLES),
        )  # fmt: skip
        drawn = samples(seed.folder(f"validation, {shots} shots"))
        rows.append(
            {
                "split": "validation",
                "shots": shots,
                **wide["rows"][0],
                "at_k": wide["at_k"][0] | drawn,
            }
        )
        keep(rows)
        test = answered(seed, f"test, {shots} shots", seed.args.model, "test", TEST, *given)
        rows.append({"split": "test", "shots": shots, **test["rows"][0]})
        keep(rows)


def of_t0(split: str) -> dict[str, Any]:
    """T0's zero-shot row of a split."""
    found = read(provenance.RESULTS / "real_t0.json")
    row = next(row for row in found["rows"] if row["split"] == split and row["shots"] == 0)
    return {"commit": found["commit"], **row}


def methods(
    seed: Seed,
    split: str,
    num: int,
    names: Sequence[str],
    cap: int,
    source: str = "gsm8k",
    *settings: str,
) -> dict[str, dict[str, Any]]:
    """Each method's row over the first `num` rows of a split, measured in chunks, so that a stop
    costs one a job at most; with `--anew` all others' rows as they were measured.
    """
    place = split if source == "gsm8k" else source

    def chunk(work: tuple[str, int]) -> dict[str, Any]:
        name, start = work
        method, _, temperature = name.partition(" at ")
        asked = "adaptive-best-of-n" if method == AGAIN else method
        more = ["--start", str(start), "--methods", asked, "--budget-tokens", str(cap)]
        if method == AGAIN:
            more += ["--verifier", RANKING, *flags("search.verify.reject_below=0")]
        elif method not in UNJUDGED_METHODS:
            more += ["--verifier", JUDGE]
        more += flags(f"search.temperature={temperature}") if temperature else []
        label, size = f"{place}, {name}, {cap}, {start}", min(CHUNK, num - start)
        more += flags(*settings)
        made = answered(seed, label, seed.args.model, split, size, *more, source=source)
        return made["rows"][0]

    if seed.args.rows is not None:
        num = min(num, seed.args.rows)
    rows: dict[str, dict[str, Any]] = {}
    if seed.args.anew is not None:
        wanted = {(seed.seed, place, None, name, cap) for name in names if name != seed.args.anew}
        rows = {row["method"]: row for row in read(seed.args.out)["rows"] if one_of(row) in wanted}
        names = [name for name in names if name == seed.args.anew]
    work = [(name, start) for start in range(0, num, CHUNK) for name in names]
    found = list(zip(work, side_by_side(seed.args.jobs, chunk, work), strict=True))
    for name in names:
        parts = [row for (other, _), row in found if other == name]
        outcomes = "".join(row["outcomes"] for row in parts)
        facts: dict[str, Any] = {
            column: sum(row[column] * row["problems"] for row in parts) / len(outcomes)
            for column in ("sampled_tokens", "scored_tokens")
        }
        facts |= {"no answer": sum(row["no answer"] for row in parts), "outcomes": outcomes}
        if all("unanswered" in row for row in parts):
            facts |= {"unanswered": "".join(row["unanswered"] for row in parts)}
        facts |= {"accepted": sum(row["ended_by"].get("accepted", 0) for row in parts)}
        accuracy = interval_triple(wilson(outcomes.count("1"), len(outcomes)))
        rows[name] = {
            "split": place,
            "method": name,
            "budget": cap,
            "seed": seed.seed,
            "problems": len(outcomes),
        }
        rows[name] |= {"accuracy": accuracy, **facts}
    return rows


def held_against(
    tree: Mapping[str, Any], others: Mapping[str, dict[str, Any]]
) -> list[dict[str, Any]]:
    """The rows of the others with what the tree method has over each on the same problems, after
    its own.
    """
    right = [float(one) for one in tree["outcomes"]]
    rows = [dict(tree)]
    for row in others.values():
        theirs = [float(one) for one in row["outcomes"]]
        rows.append({**row, "tree_less_it": interval_triple(paired_bootstrap(right, theirs))})
    return rows


def t3(seed: Seed, keep: Callable[[Rows], None]) -> None:
    """The tree method that is best on validation rows against ways of answering without a tree."""
    chosen = methods(seed, "validation", CHOOSING, TREES, CAP)
    keep(list(chosen.values()))
    best = max(TREES, key=lambda name: chosen[name]["accuracy"][0])
    found = methods(seed, "test", MANY, ("majority", best), CAP)
    tree = found.pop(best)
    if seed.args.rows is None:
        greedy = of_t0("test")
        outcomes = greedy["outcomes"][:MANY]
        facts = {
            "split": "test",
            "method": "greedy",
            "budget": LONGEST,
            "seed": seed.seed,
            "problems": MANY,
        }
        facts |= {
            "accuracy": interval_triple(wilson(outcomes.count("1"), MANY)),
            "outcomes": outcomes,
        }
        found["greedy"] = {"commit": greedy["commit"], **facts}
    keep(held_against(tree, found))
    for name in AGAINST:
        found |= methods(seed, "test", MANY, (name,), CAP)
        keep(held_against(tree, found))
    for cap in (CAP // 2, CAP // 4):
        trees = methods(seed, "test", SOME, (best,), cap)
        if not trees:  # with `--anew`: never measured at this cap
            continue
        [tree], found = trees.values(), dict[str, dict[str, Any]]()
        for name in SMALL:
            found |= methods(seed, "test", SOME, (name,), cap)
            keep(held_against(tree, found))


def r4(seed: Seed, keep: Callable[[Rows], None]) -> None:
    """R1's student: greedy, by a tree and by step rejection; and on rows of other sources, beside
    the model that it goes on from (`--before`).
    """
    found = methods(seed, "test", MANY, ("greedy",), LONGEST)
    found |= methods(seed, "test", MANY, ("mcts", "step-rejection"), CAP)
    tree = found.pop("mcts")
    keep(held_against(tree, found))
    long = flags("engine.max_context=4096")  # of HotpotQA's paragraphs
    for source in OTHERS:
        rows = {}
        for name, model in (("before", seed.args.before), ("student", seed.args.model)):
            made = answered(seed, f"{name}, {source}", model, "test", OTHER, *long, source=source)
            rows[name] = {"split": source, "seed": seed.seed, **made["rows"][0], "method": name}
        values = [[float(one) for one in rows[name]["outcomes"]] for name in ("student", "before")]
        rows["student"]["gain"] = interval_triple(paired_bootstrap(*values))
        keep([*rows.values()])


def t4(seed: Seed, keep: Callable[[Rows], None]) -> None:
    """The published model on other sources, greedily and searched; some rows first."""
    for source, longest in ELSEWHERE.items():
        limit = f"search.max_tokens={longest}"
        for num in FEW:
            # Of the first rows each control is kept as it ends.
            counts = range(2 if num == FEW[0] else len(SEARCHED), len(SEARCHED) + 1)
            for count in counts:
                found = methods(seed, "test", num, SEARCHED[:count], 2 * longest, source, limit)
                keep(held_against(found.pop("mcts"), found))


STAGES = {"T0": t0, "T3": t3, "T4": t4, "R4": r4}


def main() -> None:
    parser = provenance.make_parser(__doc__)
    add_work(parser, "real")
    parser.add_argument("stage", choices=STAGES)
    parser.add_argument("--model", type=Path, required=True, help="a folder with a chat model")
    parser.add_argument("--before", type=Path, help="R4: the model that the student goes on from")
    parser.add_argument(
        "--shots", nargs="+", type=int, choices=SHOTS, default=SHOTS, help="some of T0's"
    )
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--jobs", type=int, default=2, help="runs at once, one thread each")
    parser.add_argument(
        "--rows",
        type=int,
        help="a trial: so many rows, of train alone",
    )
    parser.add_argument("--anew", metavar="METHOD", help="of what --out holds, measure this alone")
    args = parser.parse_args()
    if args.rows is not None and args.out is None:
        parser.error("--rows is a trial: give --out, a file of its own")
    args.out = args.out or provenance.RESULTS / f"real_{args.stage.lower()}.json"
    args.work = args.work.resolve() / (args.stage if args.rows is None else f"{args.stage}-trial")

    def keep(rows: Rows) -> None:
        """Rows of this command after those of earlier ones that it doesn't measure anew. A row that
        is as it was keeps its commit.
        """
        known = read(args.out)["rows"] if args.out.is_file() else []
        commits = {(one_of(row), row["outcomes"]): row["commit"] for row in known}
        new = []
        for row in rows:
            began = provenance.BEGAN["commit"]
            commit = commits.get((one_of(row), row["outcomes"]), began)
            new.append({"commit": commit, **row})
        found = [
            *(row for row in known if all(one_of(row) != one_of(other) for other in new)),
            *new,
        ]
        facts = {"commit": found[0]["commit"], "model": args.model.resolve().name, "rows": found}
        provenance.write(args.out, facts)

    STAGES[args.stage](Seed(args.seed, args), keep)


if __name__ == "__main__":
    main()
