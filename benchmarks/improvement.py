"""What does the tree bring in training? Arms from the shipped student at equal sampled tokens and
updates, over seeds.

    uv run python benchmarks/improvement.py --work checkpoints/improvement

`tree` is `train` where no method is named: chains under the source's step rule, which fork at a
rejected step, until the first right response. Its controls leave out a part of that each:

- replay: the demonstrations that every arm replays, as many updates, and no new question;
- greedy-right: the student's own greedy answers, the right ones; more questions, no rule;
- samples: the right ones of eight samples (RFT);
- step rejection: the same trees end at their first finished response, right or wrong: a rejected
  step is drawn again after what was right before it, and nothing forks after an answer;
- one chain: one chain under the rule, and nothing forks;
- one repair: one more simulation in the same tree where that chain failed;
- restarts: chains under the rule, each from the root, until the first right one;
- alphazero: policy and value trained together (`train --config alphazero`), two answers' tokens a
  question, which take as many in all;
- GRPO samples, by correctness, with a weight of .3 for below-average rows as the package has it,
  and of 1 as published; GRPO trees, as `--use-grpo` comes (UCB1, the combined reward, a KL
  penalty).

Every arm makes as many rounds as `tree`, and as many updates, but for GRPO, which passes over its
rows once or as its recipe says; a round has as many questions as take the tree's tokens. Each has
its own learning rate, the best on validation problems with the first seed; all that were tried are
in the JSON. Every stage is a command of the package, and one that has left its last file is not run
again. `explanation` trains on what the first student's trees bring, of questions that it fails
greedily and of the others, as many rows and updates of either.

Primary (PROTOCOL.md): greedy accuracy of `tree` less `step rejection`. Second: `tree` less `one
chain`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

import provenance
from arms import (
    EIGHT,
    Arm,
    Greedy,
    Seed,
    accuracy,
    best,
    by_rate,
    curve_of,
    digits,
    flags,
    less,
    make_options,
    on_validation,
    rate_and_size,
    read,
    side_by_side,
    spent_by,
)

from alphazero_llm_trainer.api.trees import SavedTree, read_trees
from alphazero_llm_trainer.eval.metrics import repeats
from alphazero_llm_trainer.learning.rows import RESPONSES
from alphazero_llm_trainer.policy.folders import PACKAGED
from alphazero_llm_trainer.problems.load import tasks_of
from alphazero_llm_trainer.types import Task

TREE, STEP, CHAIN, REPLAY = "tree", "step rejection", "one chain", "replay"
ROUNDS = 50  # of every arm
OF_ROUND = 96  # questions of an arm whose questions take the reference's tokens
A_ROUND = 14  # updates
SAVED = 5  # rounds between two measurements on validation problems
SHARE = 0.2  # of demonstrations in an update
ROWS = f"{EIGHT} train.rows_per_round=128"
# `size`: the sampled tokens of a question against the tree's, as a run with seed 6 took them, which
# read no test problem.
ARMS = {
    TREE: Arm("", "", 2e-3, 1.1),  # of a trained student at 2e-3; the default asks 96 a round
    STEP: Arm("", "search.enough_finished=1", 2e-3, 0.915),
    CHAIN: Arm("", "search.simulations=1 train.requeue_limit=0", 1e-3, 0.675),
    "GRPO samples, negative_weight 1": Arm("grpo", f"{ROWS} train.negative_weight=1", 2.5e-4, 5.77),
    "GRPO samples": Arm("grpo", ROWS, 2.5e-4, 5.77),
    "restarts": Arm("", "search.select=restart", 2e-3, 1.75),
    "one repair": Arm("", "search.simulations=1 train.requeue_limit=1", 2e-3, 0.745),
    "greedy-right": Arm("rft", "search.samples=1 search.temperature=0", 1e-3, 0.72),
    "samples": Arm("rft", "", 5e-4, 5.8),
    REPLAY: Arm("sft", "", 2.5e-4),
    "GRPO trees": Arm("grpo", "teachers.tier=none", 2.5e-4, 6.78),
    "alphazero": Arm("alphazero", "search.budget_tokens=46", 2e-3, 1.1),
}


def trained(seed: Seed, name: str, rate: float) -> Path:
    """The folder of one arm's student, at one learning rate."""
    label, arm = f"{name} {rate:g}", ARMS[name]
    if name == REPLAY:
        return replayed(
            seed,
            label,
            *rate_and_size(rate, seed.args.validation),
            f"train.evaluate_every={SAVED * A_ROUND}",
        )
    questions = round(OF_ROUND / arm.size)
    words = ["--config", arm.method] if arm.method else []
    words += ["-n", str(ROUNDS * questions)]
    words += flags(*arm.at(rate, seed.args.validation, questions, SAVED, A_ROUND))
    return seed.train(label, PACKAGED, *words) / "student"


