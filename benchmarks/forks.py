"""Forks at uncertain tokens as the groups of GRPO, against plain samples at equal tokens and questions.

    uv run python benchmarks/forks.py

A question's group is M whole samples, and T continuations from before each of the K tokens of every
sample at which the policy is most uncertain: EPTree of TreeRL (Hou et al. 2025). Uncertainty is the
entropy of the policy's own distribution in nats, over the TOP likeliest tokens that the engine returns
with each draw and the rest as one; or, as in TreeRL, minus the log-probability of the sampled token. A
fork before the first token would be a whole sample: there is none. The group is a tree whose nodes end
where forks do, inside lines; rows, outcome credit, packing and updates are the package's.

Every arm samples about as many tokens a question as TOKENS whole samples have before training. So M is
not whole, and a question has one sample more or less. The control, `samples`, has no forks. With
`--tune` the test problems stay unread. A run that has its results.json is not made again, and one that
was stopped goes on. Writes JSON with each test problem's results. PROTOCOL.md has the comparison.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from arms import bootstrap_over_seeds, less  # noqa: E402

from alphazero_llm_trainer.config.load import Config  # noqa: E402
from alphazero_llm_trainer.engine.protocol import Generated  # noqa: E402
from alphazero_llm_trainer.eval.greedy import answer  # noqa: E402
from alphazero_llm_trainer.eval.metrics import repeats  # noqa: E402
from alphazero_llm_trainer.mcts.seeds import derive_seed  # noqa: E402
from alphazero_llm_trainer.mcts.tree import ROOT as TOP_NODE  # noqa: E402
from alphazero_llm_trainer.mcts.tree import Tree  # noqa: E402
from alphazero_llm_trainer.policy.engine_tokens import EngineTokens  # noqa: E402
from alphazero_llm_trainer.policy.folders import PACKAGED  # noqa: E402
from alphazero_llm_trainer.policy.student import load_student  # noqa: E402
from alphazero_llm_trainer.problems.load import opening, tasks_of  # noqa: E402
from alphazero_llm_trainer.rewards.terminal import make_evaluate  # noqa: E402
from alphazero_llm_trainer.rollouts import Collector, GradedTree  # noqa: E402
from alphazero_llm_trainer.training.loop import Run  # noqa: E402
from alphazero_llm_trainer.training.run import RunFolder  # noqa: E402
from alphazero_llm_trainer.training.start import load_run  # noqa: E402
from alphazero_llm_trainer.types import Cost, Step, Task  # noqa: E402
from benchmarks import provenance  # noqa: E402

TOP = 16  # likeliest tokens that an entropy is made of; the rest counts as one
TOKENS = 6.0  # whole samples that a question's tokens are those of
SAMPLES = (2, 4, 6, 8)  # a question, at equal tokens
QUESTIONS, ROUNDS = 48, 30  # a round, of arms at equal questions
FIRST = {"validation": 0, "test": 41_000}  # problem of a split
PROBE = 400  # validation problems that say how many tokens a shape takes
RECIPE = [
    "train.groups=chain",  # whole responses, in place of which `Forks` draws
    "train.updates_per_round=4",  # rft: as many as the others make
    "train.requeue_limit=0",
    "train.rows_per_round=64",
    "train.optimizer.epochs=2",
    "train.optimizer.warmup=2",
    "train.eval_size=0",
    "train.validation_size=0",
    "rewards.use_student_model=false",
    "student=embedded",
]


@dataclass(frozen=True, slots=True)
class Shape:
    """A group: `samples` whole ones in the mean, `forks` tokens of each, `continuations` from each of them."""

    samples: float
    forks: int = 0
    continuations: int = 1
    by: str = "entropy"  # or "surprise", TreeRL's
    questions: int = QUESTIONS  # a round
    rate: float = 2e-4
    method: str = "grpo"

    @property
    def name(self) -> str:
        kind = f"forks-K{self.forks}-T{self.continuations}-{self.by}" if self.forks else "samples"
        rft = "-rft" if self.method == "rft" else ""
        return f"{kind}-{self.questions}-a-round-{self.rate:g}{rft}"


def entropies(drawn: Generated) -> list[float]:
    """Nats of the policy's distribution before each token."""
    found = []
    for top in drawn.top or ():
        chances = [math.exp(logprob) for _, logprob in top]
        rest = max(1.0 - sum(chances), 0.0)
        found.append(-math.fsum(p * math.log(p) for p in (*chances, rest) if p > 0))
    return found


