"""Finished runs of the shipped student, one a method: made once a session, for whoever reads
one; and what a run printed.
"""

import fcntl
import os
import re

from alphazero_llm_trainer.cli.train import train_main

SMALL = """
    --num-examples 24 --save-every 8 --eval-size 12 --model embedded
    --set problems.levels=[2,3] --set train.questions_per_round=8 --set train.validation_size=12
    --set train.keep_best=false --set train.demonstrations=20
    --set train.optimizer.batch_size=5 --set train.optimizer.epochs=2
""".split()  # legacy learns from questions with right and wrong responses
ROWS, UPDATES = ["--set", "train.rows_per_round=8"], ["--set", "train.updates_per_round=4"]
METHODS = {
    "grpo": ["--use-grpo", *ROWS],
    "rft": ["--use-rft", *UPDATES],
    "ppo": ["--use-ppo", *ROWS],
    "legacy": ["--use-legacy", *UPDATES],
    "alphazero": ["--config", "alphazero", *UPDATES, "--set", "search.budget_tokens=200"],
}


def finished_run(method, tmp_path_factory):
    """The folder of an uninterrupted run, which nobody changes: the first of xdist's workers that
    asks for it makes it, and another waits.
    """
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder = base / "finished" / method
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = folder / "done"
        if not done.exists():
            flags = ["--checkpoint-dir", str(folder)]
            assert train_main([*SMALL, *METHODS[method], *flags]) == 0
            done.touch()
    return folder / "run-001"


def learnt(printed):
    """Whether a printed run's student gained, or had nothing left to gain, and does most of its
    task.
    """
    figures = re.findall(r"^(?:before|after)(?: \[95%\]|:) +([\d.]+)", printed, re.MULTILINE)
    before, after = map(float, figures)
    return after >= 0.6 and (after > before + 0.05 or before >= 0.9)
