"""Token-level search against the plain way: same model, prompts, simulations and seeds, in one run.

    uv run python benchmarks/search.py            # some minutes on one core

Feasibility setting: a random 3 M-parameter Llama, prompts of 160 random tokens, 24 simulations, k =
5, c = 2, rollouts to a horizon of 96 tokens, a reward that is a hash of the response. Arms: (a) the
plain way of `PlainSearch`, a baseline (every logits call and every rollout computes its prefix
again, beam 3, one tree at a time); (b) the same with greedy rollouts; (c) ours with greedy rollouts
and 1 to 256 trees at once. How far a tree branches decides what it costs, so ours is also measured
under other rewards and a sharper policy ((a) costs the same under all of them but for a node's
depth), and with (a)'s own beam rollouts.

Every arm runs in a process of its own, one thread, after a warm-up. The plain arms are slow: they
search fewer trees (the first of the same ones) and are compared by the simulation. "Unique" tokens
are the distinct prefixes of a tree's prompt and of all its graded responses. Ratios hold, absolute
times are this machine's.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import hashlib
import math
import multiprocessing
import platform
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

ROOT_FOLDER = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT_FOLDER))

from alphazero_llm_trainer.config.load import load_config  # noqa: E402
from alphazero_llm_trainer.config.sections import EngineConfig  # noqa: E402
from alphazero_llm_trainer.engine import native  # noqa: E402
from alphazero_llm_trainer.engine.inprocess import InProcessEngine  # noqa: E402
from alphazero_llm_trainer.engine.protocol import EngineStats  # noqa: E402
from alphazero_llm_trainer.engine.step_ends import StepEnds  # noqa: E402
from alphazero_llm_trainer.mcts.driver import Search  # noqa: E402
from alphazero_llm_trainer.mcts.seeds import derive_seed  # noqa: E402
from alphazero_llm_trainer.policy.engine_tokens import EngineTokens  # noqa: E402
from alphazero_llm_trainer.tree.arena import ROOT, Tree  # noqa: E402
from alphazero_llm_trainer.types import Direction, Problem, RewardParts, Step  # noqa: E402
from benchmarks import provenance  # noqa: E402
from benchmarks.engine import random_llama  # noqa: E402

SEED = 7
TOP_K, EXPLORATION, BEAMS = 5, 2.0, 3


@dataclass(frozen=True, slots=True)
class Arm:
    """One measurement: `trees` trees, `at_once` of them at the same time (0: all). `keep` of them
    (the first ones) are returned to be compared.
    """

    label: str
    method: str  # "plain" or "ours"
    rollout: str  # "beam" or "greedy"
    trees: int
    at_once: int = 0
    simulations: int = 24
    prompt: int = 160
    horizon: int = 96
    reward: str = "levels"  # of the random model, see `REWARDS`
    sharpness: float = 1.0  # of the random model: its logits are multiplied by this
    keep: int = 0


# -- the plain way: a baseline, not part of the product --------------------------------------------

# {token: (visits, sum of rewards, children)}: what a search is compared by.
Nested = dict[int, tuple[int, float, "Nested"]]


@dataclass(eq=False)
class Node:
    """A token of the tree; the root's is -1."""

    token: int
    prior: float
    visits: int = 0
    total: float = 0.0
    reward: float | None = None  # a terminal node's
    children: list[Node] = field(default_factory=list)

    def nested(self) -> Nested:
        return {child.token: (child.visits, child.total, child.nested()) for child in self.children}

    def select(self) -> Node:
        """PUCT (Silver et al. 2017); `max` keeps the earliest on ties."""

        def score(child: Node) -> float:
            value = child.total / child.visits if child.visits else 0.0
            return value + EXPLORATION * child.prior * math.sqrt(self.visits) / (1 + child.visits)

        return max(self.children, key=score)


