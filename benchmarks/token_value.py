"""R3 of PROTOCOL.md: PUCT over tokens under a value that was learned, against a beam of three.

    uv run python benchmarks/real_numbers.py sft
    uv run python benchmarks/token_value.py trees value head test page --model FOLDER

FOLDER is checkpoints/numbers-small/seed-7/sft. On a real model and GSM8K, from what
`real_rft.py greedy samples` left in checkpoints/real-rft:

    uv run python benchmarks/token_value.py answers head test page --source gsm8k --model FOLDER \
        --answers checkpoints/real-rft

Stages: `trees` searches games over tokens, `answers` makes trees of answers that are there; `value`
learns a network and `head` a layer over the policy's states from them; `test` answers in each way,
`page` writes `results/token_value_SOURCE.json`. Each goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from arms import Seed, read  # noqa: E402
from real import with_settings  # noqa: E402
from real_rft import lines  # noqa: E402

from alphazero_llm_trainer.eval.metrics import paired_bootstrap, wilson  # noqa: E402
from alphazero_llm_trainer.eval.results import triple  # noqa: E402
from benchmarks import provenance  # noqa: E402

SEED, CAP = 7, 2000  # CAP ends no search over tokens
GAMES, FIRST_GAME, SIMULATIONS = 1500, 40_000, 60  # of `trees`; games that `sft` didn't see
QUESTIONS = 1000  # of `answers`
# Test problems: the number of the first, how many, and how many in one command.
TESTED = {"numbers": (1000, 1000, 1000), "gsm8k": (0, 400, 100)}
# The temperature is that of samples alone, the best of four on validation games.
SETTINGS = {
    "numbers": ("problems.levels=[2]", "search.temperature=0.2"),
    "gsm8k": ("search.max_tokens=400",),
}
# Ways of answering: the method, who judges, whose value is asked, and settings.
TOKEN = "search.mode=token"
WAYS: dict[str, tuple[str, ...]] = {
    "beam of three": ("mcts", "none", "", TOKEN, "search.rollout=beam", "search.simulations=1"),
    "puct, beam end": ("mcts", "none", "head", TOKEN, "search.simulations=100"),
    "puct": ("mcts", "none", "head", TOKEN, "search.simulations=100"),
    "greedy": ("greedy", "none", ""),
    "beam of four": (
        "mcts",
        "none",
        "",
        TOKEN,
        "search.rollout=beam",
        "search.beam=4",
        "search.simulations=1",
    ),
    "puct, network": ("mcts", "none", "value", TOKEN, "search.simulations=100"),
    "best-of-n": ("best-of-n", "value", "head"),
    "majority": ("majority", "none", ""),
}
PRIMARY = ("puct, beam end", "beam of three")
AT_EQUAL = ("best-of-n", "majority")  # have the tokens that `puct, beam end` took


class Run(Seed):
    """The stages, each a command."""

    def common(self) -> list[str]:
        source: str = self.args.source
        return ["--source", source, "--model", self.args.model, *with_settings(SETTINGS[source])]

    def trees(self) -> None:
        words = [*self.common(), "--mode", "token", "-n", str(GAMES), "--start", str(FIRST_GAME)]
        words += with_settings([f"search.simulations={SIMULATIONS}", "search.rollout=beam"])
        self.sample("trees", *words)

    def answers(self) -> None:
        """The journal of greedy and sampled answers, a tree a question whose nodes are lines."""
        from alphazero_llm_trainer.api.search import load
        from alphazero_llm_trainer.mcts.tree import ROOT as BEGUN
        from alphazero_llm_trainer.mcts.tree import Tree
        from alphazero_llm_trainer.policy.engine_tokens import EngineTokens
        from alphazero_llm_trainer.problems.load import load_tasks
        from alphazero_llm_trainer.rollouts import GradedTree
        from alphazero_llm_trainer.types import Cost, RewardParts

        out = self.folder("trees") / "journal.jsonl"
        if out.is_file():
            return
        out.parent.mkdir(parents=True)
        student = load(self.args.model, config={"problems.source": "gsm8k"})
        policy = EngineTokens(student, 1.0, 1)
        tasks = {task.problem.id: task for task in load_tasks("gsm8k", "train", QUESTIONS)}
        trees = {name: Tree() for name in tasks}
        for name in ("greedy", "samples"):
            for line in lines(self.args.answers / f"{name}.jsonl"):
                if line["id"] not in trees or line["finish"] != "eos":
                    continue  # cut ones ended nowhere
                tree, node = trees[line["id"]], BEGUN
                for step in policy.lines(tuple(line["ids"]), tuple(line["logprobs"])):
                    node = tree.attach(node, step)
                right = float(line["right"])
                tree.samples[node] += 1
                tree.finish(node, "ended", RewardParts(total=right, hre=right))
                tree.backup(node, right)
                tree.simulated(node)
        whole = out.with_suffix(".part")
        with whole.open("w", encoding="utf-8") as file:
            for name, tree in trees.items():
                prompt = policy.prompt_ids(tasks[name].problem)
                graded = GradedTree(
                    name, tasks[name], tree, Cost(), "simulations", False, 0, prompt
                )
                file.write(json.dumps(graded.record(seed=SEED, split="train")) + "\n")
        whole.rename(out)

    def critic(self, name: str, *settings: str) -> None:
        out = self.folder(name)
        words = ["value", *self.common(), "--data", str(self.folder("trees")), "--out", str(out)]
        self.stage(name, [*words, *with_settings(settings)], out / "critic.json")

    def test(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        began = self.path / "began.json"
        if not began.is_file():
            began.write_text(json.dumps(provenance.BEGAN))
        first, num, size = TESTED[self.args.source]
        for way, (method, judge, value, *settings) in WAYS.items():
            if value and not (self.folder(value) / "critic.json").is_file():
                continue  # no network of a real model
            cap = round(self.row(PRIMARY[0])["tokens"]) if way in AT_EQUAL else CAP
            for start in range(first, first + num, size):
                out = self.folder(f"{way}, {start}")
                words = ["eval", *self.common(), *with_settings(settings)]
                words += ["--split", "test", "-n", str(size), "--start", str(start)]
                words += ["--methods", method, "--budget-tokens", str(cap), "--out", str(out)]
                words += ["--verifier", judge] if method != "greedy" else []
                words += ["--value", str(self.folder(value))] if value else []
                words += ["--resume"] * (out / "cells").is_dir()
                script = Path(__file__) if way == PRIMARY[0] else None
                self.stage(f"{way}, {start}", words, out / "results.json", script=script)

    def row(self, way: str) -> dict[str, Any]:
        """A way's outcomes and tokens, over the chunks that are there."""
        first, num, size = TESTED[self.args.source]
        files = [
            self.folder(f"{way}, {start}") / "results.json"
            for start in range(first, first + num, size)
        ]
        parts = [read(file)["rows"][0] for file in files if file.is_file()]
        outcomes = "".join(part["outcomes"] for part in parts)
        if not outcomes:
            return {"outcomes": ""}
        made: dict[str, Any] = {"way": way, "cap": parts[0]["budget"], "problems": len(outcomes)}
        for key in ("sampled_tokens", "scored_tokens"):
            made[key] = sum(part[key] * part["problems"] for part in parts) / len(outcomes)
        made["tokens"] = made["sampled_tokens"] + made["scored_tokens"]
        made["accuracy"] = triple(wilson(outcomes.count("1"), len(outcomes)))
        return {**made, "outcomes": outcomes}

    def page(self) -> None:
        """The figures there are."""
        values = {}
        for name in ("value", "head"):
            if (self.folder(name) / "critic.json").is_file():
                card = read(self.folder(name) / "critic.json")
                values[name] = {key: card[key] for key in ("test", "questions", "seconds")}
        rows = [self.row(way) for way in WAYS]
        rows = [row for row in rows if row["outcomes"]]
        right = {row["way"]: list(map(float, row["outcomes"])) for row in rows}
        tree = right[PRIMARY[0]]
        for row in rows:
            if row["way"] != PRIMARY[0]:
                gain = paired_bootstrap(tree, right[row["way"]][: len(tree)])
                row["tree_less_it"] = triple(gain)
        facts = {"seed": SEED, "source": self.args.source, "primary": PRIMARY, "values": values}
        facts |= {"first": TESTED[self.args.source][0], "rows": rows}
        provenance.write(self.args.out, {**read(self.path / "began.json"), **facts})