def replayed(seed: Seed, label: str, *settings: str) -> Path:
    """A student of as many supervised updates as an arm's, without weight decay."""
    steps = f"train.sft_steps={ROUNDS * A_ROUND}"
    plain = "train.optimizer.weight_decay=0"
    return seed.sft(label, "--model", str(PACKAGED), *flags(steps, plain, *settings))


def curve(student: Path) -> list[tuple[float, float]]:
    """Sampled tokens and accuracy on validation problems, from the start on, of an arm's
    student.
    """
    if student.name != "student":  # replay: tokens stand for its share of the updates
        card = read(student / "manifest.json")
        return [(line["step"] / card["steps"], line["accuracy"]) for line in card["evaluations"]]
    return [(float(tokens), reached) for tokens, reached in curve_of(student.parent)]


def solved_by_start(greedy: Greedy, tasks: Sequence[Task]) -> dict[str, bool]:
    """Whether the start answers each train question greedily, by the question's id."""
    right = greedy(f"{len(tasks)} train questions", PACKAGED, tasks)
    return {task.problem.id: one == 1 for task, one in zip(tasks, right, strict=True)}


def trees_of(student: Path) -> list[SavedTree]:
    return list(read_trees(student.parent)) if student.name == "student" else []


def taught(trees: Sequence[SavedTree], responses: int) -> dict[str, int]:
    """How many right responses, all different, training takes of each question, by the question's
    id.
    """
    rows = {}
    for tree in trees:
        right = {path.token_ids for path in tree.paths if path.right}
        rows[tree.problem.id] = min(len(right), responses)
    return rows


def of_failed(rows: dict[str, int], solved: dict[str, bool]) -> float:
    """The share of rows whose question the start's greedy answer fails."""
    total = sum(rows.values())
    return sum(count for name, count in rows.items() if not solved[name]) / total


def explained(seed: Seed, greedy: Greedy, spent: int) -> dict[str, Path]:
    """Students taught the right responses of the start's own trees: of failed questions alone, of
    solved ones alone.

    As many rows and updates each, and demonstrations beside them as in every arm.
    """
    sampled_by_start, config = seed.folder("trees"), seed.loaded()
    words = ["sample", "--model", str(PACKAGED), "-n", str(spent), "--out", str(sampled_by_start)]
    words += ["--start", str(config.train.demonstrations)]
    words += flags("search.simulations=4", "train.groups=verified", "search.enough_correct=1")
    seed.stage("trees", words, sampled_by_start / "manifest.json")
    tasks = tasks_of(config, "train", spent, config.train.demonstrations)
    solved = solved_by_start(greedy, tasks)
    right: dict[bool, list[tuple[str, str]]] = {True: [], False: []}
    for tree in read_trees(sampled_by_start):
        best = next((path for path in tree.paths if path.right and "####" in path.text), None)
        if best is not None:
            right[solved[tree.problem.id]].append((tree.problem.question, best.text))
    count, students = min(map(len, right.values())), {}
    shown = [
        (t.problem.question, t.solution)
        for t in tasks_of(config, "train", config.train.demonstrations)
    ]
    shown = shown[: round(count * SHARE / (1 - SHARE))]
    checked = [
        (t.problem.question, t.solution)
        for t in tasks_of(config, "validation", seed.args.validation)
    ]
    for name, kept in (
        ("rows of failed questions", right[False]),
        ("rows of solved questions", right[True]),
    ):
        path = seed.folder(name).with_suffix(".jsonl")
        lines = [(pair, "train") for pair in [*Random(seed.seed).sample(kept, count), *shown]]
        lines += [(pair, "validation") for pair in checked]
        with path.open("w", encoding="utf-8") as file:
            for (question, solution), split in lines:
                row = {"question": question, "answer": solution.rsplit("####", 1)[1].strip()}
                file.write(json.dumps(row | {"solution": solution, "split": split}) + "\n")
        settings = rate_and_size(5e-4, seed.args.validation)
        settings += [f"train.demonstrations={count + len(shown)}", f"problems.source={path}"]
        students[name] = replayed(seed, name, *settings)
    return students