class PlainSearch:
    """The searches of one model of transformers, whose generation config says what ends a response.

    Args:
        finished: whether a response is complete after its last token.
        verify: the reward in [0, 1] of a complete response (or of one cut at the horizon).
    """

    def __init__(
        self,
        model: Any,
        arm: Arm,
        finished: Callable[[tuple[int, ...]], bool],
        verify: Callable[[tuple[int, ...]], float],
    ) -> None:
        self.model, self.arm, self.finished, self.verify = model, arm, finished, verify

    @torch.inference_mode()
    def run(self, prompt: tuple[int, ...]) -> Node:
        """The root of a finished tree."""
        root = Node(-1, 1.0)
        for _ in range(self.arm.simulations):
            path = [root]
            while path[-1].children:
                path.append(path[-1].select())
            reward = self.evaluate(prompt, path)
            for node in path:
                node.visits += 1
                node.total += reward
        return root

    def evaluate(self, prompt: tuple[int, ...], path: list[Node]) -> float:
        """The reward of the leaf at the end of `path`: its own where the response ends there, else
        a rollout's.
        """
        leaf, response = path[-1], tuple(node.token for node in path[1:])
        if leaf.reward is not None:
            return leaf.reward
        if len(response) >= self.arm.horizon or (response and self.finished(response)):
            leaf.reward = self.verify(response)
            return leaf.reward
        leaf.children = self.expand(prompt + response)
        return self.verify(self.rollout(prompt, response))

    def expand(self, prefix: tuple[int, ...]) -> list[Node]:
        """The likeliest next tokens, priors normalised over them: one forward over the whole
        prefix.
        """
        logits = self.model(input_ids=torch.tensor([prefix]), use_cache=False).logits[0, -1]
        best, tokens = logits.float().topk(TOP_K)
        return [
            Node(*pair) for pair in zip(tokens.tolist(), best.softmax(-1).tolist(), strict=True)
        ]

    def rollout(self, prompt: tuple[int, ...], response: tuple[int, ...]) -> tuple[int, ...]:
        """The whole response after one `generate`, cut where it is complete."""
        # A beam's best total log-probability, so no normalisation by length.
        how = {"num_beams": BEAMS, "length_penalty": 0.0} if self.arm.rollout == "beam" else {}
        ids = torch.tensor([prompt + response])
        made = self.model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=self.arm.horizon - len(response),
            do_sample=False,
            pad_token_id=0,
            **how,
        )
        whole = tuple(made[0, len(prompt) :].tolist())
        for end in range(len(response) + 1, len(whole)):
            if self.finished(whole[:end]):
                return whole[:end]
        return whole


# -- arms ------------------------------------------------------------------------------------------


class TokenIds:
    """A student without a tokenizer: a question is its prompt's ids in digits, and so is the text
    of tokens.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        # No end token and no line ends: every response runs to the horizon.
        self.engine = InProcessEngine(
            model, eos_id=-1, step_ends=StepEnds(frozenset()), settings=EngineConfig()
        )

    def prompt_ids(self, question: str) -> tuple[int, ...]:
        return tuple(map(int, question.split()))

    def lead(self) -> str:
        return ""

    def decode(self, token_ids: Sequence[int]) -> str:
        return " ".join(map(str, token_ids))


def hashed(token_ids: Sequence[int], levels: int) -> float:
    """A response's reward where there is nothing to be right about: `levels` values in [0, 1], by a
    hash of its tokens.
    """
    digest = hashlib.blake2b(" ".join(map(str, token_ids)).encode(), digest_size=2).digest()
    return int.from_bytes(digest, "big") % levels / (levels - 1)


# Sums of all of them are exact in floating point. The reward decides how far a tree branches, and
# so what it costs.
REWARDS: dict[str, Callable[[Sequence[int]], float]] = {
    "levels": lambda ids: hashed(ids, 17),
    "coin": lambda ids: hashed(ids, 2),
    "right": lambda ids: 1.0,
    "wrong": lambda ids: 0.0,
}


class Setting:
    """What all arms share: the model, the problems, the rule that ends a response, its reward and
    the search's settings.

    `responses` collects every graded response by problem, to count the tokens that the trees are
    made of.
    """

    def __init__(self, arm: Arm) -> None:
        model = random_llama()
        model.generation_config.eos_token_id = None
        with torch.no_grad():
            model.model.norm.weight.mul_(arm.sharpness)
        self.student = TokenIds(model)
        generator = torch.Generator().manual_seed(1)
        drawn = torch.randint(
            2, model.config.vocab_size, (arm.trees, arm.prompt), generator=generator
        ).tolist()
        self.problems = [
            Problem(f"random/{i}", self.student.decode(ids), "random")
            for i, ids in enumerate(drawn)
        ]
        self.reward = REWARDS[arm.reward]
        self.policy = EngineTokens(self.student, 1.0, BEAMS)
        search = {
            "mode": "token",
            "select": "puct",
            "exploration": EXPLORATION,
            "simulations": arm.simulations,
            "top_k": TOP_K,
            "rollout": arm.rollout,
            "beam": BEAMS,
            "max_tokens": arm.horizon,
            "temperature": 1.0,
            "concurrent": arm.at_once or arm.trees,
        }
        self.search = load_config(overrides=[{"search": search}]).search
        self.responses: dict[str, set[tuple[int, ...]]] = {
            problem.id: set() for problem in self.problems
        }

    async def evaluate(
        self, problem: Problem, steps: Sequence[Step], directions: Sequence[Direction], verdict: str
    ) -> RewardParts:
        response = tuple(token for step in steps for token in step.token_ids)
        self.responses[problem.id].add(response)
        return RewardParts(self.reward(response))

    def unique_tokens(self) -> int:
        """Distinct prefixes of each tree's prompt and graded responses."""
        count = 0
        for problem in self.problems:
            count += len(self.policy.prompt_ids(problem))
            before: tuple[int, ...] = ()
            # In sorted order a response shares with the one before it all that it shares with any
            # earlier one.
            for response in sorted(self.responses[problem.id]):
                shared = 0
                while (
                    shared < min(len(before), len(response)) and before[shared] == response[shared]
                ):
                    shared += 1
                count += len(response) - shared
                before = response
        return count


