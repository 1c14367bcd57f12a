"""What is the best use of sampled tokens in training? Arms side by side from the shipped student, over seeds.

    uv run python benchmarks/improvement.py --work checkpoints/improvement

Every arm samples about as many tokens as `train`'s GRPO on trees did by default (1.15 M), on new questions with their final
answers only:

- search: right responses of trees under the source's rule, each tree ends at the first one, rejection-sampling fine-tuning;
- rule, one chain: the same rule and training, one chain a question: nothing is forked;
- rft, 8 samples: right ones among plain samples;
- grpo, trees and grpo, samples.

The primary comparisons, written down before the test problems were read: greedy accuracy of `search` less that of each
other arm, over problems and seeds, held to 95% together (Bonferroni). All else is secondary.

A finished run is kept, a stopped one goes on. Writes JSON with the curves over tokens.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from arms import Arm, Study, run, written  # noqa: E402

from alphazero_llm_trainer.config.load import load_config  # noqa: E402
from alphazero_llm_trainer.eval.greedy import answer  # noqa: E402
from alphazero_llm_trainer.policy.student import load_student  # noqa: E402
from alphazero_llm_trainer.problems.load import load_tasks  # noqa: E402
from alphazero_llm_trainer.types import Task  # noqa: E402

SEED = 7  # of the samples on the test problems
HRE = "--set rewards.pre_weight=0"
RFT = f"--use-rft {HRE}"
CHAINS = "--set train.groups=chain --set train.chain_samples={} --set train.requeue_limit=0"
RULE = "--set train.groups=verified --set search.data.enough_correct=1"
# So many questions that an arm samples about 1.1 M tokens, and each but GRPO's about 7,000 a round, on which it makes as many
# updates. `search` is what `train` does where no method is named, on more questions.
ARMS = {
    "search": Arm("", 15840, 96),
    "rft, 8 samples": Arm(f"{RFT} {CHAINS.format(8)}", 6400, 40),
    "grpo, trees": Arm(f"--use-grpo {HRE} --set train.groups=tree", 5760, 96),
    "grpo, samples": Arm(f"--use-grpo {HRE} {CHAINS.format(8)}", 6400, 96),
    "rule, one chain": Arm(f"{RFT} {RULE} --set train.iterations=1 --set train.samples=1", 38400, 320),
}


def tasks(count: int, first: int) -> list[Task]:
    return load_tasks("embedded", "test", count, start=first)


def measure(folder: Path | None, problems: list[Task], args: argparse.Namespace) -> dict[str, str]:
    """Right or wrong on each test problem, greedy and as one of eight samples."""
    config = load_config(overrides=["student=embedded", f"seed={SEED}"])
    student = load_student(config, path=folder)
    limit = config.search.max_tokens
    sampled = answer(student, problems, max_tokens=limit, n=8, temperature=1.0, seed=SEED).correct
    return {
        "greedy": written(answer(student, problems, max_tokens=limit).first),
        "pass_at_8": written([any(row) for row in sampled]),
    }


if __name__ == "__main__":
    run(
        Study(
            "benchmarks/improvement.py",
            __doc__,
            ARMS,
            ["--model", "embedded"],
            ("greedy", "pass_at_8"),
            load_config().train.validation_size,
            tasks,
            measure,
            apart=960,
        )
    )