def rates(seed: Seed) -> dict[str, dict[float, float]]:
    """The accuracy on validation problems of each learning rate that was tried, by arm."""

    def tried(name: str) -> dict[float, float]:
        def reached(rate: float) -> float:
            return on_validation(trained(seed, name, rate))

        known = seed.args.rate
        return seed.tune(ARMS[name], reached) if known is None else by_rate(reached, [known])

    names = seed.args.arms
    return dict(zip(names, side_by_side(seed.args.jobs, tried, names), strict=True))


def figure_curve(students: Sequence[Path], tokens: float) -> list[dict[str, Any]]:
    """Mean over the seeds, and the lowest and highest of them, at each measurement."""
    points = []
    for measured in zip(*(curve(student) for student in students), strict=False):
        accuracies = [accuracy for _, accuracy in measured]
        at = fmean(place for place, _ in measured)
        if students[0].name != "student":
            at *= tokens
        band = [fmean(accuracies), min(accuracies), max(accuracies)]
        points.append({"tokens": round(at), "accuracy": band})
    return points


def table(
    seeds: Sequence[Seed],
    tried: dict[str, dict[float, float]],
    greedy: Greedy,
    known: dict[str, dict[str, Any]],
) -> dict[str, Any]:
    """Each arm over problems and seeds, its gain, and `tree` less it; `known` arms as they are."""
    args, config = seeds[0].args, seeds[0].loaded()
    test = tasks_of(config, "test", args.num, args.first)
    same, students = repeats(test), {}
    outcomes = {
        name: [[float(right) for right in of_seed] for of_seed in row["outcomes"]]
        for name, row in known.items()
    }
    start = [greedy("start", PACKAGED, test)]
    for name in args.arms:
        rate = best(tried[name])
        students[name] = [trained(seed, name, rate) for seed in seeds]
        outcomes[name] = greedy.of_seeds(f"{name} {rate:g}", seeds, students[name], test)
    most = max(spent_by(students[name][0])["questions"] for name in args.arms)
    tasks = tasks_of(config, "train", most, config.train.demonstrations)
    solved = solved_by_start(greedy, tasks)
    runs = [one.parent for of_arm in students.values() for one in of_arm if one.name == "student"]
    before = read(runs[0] / "run.json")["validation_before"] if runs else None
    trees = students.get(TREE, [])
    tokens = fmean(spent_by(tree)["tokens"] for tree in trees) if trees else known[TREE]["tokens"]
    summary = list(known.values())
    for name in args.arms:
        costs = [spent_by(student) for student in students[name]]
        right = outcomes[name]
        row: dict[str, Any] = {"arm": name, "rate": best(tried[name]), "validation": tried[name]}
        row |= {key: round(fmean(cost[key] for cost in costs)) for key in costs[0]}
        row["greedy"] = accuracy(right, same)
        row["greedy_by_seed"] = [fmean(one) for one in right]
        row["gain"] = less(right, start, same)
        if name != TREE:
            row["tree_less_it"] = less(outcomes[TREE], right, same)
        of_seeds = [taught(trees_of(student), RESPONSES) for student in students[name]]
        row["rows"] = round(fmean(sum(rows.values()) for rows in of_seeds))
        row["failed_share"] = (
            None if name == REPLAY else fmean(of_failed(rows, solved) for rows in of_seeds)
        )
        row["curve"] = figure_curve(students[name], tokens)
        row["outcomes"] = digits(right)
        summary.append(row)
        print(f"{name:26} {row['greedy'][0]:.3f} {row.get('tree_less_it', '')}", flush=True)
    summary.sort(key=lambda row: list(ARMS).index(row["arm"]))
    compared = {row["arm"]: row.get("tree_less_it") for row in summary}
    return {
        "distinct": len(set(same)),
        "start": {"greedy": accuracy(start, same), "validation": before},
        "summary": summary,
        **{
            test: {"against": arm, "difference": compared[arm]}
            for test, arm in (("primary", STEP), ("second", CHAIN))
            if arm in compared
        },
    }