class Forks(Collector):
    """Groups of one `shape` in place of the package's searches."""

    shape: Shape

    async def collect(self, tasks: Sequence[tuple[str, Task]], seed: int) -> AsyncIterator[GradedTree]:
        """See `Collector.collect`."""
        evaluate = make_evaluate(self.config.rewards, None, {task.problem.id: task for _, task in tasks})
        tokens, limit = EngineTokens(self.student, 1.0, 1), self.config.search.max_tokens
        gate = asyncio.Semaphore(self.config.search.concurrent)

        async def group(key: str, task: Task) -> GradedTree:
            prompt, cost, tree = tokens.prompt_ids(task.problem), Cost(), Tree()

            async def draw(prefix: tuple[int, ...], *place: int) -> Generated:
                seeded, room = derive_seed(seed, key, *place), limit - len(prefix)
                drawn, spent = await tokens.rollout(prompt, prefix, "sample", room, seeded, TOP)
                cost.add(spent)
                return drawn

            async def finish(node: int, ids: tuple[int, ...]) -> None:
                text = tokens.text(ids)
                verdict = tokens.verdict(ids) or "length"
                reward = await evaluate(task.problem, [Step(ids, (), text)], [], verdict)
                tree.finish(node, verdict, reward)
                tree.samples[node] += 1
                tree.backup(node, reward.total)

            def child(parent: int, ids: tuple[int, ...], logprobs: tuple[float, ...]) -> int:
                for node in tree.children[parent]:
                    if tree.token_ids[node] == ids:
                        return node
                tree.expand(parent, [Step(ids, logprobs, tokens.text(ids))], [1.0])
                return len(tree) - 1

            number = int(task.problem.id.rsplit("/", 1)[1])
            count = math.floor((number + 1) * self.shape.samples) - math.floor(number * self.shape.samples)
            for i, whole in enumerate(await asyncio.gather(*(draw((), i) for i in range(count)))):
                ids, logprobs = whole.token_ids, whole.logprobs
                doubts = entropies(whole) if self.shape.by == "entropy" else [-logprob for logprob in logprobs]
                ranked = sorted(range(1, len(ids)), key=lambda at: -doubts[at])
                points = sorted(ranked[: self.shape.forks])
                begun, before = TOP_NODE, {}
                for start, end in zip([0, *points], [*points, len(ids)], strict=True):
                    before[start] = begun
                    begun = child(begun, ids[start:end], logprobs[start:end])
                await finish(begun, ids)
                forked = [(at, j) for at in points for j in range(self.shape.continuations)]
                drawn = await asyncio.gather(*(draw(ids[:at], i, at, j) for at, j in forked))
                for (at, _), rest in zip(forked, drawn, strict=True):
                    node = child(before[at], rest.token_ids, rest.logprobs)
                    await finish(node, ids[:at] + rest.token_ids)
            flat, version = self.zero_variance(tree), self.student.engine.version
            return GradedTree(key, task, tree, cost, "simulations", flat, 0, prompt, version)

        async def one(key: str, task: Task) -> GradedTree:
            async with gate:
                return await group(key, task)

        for done in asyncio.as_completed([asyncio.ensure_future(one(key, task)) for key, task in tasks]):
            yield await done


class ForkRun(Run):
    """A run of `train` whose groups are of one `shape`."""

    shape: Shape

    def load(self) -> None:
        super().load()
        if self.demonstrations:  # of all levels
            mix = load_run(overrides=["student=embedded"])
            self.demonstrations = tasks_of(mix, "train", mix.train.demonstrations)
        self.collector = Forks(self.student, self.config, None, self.stop)
        self.collector.shape = self.shape


# The start of `numbers`.
NUMBERS_START = "sft --model small --source numbers --seed 7 -n 4000 --eval-size 1"
NUMBERS_START += " --set problems.levels=[2] --set train.sft.steps=3000"
PLAIN = Shape(TOKENS)
# Tried with the first seed on validation problems: shapes before training, by the share of groups with both outcomes,
# and rates of both arms, the chosen one last.
SHAPES = [PLAIN, *(Shape(1.0, k, t) for k, t in ((1, 1), (2, 1), (4, 1), (1, 2), (2, 2)))]
SHAPES.append(Shape(1.0, 2, 1, "surprise"))
# Replay: none on `numbers`; on `embedded` a fifth, of what the start has learnt, whose questions are left out.
REPLAY = {
    "numbers": ["train.demonstration_share=0", "train.optimizer.batch_size=32"],
    "embedded": ["train.optimizer.batch_size=40"],
}
RATES = {"embedded": (1e-3, 5e-4, 2.5e-4), "numbers": (5e-4, 2e-4)}
FORKS = Shape(1.0, 2)  # the chosen shape
LEVEL = 2  # of both tasks' problems
TOOK = ("tokens", "questions", "updates", "samples", "mixed", "rows", "rows_unused", "rows_filled")
METHODS = ("grpo", "rft")  # of the table of samples a question


