"""Does a trained value earn its place? Held-out figures of both kinds, and value-guided answering at equal tokens.

    uv run python benchmarks/value.py --path checkpoints/run-001/student

Trees are searched on train-split questions that no default run trains on. Validation questions stop the training,
calibrate, and fit the blend; test questions are read once, for the figures that are printed. Every method of a budget
of n samples may sample as many tokens as n whole responses; "tokens" are sampled ones a problem, "scored" are those
that a network of its own computed for values (a head reads the policy's own forward). A second table counts both.

To add an arm, put `name -> async function (problem, seed) -> (response or None, sampled tokens)` into `arms`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from alphazero_llm_trainer.answers import extract, normalize  # noqa: E402
from alphazero_llm_trainer.config.load import Config, load_config  # noqa: E402
from alphazero_llm_trainer.engine.protocol import Generated, GenerateRequest, ValueFunction  # noqa: E402
from alphazero_llm_trainer.eval.methods import answer_search  # noqa: E402
from alphazero_llm_trainer.eval.metrics import paired_bootstrap, wilson  # noqa: E402
from alphazero_llm_trainer.live import Progress  # noqa: E402
from alphazero_llm_trainer.mcts.driver import derive_seed  # noqa: E402
from alphazero_llm_trainer.policy.student import Student, load_student  # noqa: E402
from alphazero_llm_trainer.policy.value_function import EngineValue, last_layer, load_value  # noqa: E402
from alphazero_llm_trainer.problems.load import load_tasks  # noqa: E402
from alphazero_llm_trainer.problems.source import source_of  # noqa: E402
from alphazero_llm_trainer.training.value_run import (  # noqa: E402
    Question,
    collect_trees,
    read_questions,
    save_value,
    train_value,
)
from alphazero_llm_trainer.types import Problem, Task  # noqa: E402
from benchmarks import provenance  # noqa: E402

Arm = Callable[[Problem, int], Awaitable[tuple[str | None, int]]]
Score = Callable[[Problem, Generated], Awaitable[float]]
CONCURRENT = 64


# -- arms --------------------------------------------------------------------------------------------------------------


class Arms:
    """The methods over one student: each is `async (problem, seed) -> (response, sampled tokens)`."""

    def __init__(self, student: Student, config: Config) -> None:
        self.student, self.limit, self.depth = student, config.search.max_tokens, config.search.max_depth

    async def sampled(self, problem: Problem, n: int, seed: int, temperature: float = 1.0) -> list[Generated]:
        prompt = self.student.prompt_ids(problem.question)
        request = GenerateRequest(prompt, n=n, max_new_tokens=self.limit, temperature=temperature, seed=seed)
        return (await self.student.engine.generate([request]))[0]

    def text(self, one: Generated) -> str:
        return self.student.decode(one.token_ids)

    async def greedy(self, problem: Problem, seed: int) -> tuple[str | None, int]:
        [one] = await self.sampled(problem, 1, seed, 0.0)
        return self.text(one), len(one.token_ids)

    def voted(self, n: int, score: Score | None) -> Arm:
        """The answer with the largest sum of scores over n samples (1 each without a score: the majority)."""

        async def arm(problem: Problem, seed: int) -> tuple[str | None, int]:
            samples = await self.sampled(problem, n, seed)
            votes: dict[str, float] = {}
            texts: dict[str, str] = {}
            for one in samples:
                found = extract(self.text(one))
                if found is not None:
                    key = normalize(found)
                    votes[key] = votes.get(key, 0.0) + (1.0 if score is None else await score(problem, one))
                    texts.setdefault(key, self.text(one))
            tokens = sum(len(one.token_ids) for one in samples)
            return (texts[max(votes, key=lambda key: votes[key])] if votes else None), tokens

        return arm

    def best(self, n: int, score: Score) -> Arm:
        """The highest-scored of n samples."""

        async def arm(problem: Problem, seed: int) -> tuple[str | None, int]:
            samples = await self.sampled(problem, n, seed)
            scores = [await score(problem, one) for one in samples]
            best = samples[max(range(n), key=lambda i: (scores[i], -i))]
            return self.text(best), sum(len(one.token_ids) for one in samples)

        return arm

    def by_value(self, value: ValueFunction) -> Score:
        async def score(problem: Problem, one: Generated) -> float:
            return await value(self.student.prompt_ids(problem.question) + one.token_ids)

        return score

    def step_beam(self, width: int, steps: int, value: ValueFunction) -> Arm:
        """Step-level beam search (AlphaMath, Chen et al. 2024): `width * steps` proposed steps a depth, the best kept.

        A finished response stays in the beam with its value; the best one is the answer.
        """

        async def arm(problem: Problem, seed: int) -> tuple[str | None, int]:
            prompt, engine = self.student.prompt_ids(problem.question), self.student.engine
            beams: list[tuple[float, tuple[int, ...], bool]] = [(0.0, (), False)]
            tokens = 0
            for depth in range(self.depth):
                found: dict[tuple[int, ...], tuple[float, tuple[int, ...], bool]] = {}
                for i, beam in enumerate(beams):
                    _, ids, finished = beam
                    room = self.limit - len(ids)
                    if finished or room <= 0:
                        found[ids] = beam
                        continue
                    request = GenerateRequest(
                        prompt + ids,
                        n=steps * width // sum(not b[2] for b in beams),
                        max_new_tokens=room,
                        seed=derive_seed(seed, depth, i),
                        max_steps=1,
                    )
                    for one in (await engine.generate([request]))[0]:
                        tokens += len(one.token_ids)
                        longer = ids + one.token_ids
                        if longer not in found:
                            found[longer] = (await value(prompt + longer), longer, one.finish == "eos")
                beams = sorted(found.values(), key=lambda beam: -beam[0])[:width]
                if all(finished for _, _, finished in beams):
                    break
            whole = [beam for beam in beams if beam[2]] or beams
            return self.student.decode(max(whole, key=lambda beam: beam[0])[1]), tokens

        return arm

    def searched(self, config: Config, value: ValueFunction | None, **search: Any) -> Arm:
        """The package's own tree search without gold, with `search` settings; `value` may guide it."""
        settings = config.model_copy(update={"search": config.search.model_copy(update=search)})
        search_ = answer_search(self.student, settings, None, value=value)

        async def arm(problem: Problem, seed: int) -> tuple[str | None, int]:
            found = await search_.run(problem, seed)
            return (None if found.choice is None else found.choice.response), found.cost.sampled_tokens

        return arm


