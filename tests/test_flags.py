"""Every flag of every command changes something or is refused."""

import argparse
import re
from pathlib import Path

import pytest

from alphazero_llm_trainer.cli import base
from alphazero_llm_trainer.cli.base import flag_layers
from alphazero_llm_trainer.cli.main import build_parser
from alphazero_llm_trainer.config.load import flat, load_config, load_training

CLI = Path(base.__file__).parent
# Of flags that set a key: a value that isn't the shipped one, where neither a number nor a word
# will do.
VALUES = {
    "search.mode": "token",
    "problems.grade": "words",
    "train.track": "tensorboard",
    "engine.openai.base_url": "http://localhost:11434/v1",
}
NEEDED = {"sample": ["--out", "x"], "fetch": ["small"], "merge": "--adapter x --out x".split()}
# Read by argparse, or by what all commands share.
SHARED = {"help", "quiet", "verbose", "config", "overrides", "version"}


def flags():
    parser = build_parser()
    [commands] = [one for one in parser._actions if isinstance(one, argparse._SubParsersAction)]
    for name, command in commands.choices.items():
        for action in command._actions:
            if action.option_strings:
                yield name, command, action


FLAGS = [pytest.param(*one, id=f"{one[0]} {one[2].option_strings[-1]}") for one in flags()]


@pytest.mark.parametrize("name, command, action", FLAGS)
def test_a_flag_sets_its_key_or_is_read_by_its_command(name, command, action):
    key = command.keys.get(action.dest)
    if key is None:
        files = (CLI / f"{'critics' if name in ('value', 'prm') else name}.py", CLI / "base.py")
        text = "".join(file.read_text() for file in files)
        named = rf"args\.{action.dest}\b|\bgetattr\(args, name"
        assert action.dest in SHARED or re.search(named, text), (
            f"{name} never reads {action.option_strings[0]}"
        )
        return
    value = VALUES.get(key, "30" if action.type is int else "word")
    words = [action.option_strings[0]] + ([value] if action.nargs != 0 else [])
    needed = NEEDED.get(name, [])
    layers = flag_layers(build_parser().parse_args([name, *needed, *words]))
    changed = dict(flat(load_config(overrides=layers).model_dump()))
    shipped = dict(flat(load_config().model_dump()))
    assert changed[key] != shipped[key]