@dataclass(frozen=True, slots=True)
class Place:
    """A task: its source and level, the student that all arms start from, and the folder of its runs."""

    source: str
    level: int
    student: Path
    work: Path

    @property
    def name(self) -> str:
        return f"{self.source}, level {self.level}"

    def config(self, seed: int, shape: Shape) -> Config:
        asked = {"num_examples": ROUNDS, "questions_per_round": 1, "save_every": ROUNDS // 2}
        sizes = [f"train.{key}={rounds * shape.questions}" for key, rounds in asked.items()]
        task = [f"problems.source={self.source}", f"problems.levels=[{self.level}]", f"train.student={self.student}"]
        own = [f"train.method={shape.method}", f"train.optimizer.learning_rate={shape.rate:g}"]
        return load_run(overrides=[*RECIPE, *REPLAY[self.source], *task, *sizes, *own, f"seed={seed}"])

    def spent(self, shape: Shape) -> tuple[float, float]:
        """Sampled tokens a question of the student before training, and the share of groups with both outcomes."""
        file = self.work / f"probe-{shape.name}-{shape.samples:g}.json"
        if not file.exists():
            config = self.config(7, shape)
            student = load_student(config, path=self.student, opening=opening(config))
            forks = Forks(student, config, None)
            forks.shape = shape
            tasks = [(task.problem.id, task) for task in tasks_of(config, "validation", PROBE)]

            async def trees() -> list[GradedTree]:
                return [tree async for tree in forks.collect(tasks, 7)]

            found = asyncio.run(trees())
            tokens = sum(tree.cost.sampled_tokens for tree in found) / len(found)
            mixed = sum(not tree.flat_at_first for tree in found) / len(found)
            self.work.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps([tokens, mixed]))
        tokens, mixed = json.loads(file.read_text())
        return tokens, mixed

    def sized(self, shape: Shape) -> Shape:
        """The shape with as many whole samples as make a question's tokens those of TOKENS whole samples."""
        if not shape.forks:
            return replace(shape, samples=TOKENS)
        whole = self.spent(Shape(1.0))[0]
        return replace(shape, samples=round(TOKENS * whole / self.spent(replace(shape, samples=1.0))[0], 2))

    def start(self, split: str) -> dict[str, Any]:
        """The answers of the student that all arms start from, to problems of a split."""
        file, config = self.work / f"start-{split}.json", self.config(7, Shape(1.0))
        if not file.exists():
            student = load_student(config, path=self.student, opening=opening(config))
            file.write_text(json.dumps({split: measured(student, config, split)}))
        found: dict[str, Any] = json.loads(file.read_text())
        return found

    def trained(self, shape: Shape, seed: int) -> RunFolder:
        """The folder of a finished run."""
        folder = RunFolder(self.work / f"seed-{seed}" / shape.name)
        if not folder.student.is_dir():
            print(f"{self.source}, seed {seed}: {shape.name}", flush=True)
            run = ForkRun(self.config(seed, shape))
            run.shape = shape
            run.load()
            begun = folder.card.is_file()
            folder.path.mkdir(parents=True, exist_ok=True)
            run.execute(folder, resume=begun)
        return folder

    def run(self, shape: Shape, seed: int, split: str = "validation") -> dict[str, Any]:
        """What a run took, and its student's answers to problems of a split."""
        folder, config = self.trained(shape, seed), self.config(seed, shape)
        file = folder.path / "results.json"
        found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
        if split not in found:
            found |= facts(folder) | {"shape": asdict(shape), "seed": seed}
            student = load_student(config, path=folder.student, opening=opening(config))
            found[split] = measured(student, config, split)
            file.write_text(json.dumps(found))
        print(f"  {shape.name}: {split} {found[split]['accuracy']}, {found['tokens']:,} tokens", flush=True)
        return found


def facts(folder: RunFolder) -> dict[str, Any]:
    """What a run took: TOOK, and seconds."""
    lines = [line for line in folder.read_metrics() if "cost" in line]
    sums = {name: sum(line[name] for line in lines) for name in TOOK[1:]}
    seconds = folder.read_card()["seconds"]["training"]
    return {**sums, "tokens": sum(line["cost"]["sampled_tokens"] for line in lines), "seconds": seconds}


def measured(student: Any, config: Config, split: str) -> dict[str, Any]:
    """Each of 1,000 problems answered greedily, and the share of right ones of two samples."""
    first = FIRST[split]
    tasks, most = tasks_of(config, split, 1000, first), config.search.max_tokens
    greedy = answer(student, tasks, max_tokens=most).first
    rows = answer(student, tasks, max_tokens=most, n=2, temperature=1.0, seed=7).correct
    sampled = [sum(row) / 2 for row in rows]
    accuracy = {"greedy": sum(greedy) / len(tasks), "sampled": sum(sampled) / len(tasks)}
    return {"first": first, "accuracy": accuracy, "greedy": [*map(int, greedy)], "sampled": sampled}


