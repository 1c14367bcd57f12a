"""Export: Parquet files that `datasets` loads, with every row of the readers."""

from __future__ import annotations

import json
import runpy
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import datasets
import pytest
from faults import a_job
from pyarrow import parquet
from verifiers.v1.episode import WireEpisode

from alphazero_llm_trainer.cli.main import main
from alphazero_llm_trainer.mcts.extract import (
    OUTSIDE,
    Trajectory,
    outcomes,
    step_preferences,
    trajectories,
    value_targets,
)
from alphazero_llm_trainer.mcts.journal import journal_of, read
from alphazero_llm_trainer.mcts.tree import ROOT, Rollout, Tree
from alphazero_llm_trainer.policy.folders import PACKAGED
from alphazero_llm_trainer.scale.sample import run_sample
from alphazero_llm_trainer.training import export as export_module
from alphazero_llm_trainer.training.export import COLUMNS, COMMON, SUFFIXES, export
from alphazero_llm_trainer.types import RewardParts, Step


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with 12 trees, and a half-written line after them."""
    folder = tmp_path_factory.mktemp("data")
    run_sample(a_job(12), folder)
    with (folder / "journal.jsonl").open("ab") as file:
        file.write(b'{"key": "half')
    return folder


def records(data: Path) -> Iterator[dict[str, Any]]:
    return read(journal_of(data))


def loaded(path: Path, tmp_path: Path) -> list[dict[str, Any]]:
    return list(
        datasets.load_dataset("parquet", data_files=str(path), cache_dir=str(tmp_path / "cache"))[
            "train"
        ]
    )


TARGETS = {
    "value": value_targets,
    "preferences": lambda tree: step_preferences(tree, 0.25, 1),
    "sft": lambda tree: [one for one in trajectories(tree) if one.right],
}


def expected(data: Path, kind: str) -> Iterator[dict[str, Any]]:
    """The rows as the readers of `mcts.extract` give them."""
    renamed = (
        {
            "token_ids": "completion_ids",
            "text": "completion",
            "samples": "count",
            "source": "author",
        }
        if kind == "sft"
        else {}
    )
    for record in records(data):
        for row in TARGETS[kind](Tree.from_dict(record["tree"])):
            yield {
                renamed.get(field.name, field.name): getattr(row, field.name)
                for field in fields(row)
            }


def listed(value: Any) -> Any:
    return [listed(one) for one in value] if isinstance(value, tuple | list) else value


@pytest.mark.parametrize("kind", COLUMNS)
def test_what_is_exported_is_loaded_again(
    data: Path, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_module, "BATCH_ROWS", 5)
    monkeypatch.setattr(
        export_module, "step_preferences", TARGETS["preferences"]
    )  # two samples are few
    out = tmp_path / "new" / f"{kind}.parquet"
    count = export(data, kind, out)
    rows, wanted = loaded(out, tmp_path), list(expected(data, kind))
    assert count == len(rows) == len(wanted) > 0
    by_question = {record["key"]: record for record in records(data)}
    for row, want in zip(rows, wanted, strict=True):
        assert list(row) == list(COMMON | COLUMNS[kind])
        for name, value in ((name, value) for name, value in want.items() if name in row):
            real = name in ("target", "margin", "probabilities", "improved")
            assert row[name] == (pytest.approx(value, abs=1e-6) if real else listed(value))
        assert sum(row.get("probabilities", [1.0])) == pytest.approx(1.0, abs=1e-5)
        assert sum(row.get("improved", [1.0])) == pytest.approx(1.0, abs=1e-5)
        record = by_question[row["question_id"]]
        assert (
            row["prompt_ids"] == record["prompt_ids"]
            and row["question"] == record["problem"]["question"]
        )
        assert row["policy_version"] == 0 and row["source"] == "embedded"
    assert list(tmp_path.glob("**/*.part")) == []


def test_a_student_learns_from_the_right_answers_of_another(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table, out = tmp_path / "right.parquet", tmp_path / "student"
    export(data, "sft", table)
    rows = loaded(table, tmp_path)
    assert all(row["completion"].split("####")[1].strip() == row["answer"] for row in rows)
    words = [
        "sft",
        "--model",
        str(PACKAGED),
        "--source",
        str(table),
        "--set",
        "train.sft_steps=2",
        "--eval-size",
        "1",
    ]
    assert main([*words, "--set", "train.validation_size=0", "--out", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] > 0 and (out / "model.safetensors").is_file()


def opened(path: Path) -> list[WireEpisode]:
    """A file of rollouts, read by verifiers' own classes."""
    return [WireEpisode.model_validate(json.loads(line)) for line in path.read_text().splitlines()]


