"""Token-level search against the plain way: same model, prompts, simulations and seeds, in one run.

    uv run python benchmarks/search.py            # some minutes on one core
    uv run python benchmarks/search.py --quick    # a smoke test of the same code, its figures mean nothing

Feasibility setting: a random 3 M-parameter Llama, prompts of 160 random tokens, 24 simulations, k = 5, c = 2, rollouts to
a horizon of 96 tokens, a reward that is a hash of the response. Arms: (a) the plain way of `plain_search.py`, a baseline
(every logits call and every rollout computes its prefix again, beam 3, one tree at a time); (b) the same with greedy
rollouts; (c) ours with greedy rollouts and 1 to 256 trees at once. How far a tree branches decides what it costs, so ours
is also measured under other rewards and a sharper policy ((a) costs the same under all of them but for a node's depth),
and with (a)'s own beam rollouts. Then the embedded student on real problems, graded by the training verifier, where
rollouts are sampled and less can be remembered; then cost against work.

Every arm runs in a process of its own, one thread, after a warm-up. The plain arms are slow: they search fewer trees (the
first of the same ones) and are compared by the simulation. "Unique" tokens are the distinct prefixes of a tree's prompt
and of all its graded responses. Ratios hold, absolute times are this machine's.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import hashlib
import multiprocessing
import platform
import resource
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

ROOT_FOLDER = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT_FOLDER))

from alphazero_llm_trainer.collect import make_evaluate  # noqa: E402
from alphazero_llm_trainer.config.load import load_config  # noqa: E402
from alphazero_llm_trainer.config.sections import EngineConfig  # noqa: E402
from alphazero_llm_trainer.engine import native  # noqa: E402
from alphazero_llm_trainer.engine.inprocess import InProcessEngine  # noqa: E402
from alphazero_llm_trainer.engine.step_ends import StepEnds  # noqa: E402
from alphazero_llm_trainer.mcts.driver import Search, derive_seed  # noqa: E402
from alphazero_llm_trainer.mcts.tree import ROOT, Tree  # noqa: E402
from alphazero_llm_trainer.policy.engine_tokens import EngineTokens  # noqa: E402
from alphazero_llm_trainer.policy.student import load_student  # noqa: E402
from alphazero_llm_trainer.problems.load import load_tasks  # noqa: E402
from alphazero_llm_trainer.types import Direction, Problem, RewardParts, Step  # noqa: E402
from benchmarks import provenance  # noqa: E402
from benchmarks.engine import random_llama  # noqa: E402
from benchmarks.plain_search import Nested, PlainSearch, PlainSettings  # noqa: E402

SEED = 7
FIRST_TASK = 5000  # embedded training problems from this number on
TOP_K, EXPLORATION, BEAMS = 5, 2.0, 3
Evaluate = Callable[[Problem, Sequence[Step], Sequence[Direction], str], Awaitable[RewardParts]]


@dataclass(frozen=True, slots=True)
class Arm:
    """One measurement: `trees` trees, `at_once` of them at the same time (0: all). `keep` of them (the first ones) are
    returned to be compared."""

    label: str
    model: str  # "random" or "embedded"
    method: str  # "plain" or "ours"
    rollout: str  # "beam", "greedy" or "sample"
    trees: int
    at_once: int = 0
    simulations: int = 24
    prompt: int = 160
    horizon: int = 96
    reward: str = "levels"  # of the random model, see `REWARDS`; the embedded student's is the training verifier's
    sharpness: float = 1.0  # of the random model: its logits are multiplied by this
    keep: int = 0


class TokenIds:
    """A student without a tokenizer: a question is its prompt's ids in digits, and so is the text of tokens."""

    def __init__(self, model: Any) -> None:
        self.model = model
        # No end token and no line ends: every response runs to the horizon.
        self.engine = InProcessEngine(model, eos_id=-1, step_ends=StepEnds(frozenset()), settings=EngineConfig())

    def prompt_ids(self, question: str) -> tuple[int, ...]:
        return tuple(map(int, question.split()))

    def decode(self, token_ids: Sequence[int]) -> str:
        return " ".join(map(str, token_ids))


