"""Whole small runs of `sample` and `train` on a disk that forgets: what every power cut leaves, and what comes of it."""

from __future__ import annotations

import contextlib
import io
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from faults import a_job, keys_of, trees_in, what_counts
from power_cuts import Cuts, RefusingDisk, restored

from alphazero_llm_trainer.cli.main import main
from alphazero_llm_trainer.errors import CheckpointError
from alphazero_llm_trainer.files import FolderLock
from alphazero_llm_trainer.mcts.journal import Journal, shard_paths
from alphazero_llm_trainer.policy.weights import load_sealed
from alphazero_llm_trainer.scale.sample import identity, run_sample
from alphazero_llm_trainer.scale.sample_folder import SampleFolder
from alphazero_llm_trainer.training import loop
from alphazero_llm_trainer.training.checkpoint import newest_whole, read_lines
from alphazero_llm_trainer.training.run import RunFolder, find_run

SMALL = (
    "--num-examples", "16", "--save-every", "4", "--eval-size", "4", "--student", "embedded",
    "--set", "train.questions_per_round=4", "--set", "train.validation_size=4", "--set", "train.rows_per_round=4",
    "--set", "train.demonstrations=8", "--set", "train.iterations=1", "--set", "train.requeue_limit=0",
    "--set", "train.grpo.batch_size=4", "--set", "train.grpo.epochs=1", "--set", "train.rft.batch_size=4",
    "--set", "train.rft.updates_per_round=1", "--set", "train.ppo.samples=2", "--set", "train.ppo.batch_size=4",
    "--set", "train.ppo.epochs=1", "--set", "train.ppo.rows_per_round=4", "--set", "train.ppo.critic_rounds=1",
)  # fmt: skip

TREES = (
    "-q", "sample", "--student", "embedded", "-n", "8", "--set", "train.iterations=1", "--set", "train.requeue_limit=0",
    "--set", "sample.shard_trees=3", "--out",
)  # fmt: skip


def keys_in(paths: Iterable[Path]) -> set[str]:
    """The keys of journals' lines."""
    return {json.loads(line)["key"] for path in paths for line in path.read_bytes().splitlines()}


def trees_of(folder: Path) -> dict[str, Any]:
    """What counts of all trees in a folder, by key."""
    return {key: what_counts(record) for key, record in trees_in(folder).items()}


class CutSample:
    """A run of `sample` over `questions`, cut at every moment; `goes_on` resumes some of what was left.

    A tree is reported as done once a manifest names its shard, or `sample` has returned.
    """

    def __init__(self, scratch: Path, rng: Random, questions: int = 12, keep: int = 0, most: int = 8) -> None:
        self.job, self.scratch, self.reported = a_job(questions, shard_trees=3), scratch, frozenset[str]()
        self.cuts = Cuts(scratch, self.check, lambda: self.reported, keep, rng, most)
        root, write = scratch / "disk", SampleFolder.write_manifest

        def write_manifest(folder: SampleFolder, status: str) -> None:
            write(folder, status)
            self.reported = frozenset(keys_in(folder.path / entry["name"] for entry in folder.shards.closed))

        with self.cuts.watching(root) as patch:
            patch.setattr(SampleFolder, "write_manifest", write_manifest)
            run_sample(self.job, root)
            self.reported = frozenset(keys_of(self.job))
        self.whole = trees_of(root)
        assert set(self.whole) == self.reported

    def check(self, left: Path) -> None:
        """Read all that a resumed run reads; what was reported is there."""
        job = self.job
        folder = SampleFolder(left, identity(job), len(job.tasks), job.config.sample.shard_trees, resume=True)
        try:
            stored = folder.stored or {}
            folder.begin(stored.get("policy", {"name": "embedded"}))
            found = folder.shards.keys
            assert self.reported <= found, f"{len(self.reported - found)} trees are gone that were reported"
            assert stored.get("status") != "complete" or len(found) == len(job.tasks), "it says complete and is not"
            assert len(folder.schedule(keys_of(job), 3)) == len(job.tasks) - len(found), (
                "what is left is not what isn't there"
            )
            folder.end("stopped")
        finally:
            folder.release()
        again = trees_in(left) if shard_paths(left) else {}
        assert self.reported <= again.keys() <= set(keys_of(job)), "trees are gone after what was left was tidied"

    def goes_on(self) -> list[str | None]:
        """What the kept states came to: None where it is the undisturbed run's trees."""
        return [self.resumed(restored(state, self.scratch / f"on-{n}")) for n, state in enumerate(self.cuts.kept)]

    def resumed(self, left: Path) -> str | None:
        run_sample(self.job, left, resume=True)
        found = trees_of(left)
        return None if found == self.whole else f"{left.name} went on to {len(found)} trees, not the undisturbed run's"


