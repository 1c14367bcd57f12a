"""Export: Parquet files that `datasets` loads, with every row of the readers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import datasets
import pytest
from faults import a_job
from pyarrow import parquet
from verifiers.v1.episode import WireEpisode

from alphazero_llm_trainer.cli import export as export_command
from alphazero_llm_trainer.cli.export import COMMON, KINDS, OWN, Readers, columns, export, records
from alphazero_llm_trainer.cli.main import main
from alphazero_llm_trainer.mcts.extract import (
    OUTSIDE,
    outcomes,
    policy_targets,
    step_preferences,
    trajectories,
    value_targets,
)
from alphazero_llm_trainer.mcts.tree import Tree
from alphazero_llm_trainer.scale.sample import run_sample

TABLES = list(OWN)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with 12 trees, and a half-written line after them."""
    folder = tmp_path_factory.mktemp("data")
    run_sample(a_job(12), folder)
    with (folder / "journal.jsonl").open("ab") as file:
        file.write(b'{"key": "half')
    return folder


def loaded(path: Path, tmp_path: Path) -> list[dict[str, Any]]:
    return list(datasets.load_dataset("parquet", data_files=str(path), cache_dir=str(tmp_path / "cache"))["train"])


TARGETS = {
    "value": value_targets,
    "preferences": lambda tree: step_preferences(tree, 0.25, 1),
    "sft": lambda tree: [one for one in trajectories(tree) if one.right],
    "policy": policy_targets,
}


def expected(data: Path, kind: str) -> Iterator[dict[str, Any]]:
    """The rows as the readers of `mcts.extract` give them."""
    renamed = (
        {"token_ids": "completion_ids", "text": "completion", "samples": "count", "source": "author"}
        if kind == "sft"
        else {}
    )
    for record in records(data):
        for row in TARGETS[kind](Tree.from_dict(record["tree"])):
            yield {renamed.get(field.name, field.name): getattr(row, field.name) for field in fields(row)}


def listed(value: Any) -> Any:
    return [listed(one) for one in value] if isinstance(value, tuple | list) else value