def hashed(token_ids: Sequence[int], levels: int) -> float:
    """A response's reward where there is nothing to be right about: `levels` values in [0, 1], by a hash of its tokens."""
    digest = hashlib.blake2b(" ".join(map(str, token_ids)).encode(), digest_size=2).digest()
    return int.from_bytes(digest, "big") % levels / (levels - 1)


# Sums of all of them are exact in floating point. The reward decides how far a tree branches, and so what it costs.
REWARDS: dict[str, Callable[[Sequence[int]], float]] = {
    "levels": lambda ids: hashed(ids, 17),
    "coin": lambda ids: hashed(ids, 2),
    "right": lambda ids: 1.0,
    "wrong": lambda ids: 0.0,
}


def evaluate_by(reward: str) -> Evaluate:
    async def evaluate(
        problem: Problem, steps: Sequence[Step], directions: Sequence[Direction], verdict: str
    ) -> RewardParts:
        return RewardParts(REWARDS[reward]([token for step in steps for token in step.token_ids]))

    return evaluate


class Setting:
    """What all arms share: the model, the problems, the rule that ends a response, its reward and the search's settings.

    `responses` collects every graded response by problem, to count the tokens that the trees are made of.
    """

    def __init__(self, arm: Arm) -> None:
        self.student: Any
        if arm.model == "random":
            model = random_llama()
            model.generation_config.eos_token_id = None
            with torch.no_grad():
                model.model.norm.weight.mul_(arm.sharpness)
            self.student = TokenIds(model)
            generator = torch.Generator().manual_seed(1)
            drawn = torch.randint(2, model.config.vocab_size, (arm.trees, arm.prompt), generator=generator).tolist()
            self.problems = [Problem(f"random/{i}", self.student.decode(ids), "random") for i, ids in enumerate(drawn)]
            self.grade = evaluate_by(arm.reward)
        else:
            config = load_config(overrides=["student=embedded", "rewards.use_student_model=false"])
            self.student = load_student(config)
            tasks = load_tasks("embedded", "train", arm.trees, start=FIRST_TASK)
            self.problems = [task.problem for task in tasks]
            self.grade = make_evaluate(config.rewards, None, {task.problem.id: task for task in tasks})
        self.policy = EngineTokens(self.student, 1.0, BEAMS)
        search = {
            "mode": "token",
            "select": "puct",
            "exploration": EXPLORATION,
            "iterations": arm.simulations,
            "top_k": TOP_K,
            "rollout": arm.rollout,
            "beam": BEAMS,
            "max_tokens": arm.horizon,
            "temperature": 1.0,
            "concurrent": arm.at_once or arm.trees,
        }
        self.search = load_config(overrides=[{"search": search}]).search
        self.responses: dict[str, set[tuple[int, ...]]] = {problem.id: set() for problem in self.problems}

    async def evaluate(
        self, problem: Problem, steps: Sequence[Step], directions: Sequence[Direction], verdict: str
    ) -> RewardParts:
        self.responses[problem.id].add(tuple(token for step in steps for token in step.token_ids))
        return await self.grade(problem, steps, directions, verdict)

    def unique_tokens(self) -> int:
        """Distinct prefixes of each tree's prompt and graded responses."""
        count = 0
        for problem in self.problems:
            count += len(self.policy.prompt_ids(problem))
            before: tuple[int, ...] = ()
            # In sorted order a response shares with the one before it all that it shares with any earlier one.
            for response in sorted(self.responses[problem.id]):
                shared = 0
                while shared < min(len(before), len(response)) and before[shared] == response[shared]:
                    shared += 1
                count += len(response) - shared
                before = response
        return count


@dataclass(slots=True)
class Work:
    """What the model did during an arm, whoever called it."""

    tokens: int
    forwards: int
    rows: int
    forward_seconds: float