class CutTrain:
    """As `CutSample`, a run of `train` by `method`.

    Rounds are reported as done once their checkpoint is sealed, and the run once `train` has returned.
    """

    def __init__(self, scratch: Path, rng: Random, method: str = "grpo", keep: int = 0, most: int = 8) -> None:
        self.words, self.scratch = ("-q", "train", f"--use-{method}", *SMALL, "--checkpoint-dir"), scratch
        self.rounds, self.keys, self.finished = 0, frozenset[str](), False
        self.cuts = Cuts(scratch, self.check, lambda: (self.rounds, self.keys, self.finished), keep, rng, most)
        self.root, seal = scratch / "disk", loop.write_manifest

        def write_manifest(folder: Path, facts: dict[str, Any]) -> None:
            seal(folder, facts)
            self.rounds, self.keys = facts["rounds_done"], frozenset(keys_in([folder.parent / "journal.jsonl"]))

        with self.cuts.watching(self.root) as patch:
            patch.setattr(loop, "write_manifest", write_manifest)
            code, said = command((*self.words, str(self.root)))
            assert code == 0 and self.rounds == 4, f"the undisturbed run ended with exit code {code}: {said}"
            self.finished = True
        self.whole = product(self.root)

    def check(self, left: Path) -> None:
        """Read all that a resumed run reads; what was reported is there."""
        try:
            folder = find_run(left, None)
        except CheckpointError:
            assert not self.rounds, "the run is gone"
            return
        with FolderLock(folder.path):
            folder.config()
            if "after" in folder.read_card():
                self.check_end(folder)
                return
            assert not self.finished, "it has no end, and one was reported"
            _, facts = newest_whole(folder.path, lambda said: None)
            done = facts.get("rounds_done", 0)
            assert done >= self.rounds, f"{self.rounds} rounds were reported, and it goes on after {done}"
            if facts.get("best") is not None:
                load_sealed(folder.best)
            folder.forget_metrics_from(done)
            assert {line["round"] for line in folder.read_metrics()} >= set(range(done)), "figures of rounds are gone"
            read_lines(folder.answers)
            journal = Journal(folder.journal)
            journal.close()
            assert self.keys <= journal.records.keys(), "trees are gone that were reported"

    def check_end(self, folder: RunFolder) -> None:
        """A run that says that it is finished has its whole student."""
        for path in (self.root / folder.path.name / "student").iterdir():
            kept = folder.student / path.name
            assert kept.is_file() and kept.read_bytes() == path.read_bytes(), (
                f"it is finished without student/{path.name}"
            )

    def goes_on(self) -> list[str | None]:
        """What the kept states came to: None where it is the undisturbed run's weights, accuracies and costs."""
        return [self.resumed(restored(state, self.scratch / f"on-{n}")) for n, state in enumerate(self.cuts.kept)]

    def resumed(self, left: Path) -> str | None:
        return train_on(self.words, left, self.whole)


def product(place: Path) -> dict[str, Any]:
    """What the newest training run is for: weights by the byte, its accuracies, and what its search took."""
    run = find_run(place, None)
    card = run.read_card()
    correct = [card[when]["correct"] for when in ("before", "after")]
    weights = (run.student / "model.safetensors").read_bytes()
    cost = {name: count for name, count in card["search_cost"].items() if name != "seconds"}
    cost["prompt_tokens"] += cost.pop("cached_tokens")  # a new process has nothing in its cache
    return {"weights": weights, "accuracies": correct, "kept": card["kept"], "search's cost": cost}


def train_on(words: Sequence[str], place: Path, whole: dict[str, Any]) -> str | None:
    """Go on with the newest run of `place`, or begin one with `words` where there is none: None where `whole` comes of it."""
    begun = any(place.glob("run-*/run.json"))
    code, said = command(("-q", "train", "--resume", "--checkpoint-dir", str(place)) if begun else (*words, str(place)))
    if code:
        return f"{place.name} went on to exit code {code}: {said[-300:]}"
    found = product(place)
    differ = {name: (whole[name], found[name]) for name in whole if found[name] != whole[name]}
    return f"{place.name} went on to another result: {str(differ)[-300:]}" if differ else None


def command(words: Sequence[str]) -> tuple[int, str]:
    """The exit code of a command, whose sums are taken in one order, and what it said on standard error."""
    threads, said = torch.get_num_threads(), io.StringIO()
    torch.set_num_threads(1)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
            return main(words), said.getvalue()
    finally:
        torch.set_num_threads(threads)


LETTING_GO = 2  # operations at a run's end that hold no tree: a sync of the folder, and the log's last line


def refused(words: Sequence[str], place: Path, first: int, error: int | None) -> tuple[int, str | None]:
    """Run a command whose disk refuses all from operation `first` on (with `error` None: whose folder is removed then).

    It should end in one sentence and exit code 1; 2 where not even its folder could be made. Returns how many operations it
    came to, and what was wrong with its end.
    """
    place.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        disk = RefusingDisk(place, patch, first, error)
        code, said = command((*words, str(place)))
        disk.close()
    if disk.done <= first:
        return disk.done, None if code == 0 else f"exit code {code} without a refusal: {said[-300:]}"
    if error is None and code == 0 and disk.done - first <= LETTING_GO:
        return disk.done, None  # all was written and reported by then
    fine = said.startswith("error: ") and said.count("\n") == 1 and (code == 1 or (code == 2 and "writable" in said))
    what = "folder removed" if error is None else os.strerror(error)
    return disk.done, None if fine else f"{what} at operation {first}: exit code {code}, {said[-300:]!r}"