def credit_of(tree: Tree, found: list[Trajectory], credit: str) -> list[list[float]]:
    """Each response's advantages `[T]`, by hand."""
    if credit == "group":
        rewards = [one.outcome for one in found for _ in range(one.samples)]
        mean = sum(rewards) / len(rewards)
        std = (sum((r - mean) ** 2 for r in rewards) / len(rewards)) ** 0.5
        clipped = [
            one.samples * max(-3.0, min(3.0, (one.outcome - mean) / (std + 0.05))) for one in found
        ]
        return [[a] * len(one.token_ids) for a, one in zip(clipped, found, strict=True)]
    counts, sums = outcomes(tree)
    advantages = []
    for one in found:
        wanted, parent = [], 0
        for node, length in zip(one.nodes, one.lengths, strict=True):
            after = one.outcome if node == OUTSIDE else sums[node] / counts[node]
            wanted += [after - sums[parent] / counts[parent]] * length
            parent = node
        advantages.append(wanted)
    return advantages


@pytest.mark.parametrize("credit", ["group", "step"])
def test_a_tree_is_one_trace_of_verifiers_whose_branches_are_its_responses(
    data: Path, tmp_path: Path, credit: str
) -> None:
    out = tmp_path / "rollouts.jsonl"
    count = export(data, "rollouts", out, credit=credit)
    trees = {record["key"]: record for record in records(data)}
    shared = signals = 0
    for episode in opened(out):
        [trace] = episode.traces
        record = trees[trace.id]
        tree, prompt = Tree.from_dict(record["tree"]), record["prompt_ids"]
        found = trajectories(tree)
        assert (
            trace.task.data.id == record["problem"]["id"]
            and not trace.has_error
            and trace.agent.trainable
        )
        assert trace.metrics == {
            "responses": len(found),
            "samples": sum(one.samples for one in found),
        }
        assert trace.reward == pytest.approx(
            sum(one.samples * one.outcome for one in found) / sum(one.samples for one in found)
        )
        assert len(trace.branches) == len(found)
        by_ids = {tuple(branch.token_ids): branch for branch in trace.branches}
        for one, said in zip(found, trace.info["responses"], strict=True):
            branch = by_ids[(*prompt, *one.token_ids)]
            assert (
                branch.sampled_mask == [False] * len(prompt) + [True] * len(one.token_ids)
                and branch.trainable
            )
            assert branch.logprobs == [0.0] * len(prompt) + list(one.logprobs)  # to the last bit
            assert "".join(node.message.content or "" for node in branch.nodes[1:]) == one.text
            assert (said["outcome"], said["samples"]) == (one.outcome, one.samples)
            assert trace.nodes[said["leaf"]].message == branch.nodes[-1].message
        # What a node's tokens are credited with is what all responses through it give them, once.
        whole: dict[int, list[float]] = {}
        for one, advantages in zip(found, credit_of(tree, found, credit), strict=True):
            start = 0
            for node, length in zip(one.nodes, one.lengths, strict=True):
                if node != OUTSIDE:
                    given = advantages[start : start + length]
                    shared += node in whole and length > 0
                    whole[node] = [
                        a + b for a, b in zip(whole.get(node, [0.0] * length), given, strict=True)
                    ]
                start += length
        for node, place in zip(trace.nodes, trace.info["tree_nodes"], strict=True):
            if place:
                assert node.advantages == pytest.approx(whole[place], abs=1e-9)
                signals += any(node.advantages)
    assert count == len(trees) and signals > 0 and shared > 0