class Watched:
    """Counts the forwards of a transformers model, those inside `generate` too."""

    def __init__(self, model: Any) -> None:
        self.work, self._began = Work(0, 0, 0, 0.0), 0.0
        self._hooks = [
            model.register_forward_pre_hook(self._before, with_kwargs=True),
            model.register_forward_hook(self._after),
        ]

    def _before(self, module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        ids = kwargs["input_ids"]
        self.work.tokens += ids.numel()
        self.work.rows += ids.shape[0]
        self.work.forwards += 1
        self._began = time.perf_counter()

    def _after(self, *args: Any) -> None:
        self.work.forward_seconds += time.perf_counter() - self._began

    def stop(self) -> Work:
        for hook in self._hooks:
            hook.remove()
        return self.work


def nested(tree: Tree, node: int = ROOT) -> Nested:
    """A tree of one token a node in the form of `plain_search.Nested`."""
    return {
        tree.token_ids[child][0]: (tree.N[child], tree.W[child], nested(tree, child)) for child in tree.children[node]
    }


def grow_plain(setting: Setting, arm: Arm) -> tuple[list[Nested], Work]:
    """The baseline's trees, one after another."""
    model, policy = setting.student.model, setting.policy
    settings = PlainSettings(arm.simulations, TOP_K, EXPLORATION, arm.horizon, arm.rollout, BEAMS)
    loop = asyncio.new_event_loop()
    watched, trees = Watched(model), []
    for i, problem in enumerate(setting.problems):

        def verify(ids: tuple[int, ...], problem: Problem = problem) -> float:
            lines = policy.lines(ids, (0.0,) * len(ids))
            verdict = policy.verdict(ids) or "length"
            parts = setting.evaluate(problem, lines, [Direction.NONE] * len(lines), verdict)
            return loop.run_until_complete(parts).total

        search = PlainSearch(model, settings, lambda ids: policy.verdict(ids) is not None, verify)
        trees.append(search.run(policy.prompt_ids(problem), derive_seed(SEED, i)).nested())
    loop.close()
    return trees, watched.stop()


def grow_ours(setting: Setting, arm: Arm) -> tuple[list[Nested], Work]:
    """The package's trees on one engine, which remembers nothing from before."""
    pairs = [(problem, derive_seed(SEED, i)) for i, problem in enumerate(setting.problems)]

    async def grow() -> dict[int, Tree]:
        searches = Search(setting.policy, setting.evaluate, setting.search).run_many(pairs)
        return {index: result.tree async for index, result in searches}

    trees = asyncio.run(grow())
    stats = setting.student.engine.stats
    work = Work(stats.computed_tokens, stats.forwards, stats.rows, stats.forward_seconds)
    return [nested(trees[i]) for i in range(arm.keep)], work


def peak_mib() -> float:
    """The most memory that this process has held."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20


def run_arm(arm: Arm) -> tuple[dict[str, Any], list[Nested]]:
    """Measure one arm in this process: figures, and the first `arm.keep` trees."""
    torch.set_num_threads(1)
    grow = grow_plain if arm.method == "plain" else grow_ours
    warm = replace(arm, trees=1, simulations=2, horizon=8, keep=0)
    grow(Setting(warm), warm)
    setting = Setting(arm)
    gc.freeze()  # as `sample` does once it has loaded: collections leave the libraries' objects alone
    loaded = peak_mib()
    began, cpu_began = time.perf_counter(), time.process_time()
    trees, work = grow(setting, arm)
    wall, cpu = time.perf_counter() - began, time.process_time() - cpu_began
    simulations = arm.trees * arm.simulations
    figures = asdict(arm) | {
        "simulations_in_all": simulations,
        "seconds": wall,
        "cpu_seconds": cpu,
        "simulations_per_second": simulations / wall,
        "cpu_ms_per_simulation": 1000 * cpu / simulations,
        "computed_tokens": work.tokens,
        "tokens_per_simulation": work.tokens / simulations,
        "tokens_per_unique_token": work.tokens / setting.unique_tokens(),
        "rows_per_forward": work.rows / work.forwards,
        "forward_share": work.forward_seconds / wall,
        "peak_mib": peak_mib(),
        "peak_over_loaded_mib": peak_mib() - loaded,
    }
    return figures, trees[: arm.keep]


def measure(arm: Arm) -> tuple[dict[str, Any], list[Nested]]:
    """`run_arm` in a new process, so that one arm's memory is not another's.

    Forked where that is safe (it saves importing torch again, and a peak copied from a parent would be wrong otherwise).
    """
    way = "fork" if sys.platform == "linux" else "spawn"
    with ProcessPoolExecutor(1, multiprocessing.get_context(way)) as pool:
        return pool.submit(run_arm, arm).result()


def print_row(row: dict[str, Any], base: dict[str, Any] | None) -> None:
    """One line of a table; `base` is what CPU time is compared with."""
    gain = "" if base is None else f"{base['cpu_ms_per_simulation'] / row['cpu_ms_per_simulation']:.1f}x"
    cells = [
        f"{row['label']:28}",
        f"{row['trees']:5}",
        f"{row['at_once'] or row['trees']:5}",
        f"{row['simulations_per_second']:8,.1f}",
        f"{row['cpu_ms_per_simulation']:8.2f}",
        f"{gain:>8}",
        f"{row['tokens_per_simulation']:8,.1f}",
        f"{row['tokens_per_unique_token']:8.2f}",
        f"{row['rows_per_forward']:7.1f}",
        f"{row['forward_share']:7.0%}",
        f"{row['peak_mib']:7,.0f}",
        f"{row['peak_over_loaded_mib']:7,.0f}",
    ]
    print(*cells, flush=True)


def print_head(title: str, gain: str = "") -> None:
    heads = [
        ("", "", 28),
        ("", "trees", 5),
        ("at", "once", 5),
        ("", "sims/s", 8),
        ("CPU ms", "a sim", 8),
        (gain, "", 8),
        ("tokens", "a sim", 8),
        ("tokens", "a unique", 8),
        ("rows a", "forward", 7),
        ("time in", "forward", 7),
        ("peak", "MiB", 7),
        ("above", "loaded", 7),
    ]
    print(f"\n{title}")
    for line in (0, 1):
        print(*(f"{head[line]:>{head[2]}}" for head in heads))


def same(ours: list[Nested], plain: list[Nested]) -> tuple[int, int]:
    """How many trees are identical node for node (tokens, visits, sums of rewards), and how many were compared."""
    pairs = list(zip(ours, plain, strict=False))
    return sum(left == right for left, right in pairs), len(pairs)


def compare(title: str, arms: list[Arm]) -> dict[str, Any]:
    """Run the arms of one setting and print the table. The first is what CPU time is compared with."""
    print_head(title, "CPU gain")
    rows: list[dict[str, Any]] = []
    plain: dict[str, list[Nested]] = {}
    for arm in arms:
        row, trees = measure(arm)
        print_row(row, rows[0] if rows else None)
        rows.append(row)
        if arm.method == "plain":
            plain[arm.rollout] = trees
        elif arm.keep and arm.rollout in plain:
            row["identical_trees"], row["compared_trees"] = same(trees, plain[arm.rollout])
            print(
                f"    {row['identical_trees']} of {row['compared_trees']} trees identical to the plain way's, node for node"
            )
    for row in rows:
        row["cpu_gain"] = rows[0]["cpu_ms_per_simulation"] / row["cpu_ms_per_simulation"]
    return {"setting": title, "rows": rows}


def sweep(base: Arm) -> list[dict[str, Any]]:
    """Cost against work: the base, then more trees, more simulations, longer prompts and responses."""
    print_head("cost against work, ours, greedy rollouts, random Llama 3 M")
    arms = [
        base,
        replace(base, label="10x the trees", trees=10 * base.trees),
        replace(base, label="10x the simulations", simulations=10 * base.simulations),
        replace(base, label="4x the length", prompt=4 * base.prompt, horizon=4 * base.horizon),
    ]
    rows: list[dict[str, Any]] = []
    for arm in arms:
        row, _ = measure(arm)
        rows.append(row)
        row["cpu_growth"] = row["cpu_seconds"] / rows[0]["cpu_seconds"]
        row["token_growth"] = row["computed_tokens"] / rows[0]["computed_tokens"]
        print_row(row, None)
        print(
            f"    CPU time {row['cpu_seconds']:.1f} s, {row['cpu_growth']:.1f}x the base's;"
            f" computed tokens {row['computed_tokens']:,}, {row['token_growth']:.1f}x"
        )
    return rows


def feasibility_arms(args: argparse.Namespace) -> list[Arm]:
    size: dict[str, Any] = {"prompt": 40, "horizon": 16, "simulations": 8} if args.quick else {}
    few, some = (1, 2) if args.quick else (args.beam_trees, args.greedy_trees)
    counts = (1, 4) if args.quick else (1, 16, 64, 256)
    plain = [
        Arm("(a) plain, beam 3", "random", "plain", "beam", few, 1, keep=few),
        Arm("(b) plain, greedy", "random", "plain", "greedy", some, 1, keep=some),
    ]
    ours = [Arm("(c) ours, greedy", "random", "ours", "greedy", max(n, some), n, keep=some) for n in counts]
    # The very trees of (a): what is gained where a rollout says nothing about its nodes' own.
    beam = Arm("ours, beam 3", "random", "ours", "beam", counts[0] if args.quick else 8, keep=few)
    rewards = [
        Arm(f"ours, greedy, {name}", "random", "ours", "greedy", counts[-2], reward=reward)
        for name, reward in (("reward 0/1", "coin"), ("all right", "right"), ("all wrong", "wrong"))
    ]
    # Random weights are nearly indifferent between tokens (the likeliest has 0.008). With their logits times 8 it has
    # 0.79 on average, as a trained model's: the same greedy rollouts, a tree that branches less.
    sharp = Arm("ours, greedy, sharp policy", "random", "ours", "greedy", counts[-2], sharpness=8.0)
    again = replace(plain[0], label="(a) again: the noise", keep=0)
    return [replace(arm, **size) for arm in (*plain, *ours, *rewards, sharp, beam, again)]


def student_arms(args: argparse.Namespace) -> list[Arm]:
    # The product's default length; the end token usually comes long before.
    size: dict[str, Any] = {"horizon": 160} | ({"simulations": 8} if args.quick else {})
    some = 2 if args.quick else args.student_trees
    counts = (1, 4) if args.quick else (1, 16, 64, 256)
    plain = [
        Arm("(a) plain, beam 3", "embedded", "plain", "beam", some, 1, keep=some),
        Arm("(b) plain, sampled", "embedded", "plain", "sample", some, 1),
        Arm("(b) plain, greedy", "embedded", "plain", "greedy", some, 1, keep=some),
    ]
    # So little work a tree that one alone can't be timed.
    least = 4 if args.quick else 64
    ours = [Arm("(c) ours, sampled", "embedded", "ours", "sample", max(n, least), n) for n in counts]
    greedy = Arm("ours, greedy", "embedded", "ours", "greedy", least, counts[-2], keep=some)
    return [replace(arm, **size) for arm in (*plain, *ours, greedy)]


def device() -> str:
    """What it ran on, in words."""
    name = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else ():
        if line.startswith("model name"):
            name = line.partition(":")[2].strip()
            break
    return f"{name}, 1 thread"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="tiny sizes: shows that it runs")
    parser.add_argument("--beam-trees", type=int, default=2, help="trees of (a), feasibility setting")
    parser.add_argument("--greedy-trees", type=int, default=4, help="trees of (b), feasibility setting")
    parser.add_argument("--student-trees", type=int, default=8, help="trees of each plain arm, embedded student")
    parser.add_argument("--out", type=Path, default=ROOT_FOLDER / "benchmarks" / "results" / "search.json")
    args = parser.parse_args()
    torch.set_num_threads(1)
    native.library()  # compiled once here: forked processes have it
    began = time.perf_counter()
    feasibility = compare(
        "feasibility setting, random Llama 3 M; CPU gain over (a), per simulation", feasibility_arms(args)
    )
    student = compare(
        "embedded student 0.66 M, real problems and verifier; CPU gain over (a), per simulation", student_arms(args)
    )
    base = Arm("base", "random", "ours", "greedy", 8)
    if args.quick:
        base = replace(base, trees=2, simulations=4, prompt=20, horizon=12)
    work = sweep(base)
    result = {
        "command": " ".join(["python benchmarks/search.py", *quoted(args)]),
        "device": device(),
        "torch": torch.__version__,
        "seeds": {"weights": 0, "prompts": 1, "search": SEED, "tasks_from": FIRST_TASK},
        "top_k": TOP_K,
        "exploration": EXPLORATION,
        "seconds": time.perf_counter() - began,
        "feasibility": feasibility,
        "student": student,
        "work": work,
    }
    provenance.write(args.out, "search", result)


def quoted(args: argparse.Namespace) -> list[str]:
    """The arguments that decide the figures; where the file went is nobody's business."""
    sizes = ("beam_trees", "greedy_trees", "student_trees")
    words = [f"--{name.replace('_', '-')} {getattr(args, name)}" for name in sizes]
    return ["--quick"] if args.quick else words


if __name__ == "__main__":
    main()