CRITIC = ["--prm", "CRITIC"]
EXPORT = ["export", "--data", ".", "--out", "OUT.parquet", "--kind", "sft"]
REFUSED = {
    "a network beside another verifier": (
        ["eval", *CRITIC, "--verifier", "calculator"],
        ["--prm", "'calculator'"],
    ),
    "a value that guides no method": (
        ["eval", "--value", "CRITIC", "--verifier", "none", "--methods", "best-of-n"],
        ["--value", "'none'", "mcts"],
    ),
    "tokens under a verifier": (
        ["eval", "--set", "search.mode=token"],
        ["search.mode is 'token'", "--verifier calculator", "--verifier none"],
    ),
    "no rollouts under a verifier": (
        ["serve", "--set", "search.rollout=none", "--port", "0"],
        ["search.rollout is 'none'", "--verifier none"],
    ),
    "simulations under a verifier": (
        ["eval", "--set", "search.simulations=20"],
        ["search.simulations is 20", "--verifier calculator", "budget is spent"],
    ),
    "samples under a verifier": (
        ["serve", "--set", "search.samples=8", "--port", "0"],
        ["search.samples is 8", "--verifier calculator"],
    ),
    "a guide of a server that judges": (
        ["serve", "--set", "search.value=CRITIC", "--port", "0"],
        ["search.value", "--verifier none", "--value"],
    ),
    "a search's budget beside an evaluation's": (
        ["eval", "--set", "search.budget_tokens=500"],
        ["search.budget_tokens is 500", "--budget-tokens"],
    ),
    "a search's budget beside a server's": (
        ["serve", "--set", "search.budget_tokens=500", "--port", "0"],
        ["search.budget_tokens is 500", "serve.budget_tokens"],
    ),
    "a weight of no rollouts": (
        ["search", "--value", "CRITIC", "--set", "search.rollout_weight=0.5"],
        ["search.rollout_weight is 0.5", "search.rollout=sample"],
    ),
    "samples of tokens": (
        ["search", "--mode", "token", "--set", "search.samples=8"],
        ["search.samples is 8", "search.mode is token"],
    ),
    "top-k of steps": (
        ["train", "--set", "search.top_k=50"],
        ["search.top_k is 50", "search.mode is step"],
    ),
    "the width of another beam": (
        ["eval", "--methods", "beam", "--set", "search.beam=8"],
        ["search.beam is 8", "search.rollout=beam"],
    ),
    "candidates of another rule": (
        ["search", "--set", "search.candidates=4"],
        ["search.candidates is 4", "search.select=gumbel"],
    ),
    "a constant of restarts": (
        ["train", "--set", "search.select=restart", "--set", "search.exploration=1"],
        ["search.exploration is 1", "search.select=restart"],
    ),
    "a context of a server's": (
        ["search", "--base-url", "http://x/v1", "--model", "m", "--set", "engine.max_context=99"],
        ["engine.max_context is 99", "the server's"],
    ),
    "kernels of another engine": (
        ["train", "--set", "engine.backend=vllm", "--set", "engine.dtype=float32"],
        ["engine.dtype is 'float32'", "engine.backend is vllm"],
    ),
    "a network that isn't there": (["eval", "--prm", "nowhere"], ["--prm nowhere is no folder"]),
    "two networks": (["eval", *CRITIC, "--value", "CRITIC"], ["two networks"]),
    "a network that no method asks": (
        ["eval", *CRITIC, "--methods", "greedy"],
        ["'prm'", "greedy", "asks a verifier"],
    ),
    "a verifier that no method asks": (
        ["eval", "--verifier", "log-probability", "--methods", "majority", "greedy"],
        ["'log-probability'", "asks a verifier"],
    ),
    "columns of generated problems": (
        ["eval", "--question-column", "q"],
        ["problems.question_column", "embedded"],
    ),
    "a rule of generated problems": (["train", "--grade", "words"], ["problems.grade", "embedded"]),
    "a rule of generated problems, sft": (
        ["sft", "--grade", "words", "--out", "OUT"],
        ["problems.grade", "embedded"],
    ),
    "a solution of generated problems": (
        ["sample", "--solution-column", "s", "--out", "OUT"],
        ["problems.solution_column", "embedded"],
    ),
    "a folder of rows of generated problems": (
        ["train", "--set", "problems.path=OUT"],
        ["problems.path", "embedded"],
    ),
    "a guide of an evaluation": (
        ["eval", "--set", "search.value=CRITIC"],
        ["search.value", "--value"],
    ),
    "a number beside a question": (["search", "Why?", "--index", "3"], ["--index", "question"]),
    "a cluster of one": (
        ["sample", "--address", "auto", "--out", "OUT"],
        ["--address", "--workers 2"],
    ),
    "tokens of another kind": ([*EXPORT, "--every-token"], ["--every-token is of --kind value"]),
    "questions beside data": (["prm", "--num", "20", "--data", "CRITIC"], ["--num", "--data"]),
    "samples of verified chains": (
        ["train", "--set", "search.samples=8"],
        ["search.samples is 8", "train.groups=verified", "search.simulations"],
    ),
    "a tree's size of chains": (
        ["train", "--use-ppo", "--set", "search.simulations=20"],
        ["search.simulations is 20", "train.groups=chain", "search.samples"],
    ),
    "an end of trees that end otherwise": (
        ["sample", "--set", "search.enough_correct=2", "--out", "OUT"],
        ["search.enough_correct is 2", "search.mode=token"],
    ),
    "an end of trees without a rule": (
        ["train", "--use-grpo", "--set", "search.enough_finished=1"],
        ["search.enough_finished is 1", "train.groups=verified"],
    ),
    "more searches than the budget": (
        ["train", "--set", "search.budget_tokens=99", "--set", "train.requeue_limit=3"],
        ["train.requeue_limit is 3", "search.budget_tokens"],
    ),
    "updates of another method": (
        ["train", "--use-grpo", "--set", "train.updates_per_round=5"],
        ["train.updates_per_round is 5", "grpo", "--use-rft"],
    ),
    "rows of another method": (
        ["train", "--set", "train.rows_per_round=5"],
        ["train.rows_per_round is 5", "expert_iteration", "--use-ppo"],
    ),
    "a weight of another credit": (
        ["train", "--use-grpo", "--set", "train.process_weight=1"],
        ["train.process_weight is 1", "train.credit=process"],
    ),
    "a weight of what isn't measured": (
        ["train", "--set", "rewards.pre_weight=0.8"],
        ["rewards.pre_weight is 0.8", "no perplexity", "--use-grpo"],
    ),
    "demonstrations that aren't replayed": (
        ["train", "--source", "ROWS", "--set", "train.demonstrations=9"],
        ["train.demonstrations is 9", "train.demonstration_share"],
    ),
    "a student of train's": (
        ["sft", "--set", "train.student=CRITIC", "--out", "OUT"],
        ["train.student", "--model"],
    ),
    "what sft doesn't upload": (
        ["sft", "--set", "train.push_to_hub=me/mine", "--out", "OUT"],
        ["train.push_to_hub", "`sft`"],
    ),
    "epochs beside updates": (
        ["sft", "--set", "train.optimizer.epochs=2", "--out", "OUT"],
        ["train.optimizer.epochs is 2", "train.sft_steps is 4,000"],
    ),
    "a credit of another method": (
        ["train", "--set", "train.credit=step"],
        ["train.credit", "--use-grpo"],
    ),
    "a reward of another method": (
        ["train", "--use-rft", "--set", "train.reward=combined"],
        ["train.reward", "legacy"],
    ),
    "a penalty of another method": (
        ["train", "--set", "train.kl_coefficient=0.1"],
        ["kl_coefficient", "--use-ppo"],
    ),
    "a critic of another credit": (
        ["train", "--use-grpo", "--set", "train.prm=CRITIC"],
        ["train.prm", "process"],
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_would_change_nothing_is_refused(
    kind: str, tmp_path: Path, capsys: Any, monkeypatch: Any
) -> None:
    words, parts = REFUSED[kind]
    places = {"CRITIC": str(tmp_path), "OUT": str(tmp_path / "out"), "ROWS": "rows.jsonl"}
    lines = [f'{{"question": "{number} + 1?", "answer": "{number + 1}"}}' for number in range(60)]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    monkeypatch.chdir(tmp_path)
    assert main([places.get(word, word) for word in words]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("error: ") and all(part in error for part in parts), error


def test_the_size_of_a_search_that_there_is_none_of_is_refused(capsys: Any) -> None:
    assert run(["alphazero-llm-trainer", "--env.agent.harness.simulations", "3"]) == 2
    assert "add --env.agent.harness.search mcts" in capsys.readouterr().err


def test_a_folder_of_rows_of_generated_problems_is_refused(capsys: Any, tmp_path: Path) -> None:
    assert run(["alphazero-llm-trainer", "--env.taskset.path", str(tmp_path)]) == 2
    assert "problems.path" in capsys.readouterr().err


def test_keys_that_the_method_reads_are_taken() -> None:
    from alphazero_llm_trainer.training.methods.registry import METHODS
    from alphazero_llm_trainer.training.start import check_method

    values: dict[str, Any] = {
        "reward": "combined",
        "teacher_rows": True,
        "pack": "on",
        "critic_rounds": 1,
        "rows_per_round": 9,
        "updates_per_round": 9,
    }
    for method in METHODS.values():
        read = {name: values.get(name, 0.1) for name in method.reads}
        if "credit" in read:
            read["credit"] = method.credits[1]
        for name, value in read.items():
            asked = [f"train.method={method.name}", {"train": {name: value}}]
            check_method(load_training(overrides=asked))
