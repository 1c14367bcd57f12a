"""Every flag of every command changes something or is refused."""

import argparse
import re
from pathlib import Path

import pytest

from alphazero_llm_trainer.cli import base
from alphazero_llm_trainer.cli.base import flag_layers
from alphazero_llm_trainer.cli.main import build_parser
from alphazero_llm_trainer.config.load import load_config, load_training
from alphazero_llm_trainer.files import flatten_keys
from alphazero_llm_trainer.learning.methods.by_name import METHODS
from alphazero_llm_trainer.runs.export import SUFFIXES
from alphazero_llm_trainer.runs.start import check_method
from alphazero_llm_trainer.viewer.page import MOST_ROWS

CLI = Path(base.__file__).parent
# Of flags that set a key: a value that isn't the shipped one, where neither a number nor a word
# will do.
VALUES = {
    "search.mode": "token",
    "problems.grade": "words",
    "train.track": "tensorboard",
    "engine.openai.base_url": "http://localhost:11434/v1",
}
JUDGE = ["--judge-url", "http://localhost:8001/v1", "--judge-model", "judge"]
NEEDED = {"sample": ["--out", "x"], "fetch": ["small"], "merge": "--adapter x --out x".split()}
# Read by argparse, or by what all commands share.
SHIPPED = dict(flatten_keys(load_config().model_dump()))
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
    needed = [*NEEDED.get(name, []), *(JUDGE if key.startswith("rewards.judge.") else [])]
    layers = flag_layers(build_parser().parse_args([name, *needed, *words]))
    changed = dict(flatten_keys(load_config(overrides=layers).model_dump()))
    assert changed[key] != SHIPPED.get(key)


@pytest.mark.parametrize("before", [[], ["-q"], ["-v"]])
@pytest.mark.parametrize("after", [[], ["-q"], ["-v"]])
def test_quiet_and_verbose_are_what_is_said_before_or_after_a_command(before, after):
    args = build_parser().parse_args([*before, "report", "folder", *after])
    said = {*before, *after}
    assert ("quiet" in args, "verbose" in args) == ("-q" in said, "-v" in said)


def test_help_names_what_there_is():
    methods = {action.const for name, _, action in flags() if action.dest == "method"}
    assert methods == {name for name, method in METHODS.items() if method.flagged}
    [view] = {command for name, command, _ in flags() if name == "view"}
    assert f"{MOST_ROWS:,} at most" in view.epilog


def test_export_offers_every_kind():
    [kind] = {action for name, _, action in flags() if (name, action.dest) == ("export", "kind")}
    assert kind.choices == [*SUFFIXES, "all"]


def test_keys_that_the_method_reads_are_taken():
    values = {
        "reward": "combined",
        "teacher_rows": True,
        "pack": "on",
        "teacher": "embedded",
        "rows_per_round": 9,
        "updates_per_round": 9,
        "buffer_passes": 2,
    }
    for method in METHODS.values():
        read = {name: values.get(name, 0.1) for name in method.reads}
        if "credit" in read:
            read["credit"] = method.credits[1]
        for name, value in read.items():
            asked = [f"train.method={method.name}", {"train": {name: value}}]
            check_method(load_training(overrides=asked))