def explanation(seeds: Sequence[Seed], replay: float, greedy: Greedy) -> dict[str, Any]:
    """What students learn from rows of failed questions and from rows of solved ones; `replay` is
    the rate of that arm.
    """
    args = seeds[0].args
    test = tasks_of(seeds[0].loaded(), "test", args.num, args.first)
    same, rows = repeats(test), {}
    start = [greedy("start", PACKAGED, test)]
    students = [trained(seed, REPLAY, replay) for seed in seeds]
    control = greedy.of_seeds(f"{REPLAY} {replay:g}", seeds, students, test)
    parts = side_by_side(args.jobs, lambda seed: explained(seed, greedy, args.explained), seeds)
    for name in parts[0]:
        taught_rows = read(parts[0][name] / "manifest.json")["rows"]
        right = greedy.of_seeds(name, seeds, [part[name] for part in parts], test)
        rows[name] = {"rows": taught_rows, "greedy": accuracy(right, same)}
        rows[name]["gain"] = less(right, start, same)
        rows[name]["over_replay"] = less(right, control, same)
    return rows


def main() -> None:
    parser = make_options(__doc__, "improvement", first=48_000, num=2000)
    parser.set_defaults(seeds=[7, 8, 9, 10, 11])
    parser.add_argument("--validation", type=int, default=1000, help="validation problems")
    parser.add_argument(
        "--explained", type=int, default=4800, help="questions whose trees are split into rows"
    )
    parser.add_argument(
        "--rate", type=float, help="of every arm, untuned: for curves that begin at the start"
    )
    parser.add_argument(
        "--arms",
        nargs="+",
        choices=ARMS,
        default=list(ARMS),
        help="that are run; the others stay as --out has them; rows are split where replay is one",
    )
    args = parser.parse_args()
    args.work, args.set = args.work.resolve(), ["student=embedded", *args.set]
    seeds = [Seed(seed, args) for seed in args.seeds]
    tried = rates(seeds[0])
    print(tried, flush=True)
    side_by_side(
        args.jobs,
        lambda job: trained(*job, best(tried[job[1]])),
        [(seed, name) for seed in seeds for name in args.arms],
    )
    if args.train_only:
        return
    config = seeds[0].loaded()
    facts = {
        "seeds": args.seeds,
        "first": args.first,
        "problems": args.num,
        "validation": args.validation,
    }
    facts["levels"] = sorted({task.problem.level for task in tasks_of(config, "train", 16)})
    greedy, known = Greedy(args.work, args.set), {}
    if args.out.exists() and facts.items() <= (before := read(args.out)).items():
        for row in before["summary"]:
            if row["arm"] not in args.arms:
                known[row["arm"]] = {"commit": before["commit"], **row}
    figures = facts | table(seeds, tried, greedy, known)
    if REPLAY in args.arms:
        figures["explanation"] = explanation(seeds, best(tried[REPLAY]), greedy)
    provenance.write(args.out, figures)


if __name__ == "__main__":
    main()