class Combination:
    """Logistic regression of a response's correctness on V's logit and the policy's log-probability (sum and mean).

    Fitted on samples for validation problems; `coefficients` are (logit V, sum, mean, constant).
    """

    def __init__(self, methods: Arms, value: ValueFunction, tasks: Sequence[Task], seed: int) -> None:
        self.methods, self.value = methods, value
        rows, right = asyncio.run(self._data(tasks, seed))
        x = torch.tensor(rows, dtype=torch.float64)
        self.mean, self.std = x.mean(0), x.std(0).clamp_min(1e-6)
        y = torch.tensor(right, dtype=torch.float64)
        weight = torch.zeros(4, dtype=torch.float64, requires_grad=True)
        inputs = torch.cat(((x - self.mean) / self.std, torch.ones(len(x), 1, dtype=torch.float64)), dim=1)
        optimizer = torch.optim.LBFGS([weight], max_iter=200, line_search_fn="strong_wolfe")

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = torch.nn.functional.binary_cross_entropy_with_logits(inputs @ weight, y) + 1e-4 * weight @ weight
            loss.backward()
            return loss

        optimizer.step(closure)
        self.coefficients = weight.detach()

    async def _data(self, tasks: Sequence[Task], seed: int) -> tuple[list[list[float]], list[float]]:
        async def one(task: Task) -> list[tuple[list[float], float]]:
            samples = await self.methods.sampled(task.problem, 8, derive_seed(seed, task.problem.id), 1.4)
            distinct = {sample.token_ids: sample for sample in samples}.values()
            return [
                (
                    await self.features(task.problem, sample),
                    source_of(task.problem).grade(self.methods.text(sample), task).hre,
                )
                for sample in distinct
            ]

        pairs = [pair for found in await asyncio.gather(*(one(task) for task in tasks)) for pair in found]
        return [features for features, _ in pairs], [right for _, right in pairs]

    async def features(self, problem: Problem, one: Generated) -> list[float]:
        v = min(max(await self.methods.by_value(self.value)(problem, one), 1e-6), 1 - 1e-6)
        total = sum(one.logprobs)
        return [math.log(v / (1 - v)), total, total / max(len(one.logprobs), 1)]

    async def __call__(self, problem: Problem, one: Generated) -> float:
        x = (torch.tensor(await self.features(problem, one), dtype=torch.float64) - self.mean) / self.std
        return float(torch.sigmoid(x @ self.coefficients[:3] + self.coefficients[3]))