class Watched:
    """Counts the forwards of a transformers model, those inside `generate` too, as the engine
    counts its own.
    """

    def __init__(self, model: Any) -> None:
        self.work, self._began = EngineStats(), 0.0
        self._hooks = [
            model.register_forward_pre_hook(self._before, with_kwargs=True),
            model.register_forward_hook(self._after),
        ]

    def _before(self, module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        ids = kwargs["input_ids"]
        self.work.computed_tokens += ids.numel()
        self.work.rows += ids.shape[0]
        self.work.forwards += 1
        self._began = time.perf_counter()

    def _after(self, *args: Any) -> None:
        self.work.forward_seconds += time.perf_counter() - self._began

    def stop(self) -> EngineStats:
        for hook in self._hooks:
            hook.remove()
        return self.work


def nested(tree: Tree, node: int = ROOT) -> Nested:
    """A tree of one token a node in the form of `Nested`."""
    return {
        tree.token_ids[child][0]: (tree.N[child], tree.W[child], nested(tree, child))
        for child in tree.children[node]
    }


def grow_plain(setting: Setting, arm: Arm) -> tuple[list[Nested], EngineStats]:
    """The baseline's trees, one after another."""
    model, policy = setting.student.model, setting.policy
    loop = asyncio.new_event_loop()
    watched, trees = Watched(model), []
    for problem in setting.problems:

        def verify(ids: tuple[int, ...], problem: Problem = problem) -> float:
            lines = policy.lines(ids, (0.0,) * len(ids))
            verdict = policy.verdict(ids) or "length"
            parts = setting.evaluate(problem, lines, [Direction.NONE] * len(lines), verdict)
            return loop.run_until_complete(parts).total

        search = PlainSearch(model, arm, lambda ids: policy.verdict(ids) is not None, verify)
        trees.append(search.run(policy.prompt_ids(problem)).nested())
    loop.close()
    return trees, watched.stop()


def grow_ours(setting: Setting, arm: Arm) -> tuple[list[Nested], EngineStats]:
    """The package's trees on one engine, which remembers nothing from before."""
    pairs = [(problem, derive_seed(SEED, i)) for i, problem in enumerate(setting.problems)]

    async def grow() -> list[Tree]:
        search = Search(setting.policy, setting.evaluate, setting.search)
        gate = asyncio.Semaphore(setting.search.concurrent)

        async def one(problem: Problem, seed: int) -> Tree:
            async with gate:
                return (await search.run(problem, seed)).tree

        return await asyncio.gather(*(one(*pair) for pair in pairs))

    trees = asyncio.run(grow())
    return [nested(trees[i]) for i in range(arm.keep)], setting.student.engine.stats


def run_arm(arm: Arm) -> tuple[dict[str, Any], list[Nested]]:
    """Measure one arm in this process: figures, and the first `arm.keep` trees."""
    torch.set_num_threads(1)
    grow = grow_plain if arm.method == "plain" else grow_ours
    warm = replace(arm, trees=1, simulations=2, horizon=8, keep=0)
    grow(Setting(warm), warm)
    setting = Setting(arm)
    # as `sample` does once it has loaded: collections leave the libraries' objects alone
    gc.freeze()
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
        "computed_tokens": work.computed_tokens,
        "tokens_per_simulation": work.computed_tokens / simulations,
        "tokens_per_unique_token": work.computed_tokens / setting.unique_tokens(),
        "rows_per_forward": work.rows / work.forwards,
        "forward_share": work.forward_seconds / wall,
    }
    return figures, trees[: arm.keep]


