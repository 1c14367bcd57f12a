"""AlphaZero's claim: from the rules alone, does training on what search finds beat training on samples?

    uv run python benchmarks/from_rules.py --work checkpoints/from_rules

The game of numbers with five numbers. The start has seen random legal play and nothing else (`sft` on worked-backwards plays;
nothing here solves a problem). Every arm goes on from it and samples about the same number of tokens:

- search: right responses that a tree under the rules finds (`train.groups: verified`), which ends at the first one;
- rule, one chain: the same rules and training, one chain a question: nothing is forked;
- sampling: right responses among eight samples, rejection-sampling fine-tuning;
- GRPO over eight samples, and GRPO over trees without a rule;
- PPO over eight samples, with a critic.

Then each last student is asked on test problems that no arm has seen: greedy, eight samples, and search under the rules at
one budget. The primary comparisons, written down before the test problems were read: greedy accuracy of `search` less that
of each other arm, over problems and seeds, held to 95% together (Bonferroni). All else is secondary.

A finished run is kept, a stopped one goes on. Writes JSON with the curves over tokens.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from arms import Arm, Study, run, written  # noqa: E402

from alphazero_llm_trainer.config.load import load_config  # noqa: E402
from alphazero_llm_trainer.eval.attempt import MethodContext  # noqa: E402
from alphazero_llm_trainer.eval.cells import Benchmark, run_cell  # noqa: E402
from alphazero_llm_trainer.eval.greedy import answer  # noqa: E402
from alphazero_llm_trainer.policy.student import load_student  # noqa: E402
from alphazero_llm_trainer.problems.load import load_tasks, opening  # noqa: E402
from alphazero_llm_trainer.problems.source import open_source  # noqa: E402
from alphazero_llm_trainer.problems.step_checks import Calculator  # noqa: E402
from alphazero_llm_trainer.types import Task  # noqa: E402

SEED = 7  # of samples and searches on the test problems
VALIDATION = 300  # problems that each checkpoint is measured on
GAME = ["student=embedded", "problems.source=numbers", "problems.levels=[3]", f"seed={SEED}"]
# Four and five numbers: on five alone the start would have fewer easy plays to learn the rules from.
START = (
    "sft --source numbers --model small -n 40000 --set problems.levels=[2,3] --eval-size 300"
    " --set train.sft.validation_size=200 --set train.sft.steps=3000 --set train.sft.evaluate_every=1000"
)
COMMON = (
    "--source numbers --set problems.levels=[3] --set rewards.pre_weight=0 --set train.demonstrations=2000"
    f" --set train.validation_size={VALIDATION}"
)
CHAINS = "--set train.groups=chain --set train.chain_samples=8 --set train.requeue_limit=0"
RULE = "--use-rft --set train.groups=verified --set search.data.enough_correct=1"
TREES = "--set search.budget_tokens=400 --set train.iterations=100 --set search.select=puct"
ONCE = "--set train.iterations=1 --set train.samples=1 --set train.requeue_limit=0"
# So many questions that a run samples about 1 M tokens, and each but GRPO's about 10,000 a round.
ARMS = {
    "search": Arm(f"{RULE} {TREES}", 3200, 32),
    "rule, one chain": Arm(f"{RULE} {ONCE}", 19200, 192),
    "sampling": Arm(f"--use-rft {CHAINS}", 2000, 20),
    "grpo, samples": Arm(f"--use-grpo {CHAINS}", 1920, 48),
    "grpo, trees": Arm("--use-grpo --set train.groups=tree --set train.requeue_limit=0", 1632, 48),
    "ppo, samples": Arm(f"--use-ppo {CHAINS}", 1920, 48),
}


def tasks(count: int, first: int) -> list[Task]:
    return load_tasks(open_source(load_config(overrides=GAME)), "test", count, start=first)


def measure(folder: Path | None, problems: list[Task], args: argparse.Namespace) -> dict[str, str]:
    """Right or wrong on each test problem: greedy, one of eight samples, and search under the rules."""
    config = load_config(overrides=GAME)
    student = load_student(config, path=folder, opening=opening(config))
    limit = config.search.max_tokens
    greedy = answer(student, problems, max_tokens=limit).first
    sampled = answer(student, problems, max_tokens=limit, n=8, temperature=1.0, seed=SEED).correct
    context = MethodContext(student, Calculator(), config)
    benchmark = Benchmark("numbers", problems)
    cell = asyncio.run(run_cell(context, benchmark, "mcts", args.budget, lambda: False, lambda tokens: None))
    return {
        "greedy": written(greedy),
        "pass_at_8": written([any(row) for row in sampled]),
        "search": cell.outcomes,
        "sample": "".join(str(sum(row)) for row in sampled),
    }


if __name__ == "__main__":
    run(
        Study(
            "benchmarks/from_rules.py",
            __doc__,
            ARMS,
            COMMON.split(),
            ("greedy", "pass_at_8", "search"),
            VALIDATION,
            tasks,
            measure,
            start=START,
            facts={"start_command": START},
            options=(("budget", 400, "tokens a problem, of the students with search"),),
        )
    )