async def by_logprob(problem: Problem, one: Generated) -> float:
    """The policy's probability of the response, per token."""
    return math.exp(sum(one.logprobs) / max(len(one.logprobs), 1))


def arms_of(
    methods: Arms,
    values: dict[str, EngineValue],
    combinations: dict[str, Combination],
    samples: Sequence[int],
    config: Config,
) -> dict[str, tuple[Arm, int, Any]]:
    """name -> (arm, its budget in samples, the value whose forwards it needs or None)."""
    length = 23  # tokens of a mean greedy response: what a budget of one sample means for a search
    arms: dict[str, tuple[Arm, int, Any]] = {"greedy": (methods.greedy, 1, None)}
    for n in samples:
        arms[f"majority of {n}"] = (methods.voted(n, None), n, None)
        arms[f"best of {n}, log-probability"] = (methods.best(n, by_logprob), n, None)
        arms[f"PUCT over steps, no V, vote, {n}"] = (
            methods.searched(config, None, select="puct", budget_tokens=n * length, iterations=400),
            n,
            None,
        )
        for kind, value in values.items():
            score = methods.by_value(value)
            arms[f"best of {n}, {kind}"] = (methods.best(n, score), n, value)
            arms[f"majority of {n} weighted, {kind}"] = (methods.voted(n, score), n, value)
            arms[f"step beam 1x{n}, {kind}"] = (methods.step_beam(1, n, value), n, value)
            if n >= 4:
                arms[f"step beam 2x{n // 2}, {kind}"] = (methods.step_beam(2, n // 2, value), n, value)
            combined = combinations[kind]
            arms[f"best of {n}, {kind} + log-probability"] = (methods.best(n, combined), n, value)
            arms[f"majority of {n} weighted, {kind} + log-prob."] = (methods.voted(n, combined), n, value)
            if value.rollout_weight == 1:
                continue  # it did not beat chance: no search asks it
            budget = {"budget_tokens": n * length, "iterations": 400}
            steps, tokens = {"mode": "step", "select": "puct", **budget}, {"mode": "token", **budget}
            for name, search in {
                "steps, V alone": {**steps, "rollout": "none"},
                "steps, rollouts, V of ends": {**steps, "rollout_weight": 1.0},
                "steps, rollouts + V": steps,
                "tokens, V alone": {**tokens, "rollout": "none"},
                "tokens, rollouts + V": tokens,
            }.items():
                arms[f"PUCT over {name}, {n}, {kind}"] = (methods.searched(config, value, **search), n, value)
    return arms


async def answered(arm: Arm, tasks: Sequence[Task], seed: int) -> tuple[list[bool], int]:
    """Which tasks an arm gets right, and its sampled tokens."""
    gate = asyncio.Semaphore(CONCURRENT)

    async def one(task: Task) -> tuple[bool, int]:
        async with gate:
            response, tokens = await arm(task.problem, derive_seed(seed, task.problem.id))
            return response is not None and source_of(task.problem).grade(response, task).correct, tokens

    found = await asyncio.gather(*(one(task) for task in tasks))
    return [right for right, _ in found], sum(tokens for _, tokens in found)


def compare_at_all_tokens(rows: list[dict[str, Any]], right: dict[str, list[bool]]) -> None:
    """Set each row against the cheapest majority that spends at least as many tokens, a network's scored ones included.

    Adds `at_all_tokens` to the rows: None where no majority that was measured spends as many.
    """

    def spent(row: dict[str, Any]) -> float:
        return row["tokens"] + row["scored_tokens"]

    majorities = sorted((row for row in rows if row["method"] == f"majority of {row['samples']}"), key=spent)
    print("\nagainst the cheapest majority of at least as many tokens, scored ones included")
    for row in rows:
        name, others = row["method"], [one for one in majorities if spent(one) >= spent(row) and one is not row]
        row["at_all_tokens"] = None
        if others:
            other = others[0]
            gain = paired_bootstrap(right[name], right[other["method"]])
            row["at_all_tokens"] = {"method": other["method"], "gain": [gain.value, gain.low, gain.high]}
            print(
                f"{name:50} {spent(row):6.0f}  {other['method']:15} {spent(other):6.0f}"
                f"  {gain.value:+.3f} [{gain.low:+.3f}, {gain.high:+.3f}]"
            )
        else:
            print(f"{name:50} {spent(row):6.0f}  none was measured")


# -- the run -----------------------------------------------------------------------------------------------------------


def trees_of(student: Student, config: Config, split: str, count: int, start: int, path: Path) -> list[Question]:
    tasks = load_tasks("embedded", split, count, start=start)
    began = time.perf_counter()
    collect_trees(student, config, config.train.value.collect, tasks, path, lambda: False, Progress(quiet=True))
    questions = read_questions([path])
    print(f"{split}: trees of {len(questions):,} questions, {time.perf_counter() - began:.0f} s", flush=True)
    return questions


def command(argv: Sequence[str]) -> str:
    """The command that gives these figures, without where its files went."""
    kept, skip = ["python benchmarks/value.py"], False
    for word in argv:
        if not skip and word not in ("--work", "--out"):
            kept.append(word)
        skip = word in ("--work", "--out")
    return " ".join(kept)


def report(message: dict[str, float]) -> None:
    text = ", ".join(f"{name} {value:.4f}" for name, value in message.items() if name != "step")
    print(f"  step {message['step']:.0f}: {text}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--path", type=Path, help="a trained student's folder (default: the shipped student)")
    parser.add_argument("--questions", type=int, default=6000, help="train-split questions to search")
    parser.add_argument("--held-out", type=int, default=400, help="validation questions")
    parser.add_argument("--num", type=int, default=1000, help="test problems")
    parser.add_argument("--kinds", nargs="+", choices=("head", "network"), default=["head", "network"])
    parser.add_argument("--samples", type=int, nargs="+", default=[4, 8, 16])
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="KEY=VALUE")
    parser.add_argument(
        "--test-start",
        type=int,
        default=1000,
        help="number of the first test problem; those before it were explored on",
    )
    parser.add_argument("--work", type=Path, required=True, metavar="DIR", help="where trees and trained values go")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "value.json")
    args = parser.parse_args()
    torch.set_num_threads(1)
    config = load_config(overrides=["student=embedded", f"seed={args.seed}", *args.overrides])
    student = load_student(config, path=args.path)
    # Questions that no run of the default size trains, or selects its checkpoint, on.
    fresh, spared = config.train.demonstrations + config.train.num_examples, config.train.validation_size
    args.work.mkdir(parents=True, exist_ok=True)
    parts = None
    result: dict[str, Any] = {
        "command": command(sys.argv[1:]),
        "kinds": {},
        "rows": [],
    }
    values: dict[str, EngineValue] = {}
    for kind in args.kinds:
        settings = load_config(
            overrides=["student=embedded", f"seed={args.seed}", *args.overrides, f"train.value.kind={kind}"]
        )
        folder = args.work / kind
        if not (folder / "value.json").is_file():
            if parts is None:
                parts = (
                    trees_of(student, config, "train", args.questions, fresh, args.work / "train.jsonl"),
                    trees_of(student, config, "validation", args.held_out, spared, args.work / "validation.jsonl"),
                    trees_of(student, config, "test", args.num, args.test_start, args.work / "test.jsonl"),
                )
            began = time.perf_counter()
            valued = train_value(student, settings, parts, folder, report)
            facts = {"seconds": round(time.perf_counter() - began, 1), "curve": valued.fitted.curve}
            save_value(folder, valued, student, settings, facts)
        card = json.loads((folder / "value.json").read_text())
        print(f"{kind}: {card['seconds']} s; {card['why']}; lambda {card['rollout_weight']:.2f}")
        for name, (value, low, high) in card["test"].items():
            print(f"  {name:34} {value:.3f} [{low:.3f}, {high:.3f}]")
        result["kinds"][kind] = card
    for kind in args.kinds:
        values[kind] = load_value(args.work / kind, student, config)
    tasks = load_tasks("embedded", "test", args.num, start=args.test_start)
    methods = Arms(student, config)
    print(f"{args.num:,} test problems, seed {args.seed}; tokens a problem")
    print(f"{'method':34} {'accuracy [95%]':22} {'tokens':>8} {'scored':>8}  over majority of the same n   over greedy")
    right: dict[str, list[bool]] = {}
    spared_tasks = load_tasks("embedded", "validation", args.held_out, start=spared)
    combinations = {kind: Combination(methods, value, spared_tasks, args.seed) for kind, value in values.items()}
    for kind, combination in combinations.items():
        result["kinds"][kind]["combination"] = combination.coefficients.tolist()
    for name, (arm, n, value) in arms_of(methods, values, combinations, args.samples, config).items():
        before = 0
        if value is not None and value.own:
            # What an earlier arm had it compute doesn't count as known here.
            value.engine.set_policy(None, 0)
            value.engine.set_value(*last_layer(args.work / value.card["kind"]))
            before = value.engine.stats.computed_tokens
        right[name], tokens = asyncio.run(answered(arm, tasks, args.seed))
        scored = value.engine.stats.computed_tokens - before if value is not None and value.own else 0
        accuracy = wilson(sum(right[name]), len(tasks))
        gains = {
            base: paired_bootstrap(right[name], right[base])
            for base in (f"majority of {n}", "greedy")
            if base in right and base != name
        }
        row = {"method": name, "samples": n, "accuracy": [accuracy.value, accuracy.low, accuracy.high]}
        row |= {"tokens": tokens / len(tasks), "scored_tokens": scored / len(tasks)}
        row |= {"gain": {base: [gain.value, gain.low, gain.high] for base, gain in gains.items()}}
        result["rows"].append(row)
        shown = "   ".join(f"{gain.value:+.3f} [{gain.low:+.3f}, {gain.high:+.3f}]" for gain in gains.values())
        print(f"{name:34} {accuracy!s:22} {row['tokens']:8.1f} {row['scored_tokens']:8.1f}  {shown}", flush=True)
    compare_at_all_tokens(result["rows"], right)
    result["correct"] = {name: "".join("1" if x else "0" for x in found) for name, found in right.items()}
    provenance.write(args.out, "value", result)


if __name__ == "__main__":
    main()
