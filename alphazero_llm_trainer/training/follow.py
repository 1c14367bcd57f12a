"""The ranks beside rank 0: they search the questions that they are given and train on the rows that they are dealt."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import set_seed

from .loop import Run
from .models import make_trainable
from .ranks import ROWS, STOP, InStep, Ranks, Saved, dealt
from .rows import TrainRow
from .source import Interrupted


def follow(run: Run, ranks: Ranks) -> None:
    """Search and train as rank 0 says, until it has no more rounds."""
    set_seed(run.config.library_seed)
    run.trainable = make_trainable(run.student.model, run.student.spec, run.adapter)
    told = ranks.tell()
    if told is None:
        raise SystemExit(2)
    place, checkpoint = told

    def rows(number: int) -> list[TrainRow]:
        while True:
            what, *told = ranks.tell()
            if what == STOP:
                raise Interrupted
            if what == ROWS:
                return dealt(told[0], ranks, run.config.train.settings.batch_size)
            records = search_share(run, number, told[1][ranks.rank]) if ranks.searches else []
            ranks.gather((records, run.stop()))

    trainer = run.make_trainer(rows, Path(place), [Saved(), InStep(ranks)])
    try:
        trainer.train(resume_from_checkpoint=checkpoint)
    except Interrupted:
        return


def search_share(run: Run, number: int, keys: Sequence[str]) -> list[dict[str, Any]]:
    """The journal's records of the questions that this rank was given."""
    model, engine = run.student.model, run.student.engine
    training = model.training
    model.eval()
    engine.set_policy(None, number)
    tasks = run.size.of_round(run.tasks, number)
    records: list[dict[str, Any]] = []

    async def search() -> None:
        async for tree in run.collector.collect([(key, tasks[key]) for key in keys], run.config.seed):
            if tree.ended_by != "stopped":
                records.append(tree.record(round=number, policy=engine.version))

    asyncio.run(search())
    if run.perplexity is not None:
        run.perplexity.forget()
    engine.rest()
    model.train(training)
    return records