def measure(arm: Arm) -> tuple[dict[str, Any], list[Nested]]:
    """`run_arm` in a new process, so that one arm's memory is not another's; forked, which saves
    importing torch again.
    """
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
        return pool.submit(run_arm, arm).result()


def print_row(row: dict[str, Any], base: dict[str, Any]) -> None:
    """One line of a table; `base` is what CPU time is compared with."""
    print(
        f"{row['label']:28} {row['trees']:5} {row['at_once'] or row['trees']:5} "
        f"{row['simulations_per_second']:10,.1f} sims/s"
        f" {row['cpu_ms_per_simulation']:8.2f} CPU ms "
        f"{base['cpu_ms_per_simulation'] / row['cpu_ms_per_simulation']:7.1f}x"
        f" {row['tokens_per_simulation']:8,.1f} tokens a sim {row['tokens_per_unique_token']:6.2f} "
        "a unique token",
        flush=True,
    )


def same(ours: list[Nested], plain: list[Nested]) -> tuple[int, int]:
    """How many trees are identical node for node (tokens, visits, sums of rewards), and how many
    were compared.
    """
    pairs = list(zip(ours, plain, strict=False))
    return sum(left == right for left, right in pairs), len(pairs)


def compare(title: str, arms: list[Arm]) -> dict[str, Any]:
    """Run the arms of one setting and print the table. The first is what CPU time is compared
    with.
    """
    print(title)
    rows: list[dict[str, Any]] = []
    plain: dict[str, list[Nested]] = {}
    for arm in arms:
        row, trees = measure(arm)
        print_row(row, rows[0] if rows else row)
        rows.append(row)
        if arm.method == "plain":
            plain[arm.rollout] = trees
        elif arm.keep and arm.rollout in plain:
            row["identical_trees"], row["compared_trees"] = same(trees, plain[arm.rollout])
            print(
                f"    {row['identical_trees']} of {row['compared_trees']} trees identical to the "
                "plain way's, node for node"
            )
    for row in rows:
        row["cpu_gain"] = rows[0]["cpu_ms_per_simulation"] / row["cpu_ms_per_simulation"]
    return {"setting": title, "rows": rows}


def feasibility_arms(beam_trees: int, greedy_trees: int) -> list[Arm]:
    plain = [
        Arm("(a) plain, beam 3", "plain", "beam", beam_trees, 1, keep=beam_trees),
        Arm("(b) plain, greedy", "plain", "greedy", greedy_trees, 1, keep=greedy_trees),
    ]
    counts = (1, 16, 64, 256)
    ours = [
        Arm("(c) ours, greedy", "ours", "greedy", max(n, greedy_trees), n, keep=greedy_trees)
        for n in counts
    ]
    # The very trees of (a): what is gained where a rollout says nothing about its nodes' own.
    beam = Arm("ours, beam 3", "ours", "beam", 8, keep=beam_trees)
    rewards = [
        Arm(f"ours, greedy, {name}", "ours", "greedy", 64, reward=reward)
        for name, reward in (("reward 0/1", "coin"), ("all right", "right"), ("all wrong", "wrong"))
    ]
    # Random weights are nearly indifferent between tokens (the likeliest has 0.008). With their
    # logits times 8 it has 0.79 on average, as a trained model's: the same greedy rollouts, a tree
    # that branches less.
    sharp = Arm("ours, greedy, sharp policy", "ours", "greedy", 64, sharpness=8.0)
    return [
        *plain,
        *ours,
        *rewards,
        sharp,
        beam,
        replace(plain[0], label="(a) again: the noise", keep=0),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--beam-trees", type=int, default=2, help="trees of (a), feasibility setting"
    )
    parser.add_argument(
        "--greedy-trees", type=int, default=4, help="trees of (b), feasibility setting"
    )
    parser.add_argument(
        "--out", type=Path, default=ROOT_FOLDER / "benchmarks" / "results" / "search.json"
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    native.library()  # compiled once here: forked processes have it
    began = time.perf_counter()
    feasibility = compare(
        "feasibility setting, random Llama 3 M; CPU gain over (a), per simulation",
        feasibility_arms(args.beam_trees, args.greedy_trees),
    )
    result = {
        "device": f"{platform.machine()}, 1 thread",
        "torch": torch.__version__,
        "seeds": {"weights": 0, "prompts": 1, "search": SEED},
        "top_k": TOP_K,
        "exploration": EXPLORATION,
        "seconds": time.perf_counter() - began,
        "feasibility": feasibility,
    }
    provenance.write(args.out, result)


if __name__ == "__main__":
    main()