@pytest.mark.parametrize("kind", TABLES)
def test_what_is_exported_is_loaded_again(
    data: Path, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_command, "BATCH_ROWS", 5)
    out = tmp_path / "new" / f"{kind}.parquet"
    count = export(data, kind, out, Readers(least=1))
    rows, wanted = loaded(out, tmp_path), list(expected(data, kind))
    assert count == len(rows) == len(wanted) > 0
    by_question = {record["key"]: record for record in records(data)}
    for row, want in zip(rows, wanted, strict=True):
        assert list(row) == list(columns(kind))
        for name, value in ((name, value) for name, value in want.items() if name in row):
            real = name in ("target", "margin", "probabilities", "improved")
            assert row[name] == (pytest.approx(value, abs=1e-6) if real else listed(value))
        assert sum(row.get("probabilities", [1.0])) == pytest.approx(1.0, abs=1e-5)
        assert sum(row.get("improved", [1.0])) == pytest.approx(1.0, abs=1e-5)
        record = by_question[row["question_id"]]
        assert row["prompt_ids"] == record["prompt_ids"] and row["question"] == record["problem"]["question"]
        assert row["policy_version"] == 0 and row["source"] == "embedded"
    file = parquet.ParquetFile(out)
    assert file.num_row_groups == -(-count // 5)  # written as it was read
    assert list(tmp_path.glob("**/*.part")) == []


def opened(path: Path) -> list[WireEpisode]:
    """A file of rollouts, read by verifiers' own classes."""
    return [WireEpisode.model_validate(json.loads(line)) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("credit", ["group", "step"])
def test_rollouts_are_episodes_of_verifiers(data: Path, tmp_path: Path, credit: str) -> None:
    out = tmp_path / "rollouts.jsonl"
    count = export(data, "rollouts", out, Readers(credit=credit))
    found = iter(opened(out))
    signals = 0
    for record in records(data):
        tree, group = Tree.from_dict(record["tree"]), []
        for one in trajectories(tree):
            episode = next(found)
            [trace] = episode.traces
            [branch] = trace.branches
            prompt, length = record["prompt_ids"], len(one.token_ids)
            assert branch.token_ids == [*prompt, *one.token_ids] and branch.trainable and trace.agent.trainable
            assert branch.sampled_mask == [False] * len(prompt) + [True] * length
            assert branch.logprobs == [0.0] * len(prompt) + list(one.logprobs)  # to the last bit
            assert branch.advantages is not None and branch.advantages[: len(prompt)] == [0.0] * len(prompt)
            assert trace.last_reply == one.text.strip() and trace.num_output_tokens == length
            assert trace.task.data.id == record["problem"]["id"] and not trace.has_error
            assert trace.reward == one.outcome and trace.metrics["samples"] == one.samples
            assert trace.is_truncated == (one.verdict in ("length", "depth"))
            assert episode.group is not None and episode.group.id == record["key"]
            nodes = [OUTSIDE if node is None else node for node in trace.info["tree_nodes"]]
            assert tuple(nodes) == one.nodes and trace.info["tree_lengths"] == list(one.lengths)
            group.append((one, branch.advantages[len(prompt) :]))
        signals += check_credit(tree, group, credit)
        assert len({one.outcome for one, _ in group}) > 1 or credit == "step" or not any(any(a) for _, a in group)
    assert next(found, None) is None and count > len(list(records(data))) and signals > 0


def check_credit(tree: Tree, group: list[tuple[Any, list[float]]], credit: str) -> bool:
    """Advantages by hand; whether there is any."""
    for one, advantages in group:
        if credit == "group":
            rewards = [other.outcome for other, _ in group for _ in range(other.samples)]
            mean = sum(rewards) / len(rewards)
            std = (sum((r - mean) ** 2 for r in rewards) / len(rewards)) ** 0.5
            wanted = max(-3.0, min(3.0, one.samples * (one.outcome - mean) / (std + 0.05)))
            assert advantages == pytest.approx([wanted] * len(one.token_ids), abs=1e-9)
            continue
        counts, sums = outcomes(tree)
        wanted, parent = [], 0
        for node, length in zip(one.nodes, one.lengths, strict=True):
            after = one.outcome if node == OUTSIDE else sums[node] / counts[node]
            wanted += [after - sums[parent] / counts[parent]] * length
            parent = node
        assert advantages == pytest.approx(wanted, abs=1e-9)
    return any(any(advantages) for _, advantages in group)


def test_rollouts_leave_teachers_out(data: Path, tmp_path: Path) -> None:
    """As in training by default: their tokens are off-policy, and they don't enter the group's mean."""
    record = next(record for record in records(data) if len(trajectories(Tree.from_dict(record["tree"]))) > 2)
    written = trajectories(Tree.from_dict(record["tree"]))[0]
    record["tree"]["source"][written.nodes[-1]] = "teacher:x"
    (tmp_path / "journal.jsonl").write_text(json.dumps(record) + "\n")
    out = tmp_path / "rollouts.jsonl"
    own = [one for one in trajectories(Tree.from_dict(record["tree"])) if one.student]
    assert export(tmp_path, "rollouts", out, Readers()) == len(own) > 0
    replies = [episode.traces[0].branches[0].token_ids[len(record["prompt_ids"]) :] for episode in opened(out)]
    assert replies == [list(one.token_ids) for one in own] and list(written.token_ids) not in replies


def test_the_command_writes_every_kind_and_its_help_every_column(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", "--data", str(data), "--kind", "all", "--out", str(tmp_path / "all")]) == 0
    said = capsys.readouterr().out
    assert {path.stem for path in (tmp_path / "all").iterdir()} == set(KINDS) and said.count("rows in") == len(KINDS)
    every = tmp_path / "every.parquet"
    assert main(["export", "--data", str(data), "--kind", "value", "--every-token", "--out", str(every)]) == 0
    nodes = parquet.ParquetFile(tmp_path / "all" / "value.parquet").metadata.num_rows
    assert parquet.ParquetFile(every).metadata.num_rows > nodes
    with pytest.raises(SystemExit):
        main(["export", "--help"])
    text = capsys.readouterr().out
    assert all(name in text for names in (COMMON, *OWN.values()) for name in names)


def test_trees_of_other_splits_are_no_training_set(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal, out = tmp_path / "journal.jsonl", tmp_path / "x.parquet"
    command = ["export", "--data", str(tmp_path), "--kind", "sft", "--out", str(out)]
    trees = list(records(data))
    for tree in trees[:-1]:
        del tree["split"]  # a training run's journal says nothing
    journal.write_text("".join(json.dumps(tree) + "\n" for tree in trees))
    assert main(command) == 0
    trees[5]["split"] = "test"
    journal.write_text("".join(json.dumps(tree) + "\n" for tree in trees))
    out.unlink()
    capsys.readouterr()
    assert main(command) == 2
    said = capsys.readouterr().err.strip()
    assert str(journal) in said and "test split" in said and "--any-split" in said and "\n" not in said
    assert list(tmp_path.iterdir()) == [journal]
    assert main([*command, "--any-split"]) == 0 and out.exists()


def test_mistakes_are_sentences(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, empty = tmp_path / "old", tmp_path / "empty"
    old.mkdir()
    empty.mkdir()
    record = next(records(data))
    del record["prompt_ids"]
    (old / "journal.jsonl").write_text(json.dumps(record) + "\n")
    out = str(tmp_path / "x.parquet")
    for argv, words in (
        (["--data", str(old), "--kind", "sft", "--out", out], "prompt_ids"),
        (["--data", str(empty), "--kind", "sft", "--out", out], "journal.jsonl"),
        (["--data", str(tmp_path / "no"), "--kind", "sft", "--out", out], "--data"),
        (["--data", str(data), "--kind", "preferences", "--margin", "0", "--out", out], "--margin"),
        (["--data", str(data), "--kind", "preferences", "--least", "0", "--out", out], "--least"),
        (["--data", str(data), "--kind", "sft", "--out", str(old)], "--out"),
        (["--data", str(old), "--kind", "rollouts", "--out", out], "prompt_ids"),
    ):
        assert main(["export", *argv]) == 2
        said = capsys.readouterr().err.strip()
        assert said.startswith("error: ") and words in said and "\n" not in said, said
    assert not Path(out).exists()
