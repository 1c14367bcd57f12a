"""Export: Parquet files that `datasets` loads, with every row of the readers."""

import json
import runpy
import statistics
from collections import Counter
from dataclasses import fields

import datasets
import pytest
from faults import a_job
from pyarrow import parquet
from tables import CHECKOUT, read_jsonl, write_jsonl
from verifiers.v1.episode import WireEpisode

from alphazero_llm_trainer.cli.main import main
from alphazero_llm_trainer.config.load import load_config
from alphazero_llm_trainer.errors import DataError
from alphazero_llm_trainer.runs import export as export_module
from alphazero_llm_trainer.runs.export import COMMON, EXPORT_COLUMNS, SUFFIXES, export_rows
from alphazero_llm_trainer.runs.sample import run_sample
from alphazero_llm_trainer.tree.arena import ROOT, Rollout, Tree
from alphazero_llm_trainer.tree.extract import (
    OUTSIDE,
    outcomes,
    step_preferences,
    step_values,
    trajectories,
    value_targets,
)
from alphazero_llm_trainer.tree.journal import journal_of, read
from alphazero_llm_trainer.types import Observation, RewardParts, Step


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A folder with 12 trees, and a half-written line after them."""
    folder = tmp_path_factory.mktemp("data")
    run_sample(a_job(12), folder)
    with (folder / "journal.jsonl").open("ab") as file:
        file.write(b'{"key": "half')
    return folder


@pytest.fixture(scope="module")
def trees(data):
    """Records and trees."""
    return [(record, Tree.from_dict(record["tree"])) for record in read(journal_of(data))]


TARGETS = {
    "value": value_targets,
    "preferences": lambda tree: step_preferences(tree, 0.25, 1),
    "sft": lambda tree: [one for one in trajectories(tree) if one.right],
}


def expected(trees, kind):
    """The rows as the readers of `tree.extract` give them."""
    renamed = {}
    if kind == "sft":
        renamed = {"token_ids": "completion_ids", "text": "completion", "samples": "count"}
        renamed["source"] = "author"
    for record, tree in trees:
        for row in TARGETS[kind](tree):
            names = [field.name for field in fields(row)]
            yield record, {renamed.get(name, name): getattr(row, name) for name in names}


@pytest.mark.parametrize("kind", EXPORT_COLUMNS)
def test_what_is_exported_is_loaded_again(data, trees, tmp_path, kind, monkeypatch):
    monkeypatch.setattr(export_module, "BATCH_ROWS", 5)
    # Two samples are few.
    monkeypatch.setattr(export_module, "step_preferences", TARGETS["preferences"])
    out = tmp_path / "new" / f"{kind}.parquet"
    count = export_rows(data, kind, out)
    cache, file = str(tmp_path / "cache"), str(out)
    rows = [*datasets.load_dataset("parquet", data_files=file, cache_dir=cache)["train"]]
    wanted = [*expected(trees, kind)]
    assert count == len(rows) == len(wanted) > 0
    for row, (record, want) in zip(rows, wanted, strict=True):
        assert list(row) == list(COMMON | EXPORT_COLUMNS[kind])
        for name in want.keys() & row.keys():
            value = json.loads(json.dumps(want[name]))  # lists, not tuples
            real = name in ("target", "margin", "probabilities", "improved")
            assert row[name] == (pytest.approx(value, abs=1e-6) if real else value)
        for shares in ("probabilities", "improved"):
            assert sum(row.get(shares, [1.0])) == pytest.approx(1.0, abs=1e-5)
        assert row["prompt_ids"] == record["prompt_ids"]
        assert row["question"] == record["problem"]["question"]
        assert row["question_id"] == record["key"]
        assert row["policy_version"] == 0 and row["source"] == "embedded"
    assert not [*tmp_path.glob("**/*.part")]


def opened(folder, out):
    """The traces of a folder's rollouts by key, read by verifiers' own classes."""
    count, found = export_rows(folder, "rollouts", out), {}
    for line in out.read_text().splitlines():
        [trace] = WireEpisode.model_validate(json.loads(line)).traces
        found[trace.id] = trace
    assert count == len(found)
    return found


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
    mean, std = statistics.fmean(rewards), statistics.pstdev(rewards)
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


def test_a_tree_is_one_trace_of_verifiers(data, trees, tmp_path):
    found = opened(data, tmp_path / "rollouts.jsonl")
    assert len(found) == len(trees)
    for record, tree in trees:
        trace = found[record["key"]]
        assert trace.task.data.id == record["problem"]["id"] and trace.agent.trainable
        check_trace(trace, record, tree)
    assert any(any(node.advantages or ()) for trace in found.values() for node in trace.nodes)
    # The example gives a trainer the credit of steps.
    example = runpy.run_path(str(CHECKOUT / "examples" / "tree_credit.py"))
    for record, tree in trees:
        trace, (counts, sums) = found[record["key"]], outcomes(tree)
        example["assign_advantages"](trace)
        for response, said in zip(trajectories(tree), trace.info["responses"], strict=True):
            inside = [node for node in response.nodes if node != OUTSIDE]
            parents = (ROOT, *inside)
            nodes = through(trace, said["leaf"])[::-1]
            for node, parent, at in zip(inside, parents, nodes, strict=False):
                wanted = sums[node] / counts[node] - sums[parent] / counts[parent]
                ids = tree.token_ids[node]
                assert trace.nodes[at].advantages == pytest.approx([wanted] * len(ids))


def a_run(trees, folder, credit):
    """The folder of a GRPO run with this credit, whose two rounds had these trees."""
    overrides = ["train.method=grpo", f"train.credit={credit}", "train.reward=hre"]
    config = load_config(overrides=["student=embedded", "train.prm=prm", *overrides])
    (folder / "run.json").write_text(json.dumps({"config": config.model_dump(mode="json")}))
    lines = [{**record, "policy_version": i // 6} for i, (record, _) in enumerate(trees)]
    write_jsonl(folder / "journal.jsonl", lines)


def test_rollouts_have_the_credit_of_steps_where_their_run_has_it(trees, tmp_path, capsys):
    out, signals = tmp_path / "rollouts.jsonl", 0
    a_run(trees, tmp_path, "process")  # which a journal does not have
    assert main(f"export {tmp_path} --kind rollouts --out {out}".split()) == 2
    assert "train.credit" in capsys.readouterr().err and not out.exists()
    assert main(f"export {tmp_path} --kind sft --out {out}".split()) == 0
    a_run(trees, tmp_path, "step")
    traces = opened(tmp_path, out)
    for one_round in (trees[:6], trees[6:]):
        steps = {}  # of each tree whose responses differ: what each step of each response gained
        for record, tree in one_round:
            counts, sums = outcomes(tree, correctness=True)
            responses = trajectories(tree)
            if len({r.hre for r in responses}) > 1:
                values = [step_values(r, r.hre, counts, sums) for r in responses]
                steps[record["key"]] = [[q - v for q, v in of_one] for of_one in values]
        every = [gain for tree in steps.values() for response in tree for gain in response]
        scale = statistics.fmean(gain**2 for gain in every) ** 0.5
        for key, gains in steps.items():
            trace, wanted = traces[key], Counter()
            for said, response in zip(trace.info["responses"], gains, strict=True):
                nodes = through(trace, said["leaf"])[::-1]
                for at, gain in zip(nodes, response, strict=False):
                    wanted[at] += max(-3.0, min(3.0, gain / scale))
            for at, node in enumerate(trace.nodes[1:], 1):
                assert node.advantages == pytest.approx([wanted[at]] * len(node.token_ids))
                signals += bool(node.advantages and wanted[at])
    assert signals > 0


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
        logprobs, ends = (-0.5,) * len(ids), (grade, grade, None, 1, 1)
        tree.rollouts.append(Rollout(node, ids, logprobs, text, "ended", *ends))
    for node in (ROOT, first, second):
        tree.backup(node, 1.0)
    problem = {"id": "q", "question": "?", "source": "x"}
    record = {"key": "q", "problem": problem, "prompt_ids": [0], "policy_version": 0}
    [row] = export_module.make_episodes([(record, tree)], export_module.earned_in(tmp_path))
    [trace] = WireEpisode.model_validate(row).traces
    check_trace(trace, record, tree)
    replies = {tuple(branch.token_ids[1:]) for branch in trace.branches}
    assert replies == {(1, 2, 3), (1, 2, 7, 8), (1, 2, 9), (5,), (1, 2)}


def test_rollouts_leave_teachers_out(trees, tmp_path):
    """As in training by default: their tokens are off-policy, and they don't enter the group's
    mean.
    """
    record, tree = next(one for one in trees if len(trajectories(one[1])) > 2)
    written = trajectories(tree)[0]
    tree = tree.to_dict()
    tree["source"][written.nodes[-1]] = "teacher:x"
    write_jsonl(tmp_path / "journal.jsonl", [record | {"tree": tree}])
    [trace] = opened(tmp_path, tmp_path / "rollouts.jsonl").values()
    replies = {tuple(branch.token_ids[len(record["prompt_ids"]) :]) for branch in trace.branches}
    own = {one.token_ids for one in trajectories(Tree.from_dict(tree)) if one.student}
    assert replies == own and written.token_ids not in replies


def test_the_command_writes_every_kind(data, tmp_path, capsys):
    def rows(kind, out, *more):
        assert main(["export", "--data", str(data), "--kind", kind, "--out", str(out), *more]) == 0
        lines = out.suffix == ".jsonl"
        return read_jsonl(out) if lines else parquet.read_table(out).to_pylist()

    whole = tmp_path / "all"
    assert main(f"export {data} --out {whole}".split()) == 0
    kinds = {path.stem for path in whole.iterdir()}
    assert kinds == set(SUFFIXES) and capsys.readouterr().out.count("rows in") == len(SUFFIXES)
    for kind in ("sft", "value"):  # rows are written as the ending says
        of_lines, of_table = (
            rows(kind, tmp_path / f"{kind}{end}") for end in (".jsonl", ".parquet")
        )
        assert len(of_lines) == len(of_table) > 0
        for row, other in zip(of_lines, of_table, strict=True):
            for name, value in row.items():
                real = isinstance(value, float)
                assert other[name] == (pytest.approx(value, rel=1e-6) if real else value)
    every = rows("value", tmp_path / "every.parquet", "--every-token")
    assert len(every) > len(of_table)
    assert main(f"export {data} --kind sft --out {tmp_path}".split()) == 2  # a folder
    assert "--out" in capsys.readouterr().err


def test_trees_of_other_splits_are_no_training_set(trees, tmp_path, capsys):
    journal, out = tmp_path / "journal.jsonl", tmp_path / "x.parquet"
    command = f"export --data {tmp_path} --kind sft --out {out}".split()
    for split, wanted in ((None, 0), ("test", 2)):
        # A training run's journal says nothing.
        lines = [record | {"split": split} for record, _ in trees]
        for line in lines if split is None else lines[:5]:
            del line["split"]
        write_jsonl(journal, lines)
        capsys.readouterr()
        assert main(command) == wanted
        assert out.exists() == (wanted == 0)
        out.unlink(missing_ok=True)
    said = capsys.readouterr().err
    assert str(journal) in said and "test split" in said and "--any-split" in said
    assert [*tmp_path.iterdir()] == [journal]
    assert main([*command, "--any-split"]) == 0 and out.exists()


def test_what_a_world_answered_is_a_message_without_a_mask(tmp_path):
    tree = Tree()
    seen = Observation(2, "7", ("calculate",))
    turn = tree.attach(ROOT, Step((10, 11, 90, 91), (-0.5, -0.5, 0.0, 0.0), "3 + 4", seen))
    last = tree.attach(turn, Step((12,), (-0.25,), "7"))
    tree.finish(last, "ended", RewardParts(1.0, 1.0))
    tree.samples[last] = 1
    record = {
        "key": "k",
        "problem": {"id": "p", "question": "q", "source": "calc"},
        "prompt_ids": [1],
        "policy_version": 0,
    }
    responses = trajectories(tree)
    made = export_module.make_episode(record, tree, responses, [[1.0, 2.0, 3.0, 4.0, 5.0]])
    WireEpisode.model_validate(made)
    nodes = made["traces"][0]["nodes"]
    assert [(n["message"]["role"], [*n["token_ids"]], n["mask"]) for n in nodes] == [
        ("user", [1], [False]),
        ("assistant", [10, 11], [True, True]),
        ("tool", [90, 91], [False, False]),
        ("assistant", [12], [True]),
    ]
    assert [n.get("parent") for n in nodes] == [None, 0, 1, 2]
    assert [n.get("advantages") for n in nodes] == [None, [1.0, 2.0], None, [5.0]]
    for kind in ("sft", "preferences"):
        with pytest.raises(DataError, match="turns of a world"):
            [*export_module.tree_rows(kind, [(record, tree)], False)]
    write_jsonl(tmp_path / "journal.jsonl", [record | {"split": "train", "tree": tree.to_dict()}])
    assert main(f"export {tmp_path} --kind all --out {tmp_path / 'all'}".split()) == 2
    assert not [*tmp_path.glob("all/*")]
    rows = [*export_module.tree_rows("value", [(record, tree)], False)]
    # A state is a turn's end, after what was answered to it.
    assert [row["token_ids"] for row in rows] == [(), (10, 11, 90, 91), (10, 11, 90, 91, 12)]
