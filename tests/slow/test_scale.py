"""Sampling over Ray: the same trees as one process, exactly one a question, whichever process
dies.
"""

import asyncio
import dataclasses
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys

import pytest
from faults import a_job, counted, forked, keys_of, lines_in, trees_in, wait_for
from faults import workers as workers_below
from tables import CHECKOUT, TESTS

from alphazero_llm_trainer.errors import CheckpointError, ConfigError
from alphazero_llm_trainer.runs import sample
from alphazero_llm_trainer.runs.sample import run_sample
from alphazero_llm_trainer.runs.worker import Worker


def test_without_ray_there_is_one_sentence(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"alphazero-llm-trainer\[scale\]"):
        run_sample(a_job(1, workers=2), tmp_path)


def test_every_node_has_the_same_student():
    job = a_job(1)
    worker = Worker(job)
    other = {**worker.open(), "fingerprint": "another"}
    _, outcome, *_ = asyncio.run(worker.search(other, job.tasks[0]))
    assert isinstance(outcome, ConfigError) and "every node" in str(outcome)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("uv") is None, reason="no uv")
def test_workers_start_in_the_environment_of_uv_run(tmp_path):
    """Ray would copy the folder, and sync an environment of its own there."""
    pytest.importorskip("ray")
    words = ["--num", "2", "--workers", "2", "--out", str(tmp_path / "out")]
    command = ["uv", "run", "--no-sync", "alphazero-llm-trainer", "sample", *words]
    subprocess.run(command, cwd=CHECKOUT, check=True, timeout=280)
    assert lines_in(tmp_path / "out") == 2


@pytest.fixture(scope="module")
def cluster():
    """(address, process) of a Ray cluster in a child, which can import the faulty collector; it
    ends with the tests.
    """
    pytest.importorskip("ray")
    ours, theirs = multiprocessing.Pipe()

    def serve():
        from alphazero_llm_trainer.runs.workers import connect_ray

        connect_ray(None, 6)
        import ray

        theirs.send(ray.get_runtime_context().gcs_address)
        theirs.recv()
        ray.shutdown()

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(
            "PYTHONPATH",
            os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]),
        )
        patch.setenv("RAY_AUTH_MODE", "disabled")
        # As nice as Ray makes them, workers starve where anything else runs.
        patch.setenv("RAY_worker_niceness", "0")
        child = forked(serve)
        assert ours.poll(120), "no cluster"
        yield ours.recv(), child.pid
        ours.send("end")
        child.join(30)
        assert child.exitcode == 0


def test_workers_and_the_driver_are_killed(tmp_path, cluster):
    """The driver and both workers die: the trees are those of one quiet process, each once."""
    address, root = cluster
    job = dataclasses.replace(a_job(40, workers=2, delay=0.05), address=address)
    child = forked(lambda: run_sample(job, tmp_path / "out", resume=True))
    wait_for(lambda: lines_in(tmp_path / "out") >= 4, 120)
    os.kill(child.pid, signal.SIGKILL)
    child.join(10)
    had = lines_in(tmp_path / "out")
    assert child.exitcode == -signal.SIGKILL and 4 <= had < 40
    wait_for(lambda: not workers_below(root), 30)
    strikes = iter((had + 2, had + 12, 41))
    due = next(strikes)

    def strike():
        nonlocal due
        if lines_in(tmp_path / "out") >= due:
            due = next(strikes)
            os.kill(random.choice(workers_below(root)), signal.SIGKILL)
        return False

    summary = run_sample(job, tmp_path / "out", resume=True, stop=strike)
    assert due == 41 and summary.status == "complete" and not summary.set_aside
    assert summary.session_trees == 40 - had
    run_sample(a_job(40), tmp_path / "quiet")
    assert counted(tmp_path / "out") == counted(tmp_path / "quiet")


@pytest.mark.slow
def test_mistakes_in_the_configuration_end_the_run_in_a_sentence(tmp_path, cluster):
    keys = keys_of(a_job(6))
    job = a_job(6, workers=2, poison={keys[3]: "configure"})
    with pytest.raises(ConfigError, match="wrong for every question"):
        run_sample(dataclasses.replace(job, address=cluster[0]), tmp_path)
    assert (tmp_path / "set_aside.jsonl").read_bytes() == b""
    job = dataclasses.replace(a_job(2, workers=2), address=cluster[0], student_path=tmp_path)
    with pytest.raises(CheckpointError, match=r"config.json"):
        run_sample(job, tmp_path / "out")


@pytest.mark.slow
def test_poison_over_ray_is_isolated(tmp_path, cluster, monkeypatch):
    """Questions that kill, hang or raise end up aside; the innocent ones beside them are
    searched.
    """
    monkeypatch.setattr(sample, "QUESTION_ATTEMPTS", 1)
    keys = keys_of(a_job(14))
    poison = {keys[1]: "die", keys[3]: "raise", keys[9]: "hang"}
    job = a_job(14, workers=2, poison=poison, seconds=2.0)
    summary = run_sample(dataclasses.replace(job, address=cluster[0]), tmp_path)
    assert summary.status == "complete"
    assert {one["key"] for one in summary.set_aside} == set(poison)
    assert set(trees_in(tmp_path)) == set(keys) - set(poison)
