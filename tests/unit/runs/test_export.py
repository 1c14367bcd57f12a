"""Export: Parquet files that `datasets` loads, with every row of the readers."""

import json
import runpy
from dataclasses import fields

import datasets
import pytest
from faults import a_job
from pyarrow import parquet
from tables import CHECKOUT, read_jsonl, write_jsonl
from verifiers.v1.episode import WireEpisode

from alphazero_llm_trainer.cli.main import main
from alphazero_llm_trainer.config.load import load_config
from alphazero_llm_trainer.mcts.extract import (
    OUTSIDE,
    outcomes,
    step_preferences,
    step_values,
    trajectories,
    value_targets,
)
from alphazero_llm_trainer.mcts.journal import journal_of, read
from alphazero_llm_trainer.mcts.tree import ROOT, Rollout, Tree
from alphazero_llm_trainer.runs import export as export_module
from alphazero_llm_trainer.runs.export import COLUMNS, COMMON, SUFFIXES, export
from alphazero_llm_trainer.runs.sample import run_sample
from alphazero_llm_trainer.types import RewardParts, Step


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A folder with 12 trees, and a half-written line after them."""
    folder = tmp_path_factory.mktemp("data")
    run_sample(a_job(12), folder)
    with (folder / "journal.jsonl").open("ab") as file:
        file.write(b'{"key": "half')
    return folder


def records(data):
    return read(journal_of(data))


def loaded(path, tmp_path):
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


def expected(data, kind):
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


def listed(value):
    return [listed(one) for one in value] if isinstance(value, tuple | list) else value


@pytest.mark.parametrize("kind", COLUMNS)
def test_what_is_exported_is_loaded_again(data, tmp_path, kind, monkeypatch):
    monkeypatch.setattr(export_module, "BATCH_ROWS", 5)
    # Two samples are few.
    monkeypatch.setattr(export_module, "step_preferences", TARGETS["preferences"])
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


def opened(path):
    """A file of rollouts, read by verifiers' own classes."""
    return [WireEpisode.model_validate(json.loads(line)) for line in path.read_text().splitlines()]


def through(trace, leaf):
    """The nodes of a trace from a leaf up to the prompt, which is left out."""
    nodes, at = [], leaf
    while at:
        nodes.append(at)
        at = trace.nodes[at].parent
    return nodes


def check_trace(trace, record, tree):
    """A trace's branches are the responses of the tree, and each node has the advantages of all
    responses through it.
    """
    responses, prompt = trajectories(tree), tuple(record["prompt_ids"])
    rewards = [r.outcome or 0.0 for r in responses for _ in range(r.samples)]
    mean = sum(rewards) / len(rewards)
    std = (sum((r - mean) ** 2 for r in rewards) / len(rewards)) ** 0.5
    assert trace.reward == pytest.approx(mean) and len(trace.branches) == len(responses)
    by_ids = {tuple(branch.token_ids): branch for branch in trace.branches}
    credit = [0.0] * len(trace.nodes)
    for response, said in zip(responses, trace.info["responses"], strict=True):
        branch, count = by_ids[(*prompt, *response.token_ids)], len(response.token_ids)
        # a list, or later an array
        assert list(branch.sampled_mask) == [False] * len(prompt) + [True] * count
        assert branch.trainable
        assert branch.logprobs == [0.0] * len(prompt) + list(response.logprobs)  # to the last bit
        assert "".join(node.message.content or "" for node in branch.nodes[1:]) == response.text
        assert (said["outcome"], said["samples"]) == (response.outcome, response.samples)
        advantage = max(-3.0, min(3.0, (response.outcome - mean) / (std + 0.05)))
        for at in through(trace, said["leaf"]):
            credit[at] += response.samples * advantage
    for node, total in zip(trace.nodes[1:], credit[1:], strict=True):
        assert node.advantages == pytest.approx([total] * len(node.token_ids), abs=1e-9)


def test_a_tree_is_one_trace_of_verifiers(data, tmp_path):
    out = tmp_path / "rollouts.jsonl"
    trees = {record["key"]: record for record in records(data)}
    assert export(data, "rollouts", out) == len(trees)
    signals = 0
    for episode in opened(out):
        [trace] = episode.traces
        record = trees[trace.id]
        assert trace.task.data.id == record["problem"]["id"] and trace.agent.trainable
        check_trace(trace, record, Tree.from_dict(record["tree"]))
        signals += any(any(node.advantages or ()) for node in trace.nodes)
    assert signals > 0


