"""Faults that tests inject into sampling: collectors that fail on named questions, and processes to
kill.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Mapping
from functools import partial

import psutil

from alphazero_llm_trainer.config.load import load_config
from alphazero_llm_trainer.errors import ConfigError, EngineError
from alphazero_llm_trainer.learning.collector import Collector
from alphazero_llm_trainer.problems.load import load_tasks
from alphazero_llm_trainer.runs.sample import SampleJob
from alphazero_llm_trainer.tree.journal import JOURNAL, read


class Faulty(Collector):
    """FAKE collector: searches like `Collector`, but for `poison` (key -> what happens) and `delay`
    seconds a question.
    """

    poison: Mapping[str, str] = {}
    delay: float = 0.0

    async def collect(self, tasks, seed):
        await asyncio.sleep(self.delay)
        for key, _ in tasks:
            match self.poison.get(key):
                case "raise":
                    raise EngineError("poison")
                case "configure":
                    raise ConfigError("wrong for every question")
                case "hang":
                    await asyncio.Event().wait()
                case "die":
                    os.kill(os.getpid(), signal.SIGKILL)
        async for tree in super().collect(tasks, seed):
            yield tree


def _faulty(student, config, method, perplexity, *, poison, delay):
    collector = Faulty(student, config, method, perplexity)
    collector.poison, collector.delay = poison, delay
    return collector


def a_job(
    count,
    *,
    workers=1,
    poison=None,
    delay=0.0,
    seconds=600.0,
):
    """A job over `count` embedded problems with small trees."""
    config = load_config(
        overrides=[
            {"student": "embedded", "rewards": {"use_student_model": False}},
            {
                "search": {"concurrent": 4, "simulations": 2, "samples": 2},
                "train": {"requeue_limit": 1},
            },
        ]
    )
    tasks = load_tasks("embedded", "train", count, start=2000)
    return SampleJob(
        config,
        tasks,
        workers=workers,
        seconds=seconds,
        make_collector=partial(_faulty, poison=dict(poison or {}), delay=delay),
    )


def keys_of(job):
    return [task.problem.id for task in job.tasks]


def trees_in(folder):
    """Records by key; a key that is there twice fails."""
    found = {}
    for record in read(folder / JOURNAL):
        assert record["key"] not in found, f"{record['key']} is there twice"
        found[record["key"]] = record
    return found


def what_counts(record):
    """A record without what depends on the clock and on what stood beside it: the cost.
    Log-probabilities and priors rounded, those of rollouts left out.
    """
    tree = dict(record["tree"])
    tree["logprobs"] = [[round(value, 3) for value in values] for values in tree["logprobs"]]
    tree["prior"] = [None if value is None else round(value, 3) for value in tree["prior"]]
    tree["rollouts"] = [
        [part for at, part in enumerate(rollout) if at != 2] for rollout in tree["rollouts"]
    ]
    return {**{key: value for key, value in record.items() if key != "cost"}, "tree": tree}


def counted(folder):
    """What counts of all trees in a folder, by key."""
    return {key: what_counts(record) for key, record in trees_in(folder).items()}


def forked(target):
    """A child of this process, already loaded, that runs `target` and says nothing."""

    def run():
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        os.setpgrp()
        target()
        os._exit(0)

    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    return process


def wait_for(condition, seconds=60.0):
    """Poll until `condition` gives something true."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.01)
    raise TimeoutError("waited in vain")


def lines_in(folder):
    """Whole records in a folder that another process is writing."""
    journal = folder / JOURNAL
    return journal.read_bytes().count(b"\n") if journal.exists() else 0


def workers(root):
    """Processes of the Ray workers below `root`."""
    found = []
    with contextlib.suppress(psutil.NoSuchProcess):
        for one in psutil.Process(root).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                found += [one.pid] if "".join(one.cmdline()).startswith("ray::Worker") else []
    return sorted(found)
