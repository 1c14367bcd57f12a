"""Sampling on one process: exactly one tree a question, whatever dies, and no question that takes
the run down.
"""

import json
import os
import signal
from random import Random

import pytest
from faults import a_job, counted, forked, keys_of, lines_in, trees_in, wait_for
from tables import read_json, read_jsonl

from alphazero_llm_trainer.cli.main import main
from alphazero_llm_trainer.errors import CheckpointError, ConfigError
from alphazero_llm_trainer.runs.sample import run_sample
from alphazero_llm_trainer.runs.sample_folder import SampleFolder

IDENTITY = {"config": {"search": {"samples": 4}}, "seed": 7}
POLICY = {"name": "embedded", "version": 0, "fingerprint": "aa", "value": None}


# -- the folder ------------------------------------------------------------------------------------


def test_a_folder_holds_one_run(tmp_path):
    tasks = a_job(12).tasks

    def refused(said, *given, kind=ConfigError):
        with pytest.raises(kind, match=said):
            SampleFolder(tmp_path, *given)

    # Nothing there yet: a new run.
    folder = SampleFolder(tmp_path, IDENTITY, tasks[:10], resume=True)
    folder.begin(POLICY)
    folder.end("stopped")
    other = {"config": {"search": {"samples": 5}}, "seed": 8}
    refused("--resume", IDENTITY, tasks[:10], False)
    refused(r"search.samples is 5, the run in .* has 4", other, tasks[:10], True)
    refused("--num is 9", IDENTITY, tasks[:9], True)
    refused("other questions or answers", IDENTITY, tasks[2:], True)
    folder = SampleFolder(tmp_path, IDENTITY, tasks, resume=True)  # more questions are welcome
    with pytest.raises(ConfigError, match=r"policy\.fingerprint"):
        folder.begin({**POLICY, "fingerprint": "bb"})
    (tmp_path / "manifest.json").write_text('{"half')
    refused(r"manifest\.json", IDENTITY, tasks, True, kind=CheckpointError)


# -- whole runs ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Trees of 30 questions, by a run that nothing disturbed."""
    out = tmp_path_factory.mktemp("whole")
    run_sample(a_job(30), out)
    return counted(out)


def test_a_run_leaves_a_manifest_that_adds_up(tmp_path):
    job = a_job(16)
    summary, found = run_sample(job, tmp_path), trees_in(tmp_path)
    manifest = read_json(tmp_path / "manifest.json")
    assert set(found) == set(keys_of(job)) and summary.status == manifest["status"] == "complete"
    sampled = sum(record["cost"]["sampled_tokens"] for record in found.values())
    assert manifest["trees"] == 16 and summary.cost.sampled_tokens == sampled > 0
    assert manifest["policy"]["version"] == 0 and len(manifest["policy"]["fingerprint"]) == 64
    search = manifest["config"]["search"]
    assert search["simulations"] == 2 and "concurrent" not in search
    for record in found.values():
        assert (record["policy_version"], record["split"]) == (0, "train")
    assert 0 < summary.right <= summary.responses
    # Nothing is left to do.
    assert run_sample(job, tmp_path, resume=True).session_trees == 0
    more = run_sample(a_job(18), tmp_path, resume=True)
    assert more.session_trees == 2 and more.trees == 18


@pytest.mark.slow
def test_killed_at_any_moment_every_question_has_its_tree(tmp_path, whole):
    rng, job = Random(3), a_job(30, delay=0.02)
    for kill in range(3):
        had = lines_in(tmp_path)
        child = forked(lambda: run_sample(job, tmp_path, resume=True))
        wait_for(lambda: lines_in(tmp_path) >= had + rng.randrange(1, 8))
        os.kill(child.pid, signal.SIGKILL)
        child.join(10)
        assert child.exitcode == -signal.SIGKILL and had < lines_in(tmp_path) < 30, kill
        if kill == 1:
            # As if the kill had come in the middle of a line.
            journal = tmp_path / "journal.jsonl"
            os.truncate(journal, journal.stat().st_size - 9)
    summary = run_sample(job, tmp_path, resume=True)
    assert summary.status == "complete" and not summary.set_aside
    assert counted(tmp_path) == whole


def test_poison_is_set_aside_and_the_rest_is_searched(tmp_path):
    keys = keys_of(a_job(9))
    raises, hangs = keys[2], keys[5]
    job = a_job(9, poison={raises: "raise", hangs: "hang"}, seconds=0.5)
    summary = run_sample(job, tmp_path)
    assert summary.status == "complete"
    assert set(trees_in(tmp_path)) == set(keys) - {raises, hangs}
    lines = read_jsonl(tmp_path / "set_aside.jsonl")
    assert lines == summary.set_aside
    assert {line["key"]: (line["reason"], line["attempts"]) for line in lines} == {
        raises: ("EngineError: poison", 3),
        hangs: ("TimeoutError: no tree within 0.5 s", 3),
    }
    assert run_sample(job, tmp_path, resume=True).session_trees == 0  # they stay aside


def test_a_mistake_in_the_configuration_ends_the_run(tmp_path):
    keys = keys_of(a_job(9))
    with pytest.raises(ConfigError, match="wrong for every question"):
        run_sample(a_job(9, poison={keys[4]: "configure"}), tmp_path)
    assert (tmp_path / "set_aside.jsonl").read_bytes() == b""
    assert read_json(tmp_path / "manifest.json")["status"] == "stopped"
    run_sample(a_job(9), tmp_path, resume=True)
    assert set(trees_in(tmp_path)) == set(keys)


# -- the command -----------------------------------------------------------------------------------


def test_the_command_samples_and_explains(tmp_path, capsys):
    def sample(*flags, code=0):
        words = f"sample --out {tmp_path / 'out'} --model embedded --set search.simulations=1"
        assert main([*words.split(), "--set", "train.requeue_limit=0", *flags]) == code
        return capsys.readouterr()

    facts = json.loads(sample("--num", "4", "--json").out)
    assert facts["trees"] == 4 and facts["set_aside"] == 0 and facts["cost"]["sampled_tokens"] > 0
    # PRE is off unless asked for.
    manifest = read_json(tmp_path / "out" / "manifest.json")
    assert manifest["config"]["rewards"]["use_student_model"] is False
    said = sample("--num", "6", "--resume").out
    assert said.startswith(f"6 of 6 questions have a tree in {tmp_path / 'out'}\nsearched now: 2 ")
    assert " responses are right, " in said
    assert "seed is 8" in sample("--num", "6", "--resume", "--seed", "8", code=2).err
    (tmp_path / "notes.txt").write_text("mine")
    said = sample("--num", "1", "--out", str(tmp_path), code=2).err
    assert "holds notes.txt, and no manifest.json of a sample run: name another folder" in said
    kept = {path.name for path in tmp_path.iterdir() if not path.name.startswith(".")}
    assert kept == {"notes.txt", "out"}
