"""R2 of PROTOCOL.md: the game of numbers, searched by a real model under a value that it learned.

    ../shared/models/qwen-coder-0.5b.sh runs/qwen
    uv run python benchmarks/real_numbers.py sft value --model runs/qwen
    uv run python benchmarks/real_numbers.py test page --model runs/qwen

Stages: `sft` plays legally after 3,000 random games, `value` learns from 2,000 games of 16 samples
each, `test` answers 600 games in each way at each cap and ends where the value missed its gate,
`page` writes `results/real_numbers.json`. Each goes on where it stopped. On a GPU see
`real_rft.py`.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from arms import Seed, read  # noqa: E402
from real import with_settings  # noqa: E402

from alphazero_llm_trainer.engine.protocol import Judgement  # noqa: E402
from alphazero_llm_trainer.eval.metrics import paired_bootstrap  # noqa: E402
from alphazero_llm_trainer.eval.results import triple  # noqa: E402
from alphazero_llm_trainer.types import Problem, Step, text_of  # noqa: E402
from benchmarks import provenance  # noqa: E402

SEED, GAMES, TREES, SAMPLES, TESTED, CAPS = 7, 3000, 2000, 16, 600, (200, 400, 800)
GATE = 0.85  # of the AUC over states of held-out games
LEVEL = ("problems.levels=[2]", "search.temperature=1", "search.verify.first_temperature=1")
RATE, STEPS = 2e-4, 94  # STEPS of 32 games: each once
# Ways of answering: the method, its verifier, and settings.
WAYS: dict[str, tuple[str, ...]] = {
    "puct": ("mcts", "calculator+value"),
    "gumbel": ("mcts", "calculator+value", "search.select=gumbel"),
    "permuted": ("mcts", "calculator+value"),
    "step-rejection": ("step-rejection", "calculator"),
    "restarts": ("mcts", "calculator", "search.select=restart"),
    "adaptive-best-of-n": ("adaptive-best-of-n", "calculator"),
}
PRIMARY = ("puct", "step-rejection", 400)


class Run(Seed):
    """The stages, each a command."""

    def folders(self) -> tuple[Path, Path]:
        """The student's and the value's."""
        return self.folder("sft"), self.folder("value")

    def common(self) -> list[str]:
        return ["--source", "numbers", *with_settings(LEVEL)]

    def sft_stage(self) -> None:
        settings = [f"train.sft_steps={STEPS}", f"train.evaluate_every={STEPS}"]
        settings += ["train.optimizer.batch_size=32", f"train.optimizer.learning_rate={RATE}"]
        settings += ["train.optimizer.warmup=5", "train.validation_size=100"]
        words = ["--model", str(self.args.model), "-n", str(GAMES), *with_settings(settings)]
        self.sft("sft", *self.common(), *words)

    def value_stage(self) -> None:
        student, out = self.folders()
        settings = ["search.simulations=1", f"search.samples={SAMPLES}"]
        settings += [f"train.optimizer.learning_rate={RATE}", "train.optimizer.epochs=1"]
        words = ["value", *self.common(), "--model", str(student), "-n", str(TREES)]
        words += [*with_settings(settings), "--out", str(out)]
        self.stage("value", words, out / "critic.json")

    def test_stage(self) -> None:
        student, value = self.folders()
        auc = read(value / "critic.json")["test"]["AUC"][0]
        if auc < GATE:
            raise SystemExit(f"the value's AUC is {auc:.3f}: another value first (gate {GATE})")
        for way, (method, verifier, *settings) in WAYS.items():
            out = self.folder(f"test, {way}")
            words = ["eval", *self.common(), "--model", str(student), "-n", str(TESTED)]
            words += ["--methods", method, "--verifier", verifier, *with_settings(settings)]
            words += ["--budget-tokens", *map(str, CAPS), "--out", str(out)]
            words += ["--value", str(value)] * ("value" in verifier)
            words += ["--resume"] * (out / "cells").is_dir()
            self.stage(f"test, {way}", words, out / "results.json", script=permuted(way))

    def page(self) -> None:
        """The figures there are."""
        critic = read(self.folders()[1] / "critic.json")
        rows = {
            (way, row["budget"]): row
            for way in WAYS
            if (self.folder(f"test, {way}") / "results.json").is_file()
            for row in read(self.folder(f"test, {way}") / "results.json")["rows"]
        }
        right = {key: [float(digit) for digit in row["outcomes"]] for key, row in rows.items()}
        told = []
        for (way, cap), row in rows.items():
            gain = paired_bootstrap(right["puct", cap], right[way, cap])
            told.append({"way": way, "cap": cap, **row, "puct_less_it": triple(gain)})
        facts = {"value": {**critic["test"], "questions": critic["questions"]}, "rows": told}
        provenance.write(self.args.out, {"seed": SEED, "primary": PRIMARY, **facts})


def permuted(way: str) -> Path | None:
    """The program that answers in this way, None for the package's own."""
    return Path(__file__) if way == "permuted" else None


def with_another_s_value(words: Sequence[str]) -> int:
    """The package's command, in which a state's V is that of another state of its game, after as
    many random legal moves: the same distribution, and no news of the state.
    """
    from alphazero_llm_trainer.cli.main import main as command
    from alphazero_llm_trainer.policy.critic import CriticVerifier
    from alphazero_llm_trainer.problems.numbers import random_play, read_question, write

    own = CriticVerifier.__call__

    async def judged(
        self: Any, problem: Problem, prompt_ids: tuple[int, ...], steps: Sequence[Step]
    ) -> Judgement:
        numbers, _ = read_question(problem.question)
        others = []
        for count in range(1, len(steps) + 1):
            text = text_of(steps[:count])
            rng = Random(hashlib.sha256(f"{problem.id} {text}".encode()).digest())
            moves = random_play(rng, sorted(Counter(numbers).elements()))
            while moves is None:
                moves = random_play(rng, sorted(Counter(numbers).elements()))
            lines = write(sorted(numbers.elements()), moves).splitlines(keepends=True)[:count]
            states = [Step(tuple(encode(line)), (0.0,) * len(encode(line)), line) for line in lines]
            others.append((await own(self, problem, prompt_ids, states)).values[-1])
        values = tuple(others)
        return Judgement(values, values[-1], frozenset(range(len(steps))), values)

    from alphazero_llm_trainer.policy import student as students

    load, tokenizers = students.load_tokenizer, []

    def loaded(source: str) -> Any:
        tokenizers.append(load(source))
        return tokenizers[-1]

    def encode(line: str) -> list[int]:
        ids: list[int] = tokenizers[0](line, add_special_tokens=False)["input_ids"]
        return ids

    students.load_tokenizer = loaded
    CriticVerifier.__call__ = judged  # type: ignore[method-assign]
    return command(list(words))


def main() -> None:
    if sys.argv[1:2] == ["eval"]:
        raise SystemExit(with_another_s_value(sys.argv[1:]))
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("stage", nargs="+", choices=["sft", "value", "test", "page"])
    parser.add_argument("--model", type=Path, required=True, help="a folder with a chat model")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--work", type=Path, default=ROOT / "checkpoints" / "real-numbers")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "benchmarks" / "results" / "real_numbers.json"
    )
    args = parser.parse_args()
    args.work = args.work.resolve()
    run = Run(SEED, args)
    stages = {"sft": run.sft_stage, "value": run.value_stage, "test": run.test_stage}
    for stage in args.stage:
        stages.get(stage, run.page)()


if __name__ == "__main__":
    main()