def a_run(data, folder, credit):
    """The folder of a GRPO run with this credit, whose two rounds had the trees of `data`."""
    overrides = ["train.method=grpo", f"train.credit={credit}", "train.reward=hre"]
    config = load_config(overrides=["student=embedded", "train.prm=prm", *overrides])
    (folder / "run.json").write_text(json.dumps({"config": config.model_dump(mode="json")}))
    lines = [{**record, "policy_version": i // 6} for i, record in enumerate(records(data))]
    write_jsonl(folder / "journal.jsonl", lines)
    return lines


def test_rollouts_have_the_credit_of_steps_where_their_run_has_it(data, tmp_path):
    lines, out, signals = a_run(data, tmp_path, "step"), tmp_path / "rollouts.jsonl", 0
    assert export(tmp_path, "rollouts", out) == len(lines)
    traces = {episode.traces[0].id: episode.traces[0] for episode in opened(out)}
    for version in (0, 1):
        steps = {}  # of each tree whose responses differ: what each step of each response gained
        for record in lines:
            tree = Tree.from_dict(record["tree"])
            counts, sums = outcomes(tree, correctness=True)
            responses = trajectories(tree)
            if record["policy_version"] == version and len({r.hre for r in responses}) > 1:
                values = [step_values(r, r.hre, counts, sums) for r in responses]
                steps[record["key"]] = [[q - v for q, v in of_one] for of_one in values]
        every = [gain for tree in steps.values() for response in tree for gain in response]
        scale = (sum(gain**2 for gain in every) / len(every)) ** 0.5
        for key, gains in steps.items():
            wanted = dict.fromkeys(range(len(traces[key].nodes)), 0.0)
            for said, response in zip(traces[key].info["responses"], gains, strict=True):
                nodes = through(traces[key], said["leaf"])[::-1]
                for at, gain in zip(nodes, response, strict=False):
                    wanted[at] += max(-3.0, min(3.0, gain / scale))
            for at, node in enumerate(traces[key].nodes[1:], 1):
                assert node.advantages == pytest.approx([wanted[at]] * len(node.token_ids))
                signals += bool(node.advantages and wanted[at])
    assert signals > 0


def test_credit_that_a_journal_does_not_have_is_refused(data, tmp_path, capsys):
    a_run(data, tmp_path, "process")
    out = tmp_path / "rollouts.jsonl"
    assert main(f"export {tmp_path} --kind rollouts --out {out}".split()) == 2
    assert "train.credit" in capsys.readouterr().err and not out.exists()
    assert main(f"export {tmp_path} --kind sft --out {out}".split()) == 0


def test_rollouts_outside_the_tree_and_a_response_that_others_go_on_from_are_branches_too(tmp_path):
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
    record = {"key": "q", "problem": problem, "prompt_ids": [0], "policy_version": 0}
    [row] = export_module.episodes([(record, tree)], export_module.earned_in(tmp_path))
    [trace] = WireEpisode.model_validate(row).traces
    check_trace(trace, record, tree)
    replies = {tuple(branch.token_ids[1:]) for branch in trace.branches}
    assert replies == {(1, 2, 3), (1, 2, 7, 8), (1, 2, 9), (5,), (1, 2)}


def test_the_example_gives_a_trainer_the_credit_of_steps(data, tmp_path):
    example = runpy.run_path(str(CHECKOUT / "examples" / "tree_credit.py"))
    export(data, "rollouts", tmp_path / "rollouts.jsonl")
    for record, episode in zip(records(data), opened(tmp_path / "rollouts.jsonl"), strict=True):
        [trace], tree = episode.traces, Tree.from_dict(record["tree"])
        example["assign_advantages"](trace)
        counts, sums = outcomes(tree)
        for response, said in zip(trajectories(tree), trace.info["responses"], strict=True):
            nodes, parent = through(trace, said["leaf"])[::-1], ROOT
            for node, at in zip(response.nodes, nodes, strict=False):
                if node == OUTSIDE:
                    break
                wanted = sums[node] / counts[node] - sums[parent] / counts[parent]
                assert trace.nodes[at].advantages == pytest.approx(
                    [wanted] * len(tree.token_ids[node])
                )
                parent = node


def test_rollouts_leave_teachers_out(data, tmp_path):
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


def test_the_command_writes_every_kind(data, tmp_path, capsys):
    assert main(f"export --data {data} --kind all --out {tmp_path / 'all'}".split()) == 0
    said = capsys.readouterr().out
    kinds = {path.stem for path in (tmp_path / "all").iterdir()}
    assert kinds == set(SUFFIXES) and said.count("rows in") == len(SUFFIXES)
    every = tmp_path / "every.parquet"
    assert main(f"export --data {data} --kind value --every-token --out {every}".split()) == 0
    nodes = parquet.ParquetFile(tmp_path / "all" / "value.parquet").metadata.num_rows
    assert parquet.ParquetFile(every).metadata.num_rows > nodes


@pytest.mark.parametrize("kind", ["sft", "value"])
def test_rows_are_written_as_the_ending_says(data, tmp_path, kind):
    lines, table = tmp_path / "rows.jsonl", tmp_path / "rows.parquet"
    for out in (lines, table):
        assert main(f"export {data} --kind {kind} --out {out}".split()) == 0
    rows = read_jsonl(lines)
    as_table = parquet.read_table(table).to_pylist()
    assert len(rows) == len(as_table) > 0
    for row, of_table in zip(rows, as_table, strict=True):
        floats = [name for name in row if isinstance(row[name], float)]
        assert [row.pop(name) for name in floats] == pytest.approx(
            [of_table.pop(name) for name in floats], rel=1e-6
        )
        assert row == of_table


def test_trees_of_other_splits_are_no_training_set(data, tmp_path, capsys):
    journal, out = tmp_path / "journal.jsonl", tmp_path / "x.parquet"
    command = f"export --data {tmp_path} --kind sft --out {out}".split()
    trees = list(records(data))
    for tree in trees[:-1]:
        del tree["split"]  # a training run's journal says nothing
    write_jsonl(journal, trees)
    assert main(command) == 0
    trees[5]["split"] = "test"
    write_jsonl(journal, trees)
    out.unlink()
    capsys.readouterr()
    assert main(command) == 2
    said = capsys.readouterr().err.strip()
    assert (
        str(journal) in said and "test split" in said and "--any-split" in said and "\n" not in said
    )
    assert list(tmp_path.iterdir()) == [journal]
    assert main([*command, "--any-split"]) == 0 and out.exists()


def test_a_folder_is_no_file_to_write(data, tmp_path, capsys):
    assert main(f"export {data} --kind sft --out {tmp_path}".split()) == 2
    assert "--out" in capsys.readouterr().err and not list(tmp_path.iterdir())