def with_a_beam_at_the_end(words: Sequence[str]) -> int:
    """The package's command, in which the one rollout that ends a search under a value is a beam of
    three and not greedy.
    """
    from alphazero_llm_trainer.cli.main import main as command
    from alphazero_llm_trainer.policy.engine_tokens import EngineTokens

    plain = EngineTokens.rollout

    async def rollout(self: Any, prompt: Any, response: Any, kind: str, *more: Any) -> Any:
        return await plain(self, prompt, response, "beam", *more)

    EngineTokens.rollout = rollout  # type: ignore[assignment,method-assign]
    return command(list(words))


def main() -> None:
    if sys.argv[1:2] == ["eval"]:
        raise SystemExit(with_a_beam_at_the_end(sys.argv[1:]))
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "stage", nargs="+", choices=["trees", "answers", "value", "head", "test", "page"]
    )
    parser.add_argument("--model", required=True, help="a student's folder")
    parser.add_argument("--source", choices=tuple(TESTED), default="numbers")
    parser.add_argument("--answers", type=Path, help="where real_rft.py left its answers")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--work", type=Path, help="default: checkpoints/tokens-SOURCE")
    parser.add_argument("--out", type=Path, help="default: a file of benchmarks/results")
    args = parser.parse_args()
    args.work = (args.work or ROOT / "checkpoints" / f"tokens-{args.source}").resolve()
    name = f"token_value_{args.source}.json"
    args.out = args.out or ROOT / "benchmarks" / "results" / name
    run = Run(SEED, args)
    stages = {
        "trees": run.trees,
        "answers": run.answers,
        "value": lambda: run.critic("value", "train.optimizer.epochs=3"),
        "head": lambda: run.critic("head", "train.critic.head=true"),
        "test": run.test,
        "page": run.page,
    }
    for stage in args.stage:
        stages[stage]()


if __name__ == "__main__":
    main()