def accuracies(runs: Sequence[dict[str, Any]], split: str, way: str) -> list[list[float]]:
    """`[S, n]`: each problem's result of each seed's student, `way` "greedy" or "sampled"."""
    return [[float(one) for one in run[split][way]] for run in runs]


def line(run: dict[str, Any]) -> dict[str, Any]:
    """A run of a table of validation problems."""
    return {key: run[key] for key in run if key not in ("validation", "test")} | run["validation"]["accuracy"]


def compared(place: Place, seeds: Sequence[int], shapes: dict[str, Shape], split: str) -> list[dict[str, Any]]:
    """A row each of the start and the arms, on a split; of forks also what they are less samples."""
    same = repeats(tasks_of(place.config(seeds[0], PLAIN), split, 1000, FIRST[split]))
    runs = {"start": [place.start(split)]}
    runs |= {name: [place.run(shape, seed, split) for seed in seeds] for name, shape in shapes.items()}
    rows = []
    for name, of_arm in runs.items():
        found: dict[str, Any] = {"task": place.name, "arm": name, "split": split, "distinct": len(set(same))}
        if name in shapes:
            shape = shapes[name]
            found |= {"shape": f"M {shape.samples:g}, K {shape.forks}, T {shape.continuations}", **asdict(shape)}
            found |= {key: sum(run[key] for run in of_arm) // len(of_arm) for key in TOOK}
        for way, suffix in (("greedy", ""), ("sampled", "_sampled")):
            right, before, samples = (accuracies(runs[arm], split, way) for arm in (name, "start", "samples"))
            over = bootstrap_over_seeds(right, [[0.0] * len(same)], groups=same)
            found[way] = [over.value, over.low, over.high]
            found[f"by_seed{suffix}"] = [sum(one) / len(one) for one in right]
            if name in shapes:
                found[f"gain{suffix}"] = less(right, before, same)
            if name == "forks":
                found[f"less_samples{suffix}"] = less(right, samples, same)
            found[f"outcomes{suffix}"] = [run[split][way] for run in of_arm]
        rows.append(found)
        print({key: found[key] for key in found if "outcomes" not in key}, flush=True)
    return rows


def samples_a_question(place: Place, rate: float, seed: int) -> list[dict[str, Any]]:
    """Plain samples at equal tokens: fewer a question, more questions."""
    table = []
    for method, n in product(METHODS, SAMPLES):
        questions = round(QUESTIONS * TOKENS / n)
        run = place.run(Shape(float(n), questions=questions, rate=rate, method=method), seed)
        table.append({"task": place.name, "method": method} | line(run) | {"samples": n})
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sources", nargs="+", choices=[*RATES], default=[*RATES], help="tasks")
    parser.add_argument("--seeds", type=int, nargs="+", default=[7, 8, 9], help="the first one tunes")
    unread = "tasks whose arms are compared on validation problems, whose test problems stay unread"
    parser.add_argument("--unread", nargs="+", choices=[*RATES], default=[], help=unread)
    parser.add_argument("--tune", action="store_true", help="train, and leave the test problems unread")
    parser.add_argument("--work", type=Path, default=ROOT / "checkpoints" / "forks")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "forks.json")
    args = parser.parse_args()
    work, first = args.work.resolve(), args.seeds[0]
    if not (work / "numbers" / "start" / "manifest.json").exists():
        command = [sys.executable, "-m", "alphazero_llm_trainer", *NUMBERS_START.split()]
        subprocess.run([*command, "--out", str(work / "numbers" / "start")], check=True)
    found: dict[str, Any] = {"seeds": args.seeds, "problems": 1000, "first": FIRST["test"], "settings": RECIPE}
    found |= {"numbers_start": NUMBERS_START, "shapes": [], "rates": [], "summary": [], "samples": []}
    for source in args.sources:
        place = Place(source, LEVEL, work / source / "start" if source == "numbers" else PACKAGED, work / source)
        for shape in map(place.sized, SHAPES):
            tokens, mixed = place.spent(shape)
            found["shapes"].append({"task": place.name, **asdict(shape), "tokens": tokens, "mixed": mixed})
        arms = {"samples": PLAIN, "forks": place.sized(FORKS)}
        for rate, shape in product(RATES[source], arms.values()):
            found["rates"].append({"task": place.name} | line(place.run(replace(shape, rate=rate), first)))
        arms = {name: replace(shape, rate=RATES[source][-1]) for name, shape in arms.items()}
        for seed, shape in product(args.seeds, arms.values()):
            place.trained(shape, seed)
        if args.tune:
            continue
        split = "validation" if source in args.unread else "test"
        found["summary"] += compared(place, args.seeds, arms, split)
        if source == "embedded":
            found["samples"] += samples_a_question(place, RATES[source][-1], first)
        provenance.write(args.out, "forks", found)


if __name__ == "__main__":
    main()