def test_rollouts_outside_the_tree_and_a_response_that_others_go_on_from_are_branches_too() -> None:
    tree = Tree()
    first = tree.attach(ROOT, Step((1, 2), (-0.5, -0.25), "a"))
    second = tree.attach(first, Step((3,), (-1.0,), "b"))
    tree.finish(second, "answer", RewardParts(total=1.0, hre=1.0))
    tree.samples[second] = 2
    for node, ids, text, grade in (
        (first, (7, 8), "cd", 0.0),
        (first, (9,), "e", 1.0),
        (ROOT, (5,), "f", 0.0),
        (first, (), "", 0.0),
    ):
        tree.rollouts.append(
            Rollout(node, ids, (-0.5,) * len(ids), text, "ended", grade, grade, None, 1, 1)
        )
    for node in (ROOT, first, second):
        tree.backup(node, 1.0)
    problem = {"id": "q", "question": "?", "source": "x"}
    record = {
        "key": "q",
        "problem": problem,
        "prompt_ids": [0],
        "policy_version": 0,
        "tree": tree.to_dict(),
    }
    [row] = export_module.episodes([(record, tree)], "group")
    [trace] = WireEpisode.model_validate(row).traces
    found = trajectories(tree)
    assert len(found) == 5 and {one.token_ids for one in found} == {
        (1, 2, 3),
        (1, 2, 7, 8),
        (1, 2, 9),
        (5,),
        (1, 2),
    }
    assert sorted(tuple(branch.token_ids[1:]) for branch in trace.branches) == sorted(
        one.token_ids for one in found
    )
    assert [
        "".join(node.message.content or "" for node in branch.nodes[1:])
        for branch in trace.branches
    ] == [
        one.text
        for one in sorted(found, key=lambda one: trace.info["responses"][found.index(one)]["leaf"])
    ]
    assert trace.info["tree_nodes"][:3] == [ROOT, first, second] and set(
        trace.info["tree_nodes"][3:]
    ) == {None}
    given = credit_of(tree, found, "group")
    total = sum(
        advantages[0] for one, advantages in zip(found, given, strict=True) if one.token_ids[0] == 1
    )
    assert trace.nodes[1].advantages == pytest.approx([total] * 2)


def test_the_example_gives_a_trainer_the_credit_that_export_writes(
    data: Path, tmp_path: Path
) -> None:
    example = runpy.run_path(str(Path(__file__).parents[1] / "examples" / "tree_credit.py"))
    plain, stepwise = tmp_path / "group.jsonl", tmp_path / "step.jsonl"
    export(data, "rollouts", plain)
    export(data, "rollouts", stepwise, credit="step")
    for episode, wanted in zip(opened(plain), opened(stepwise), strict=True):
        [trace], [other] = episode.traces, wanted.traces
        example["assign_advantages"](trace)
        through = [0] * len(
            trace.nodes
        )  # responses through a node: in the file each of them counts
        for response in trace.info["responses"]:
            at = response["leaf"]
            while at is not None:
                through[at], at = through[at] + 1, trace.nodes[at].parent
        for node, same, count in zip(trace.nodes[1:], other.nodes[1:], through[1:], strict=True):
            assert same.advantages == pytest.approx(
                [count * a for a in node.advantages or []], abs=1e-9
            )


def test_rollouts_leave_teachers_out(data: Path, tmp_path: Path) -> None:
    """As in training by default: their tokens are off-policy, and they don't enter the group's
    mean.
    """
    record = next(
        record for record in records(data) if len(trajectories(Tree.from_dict(record["tree"]))) > 2
    )
    written = trajectories(Tree.from_dict(record["tree"]))[0]
    record["tree"]["source"][written.nodes[-1]] = "teacher:x"
    (tmp_path / "journal.jsonl").write_text(json.dumps(record) + "\n")
    out = tmp_path / "rollouts.jsonl"
    own = [one for one in trajectories(Tree.from_dict(record["tree"])) if one.student]
    assert export(tmp_path, "rollouts", out) == 1
    [trace] = opened(out)[0].traces
    replies = {tuple(branch.token_ids[len(record["prompt_ids"]) :]) for branch in trace.branches}
    assert replies == {one.token_ids for one in own} and written.token_ids not in replies


def test_the_command_writes_every_kind(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(["export", "--data", str(data), "--kind", "all", "--out", str(tmp_path / "all")]) == 0
    )
    said = capsys.readouterr().out
    kinds = {path.stem for path in (tmp_path / "all").iterdir()}
    assert kinds == set(SUFFIXES) and said.count("rows in") == len(SUFFIXES)
    every = tmp_path / "every.parquet"
    assert (
        main(
            ["export", "--data", str(data), "--kind", "value", "--every-token", "--out", str(every)]
        )
        == 0
    )
    nodes = parquet.ParquetFile(tmp_path / "all" / "value.parquet").metadata.num_rows
    assert parquet.ParquetFile(every).metadata.num_rows > nodes


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
    assert (
        str(journal) in said and "test split" in said and "--any-split" in said and "\n" not in said
    )
    assert list(tmp_path.iterdir()) == [journal]
    assert main([*command, "--any-split"]) == 0 and out.exists()


def test_mistakes_are_sentences(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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
        (["--data", str(data), "--kind", "sft", "--out", str(old)], "--out"),
        (["--data", str(old), "--kind", "rollouts", "--out", out], "prompt_ids"),
    ):
        assert main(["export", *argv]) == 2
        said = capsys.readouterr().err.strip()
        assert said.startswith("error: ") and words in said and "\n" not in said, said
    assert not Path(out).exists()
