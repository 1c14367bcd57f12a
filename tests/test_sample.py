"""Sampling on one process: exactly one tree a question, whatever dies, and no question that takes the run down."""

from __future__ import annotations

import json
import os
import re
import signal
from collections import Counter
from pathlib import Path
from random import Random

import pytest
from faults import a_job, forked, keys_of, lines_in, trees_in, wait_for, what_counts
from hypothesis import given, settings
from hypothesis import strategies as st

from alphazero_llm_trainer.cli.main import main
from alphazero_llm_trainer.errors import ConfigError, DataError
from alphazero_llm_trainer.mcts.journal import Shards, read_shards
from alphazero_llm_trainer.scale.questions import Queue
from alphazero_llm_trainer.scale.sample import run_sample
from alphazero_llm_trainer.scale.sample_folder import SampleFolder
from alphazero_llm_trainer.scale.totals import Summary

IDENTITY = {"config": {"search": {"samples": 4}}, "seed": 7}
POLICY = {"name": "embedded", "version": 0, "fingerprint": "aa", "value": None}


# -- the questions -----------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.integers(1, 12), st.integers(1, 4), st.integers(0, 2**32))
def test_innocent_questions_are_never_set_aside(count: int, width: int, attempts: int, seed: int) -> None:
    """Some questions kill whatever they run in. All of them are set aside, nobody else is, and it ends."""
    rng = Random(seed)
    keys = [f"q{i}" for i in range(count)]
    poison = {key for key in keys if rng.random() < 0.15}
    queue = Queue(keys, attempts)
    runs: Counter[str] = Counter()
    while queue.waiting:
        batch = [key for _ in range(width) if (key := queue.fresh()) is not None]
        alone = not batch
        batch = batch or [key for key in [queue.suspect()] if key is not None]
        runs.update(batch)
        for key in batch:
            if poison & set(batch):
                queue.failed(key, "died", alone)
            else:
                queue.done(key)
    assert len(queue) == 0 and set(queue.set_aside) == poison
    assert all(failures == attempts for _, failures in queue.set_aside.values())
    assert all(runs[key] <= (attempts + 1 if key in poison else 2) for key in keys)


def test_a_failure_beside_others_does_not_count_and_what_earlier_sessions_know_does() -> None:
    told = []
    queue = Queue(["a", "b"], 2, on_failure=lambda *event: told.append(event))
    assert queue.fresh() == "a" and queue.fresh() == "b" and queue.fresh() is None
    queue.failed("a", "time-out", False)
    queue.done("b")
    for count in (1, 2):
        assert queue.suspect() == "a"
        queue.failed("a", "time-out", True)
        assert told[-1] == ("a", "time-out", True, count)
    assert queue.suspect() is None and queue.set_aside == {"a": ("time-out", 2)} and not len(queue)
    queue = Queue(["a", "b", "c"], 2, failures={"a": 2, "b": 1}, suspects=["b", "gone"])
    assert set(queue.set_aside) == {"a"} and queue.fresh() == "c" and queue.fresh() is None
    assert queue.suspect() == "b" and queue.suspect() is None


# -- shards ------------------------------------------------------------------------------------------------------------


def a_record(key: str) -> dict:
    return {"key": key, "text": "\u2028 ä" * 20}


def test_shards_fill_close_and_go_on(tmp_path: Path) -> None:
    shards = Shards(tmp_path, 3)
    assert [shards.append(a_record(f'"{i}\\')) for i in range(7)] == [False, False, False, True, False, False, True]
    shards.close()
    assert [entry["records"] for entry in shards.closed] == [3, 3]
    seen: list[tuple[str, str]] = []
    again = Shards(tmp_path, 3, shards.closed[:1], lambda name, record: seen.append((name, record["key"])))
    # The manifest was a shard behind: the second file is taken in as finished, the third as open.
    assert again.closed == shards.closed and len(again.keys) == 7
    assert seen == [("shard-00001.jsonl", f'"{i}\\') for i in (3, 4, 5)] + [("shard-00002.jsonl", '"6\\')]
    with pytest.raises(DataError, match="already"):
        again.append(a_record('"0\\'))
    again.append(a_record("later"))
    again.close(finished=True)
    assert [record["key"] for record in read_shards(tmp_path)] == [*(f'"{i}\\' for i in range(7)), "later"]
    empty = Shards(tmp_path, 3, again.closed)
    empty.close(finished=True)
    assert empty.closed == again.closed and len(list(tmp_path.iterdir())) == 3


def test_damaged_shards_are_refused(tmp_path: Path) -> None:
    shards = Shards(tmp_path, 2)
    for i in range(5):
        shards.append(a_record(str(i)))
    shards.close()
    first, last = tmp_path / "shard-00000.jsonl", tmp_path / "shard-00002.jsonl"
    whole = first.read_bytes()
    first.write_bytes(whole.replace(b'"text"', b'"texT"', 1))
    with pytest.raises(DataError, match="sha256"):
        Shards(tmp_path, 2, shards.closed)
    first.unlink()
    with pytest.raises(DataError, match="can't be read"):
        Shards(tmp_path, 2, shards.closed)
    first.write_bytes(whole)
    last.write_bytes(last.read_bytes() + whole)
    with pytest.raises(DataError, match="second tree for '0'"):
        Shards(tmp_path, 2, shards.closed)
    last.write_bytes(b'{"key":"9","te')
    again = Shards(tmp_path, 2, shards.closed)
    assert again.dropped_bytes == 14 and len(again.keys) == 4


# -- the folder --------------------------------------------------------------------------------------------------------


def test_a_folder_holds_one_run_and_one_writer(tmp_path: Path) -> None:
    out = tmp_path / "out"
    folder = SampleFolder(out, IDENTITY, 10, 5, resume=True)  # nothing there yet: a new run
    folder.begin(POLICY)
    with pytest.raises(ConfigError, match=r"written by process \d+"):
        SampleFolder(out, IDENTITY, 10, 5, resume=True)
    folder.end("stopped")
    with pytest.raises(ConfigError, match="--resume"):
        SampleFolder(out, IDENTITY, 10, 5, resume=False)
    other = {"config": {"search": {"samples": 5}}, "seed": 8}
    with pytest.raises(ConfigError, match=r"search.samples is 5, the run in .* has 4"):
        SampleFolder(out, other, 10, 5, resume=True)
    with pytest.raises(ConfigError, match="--num is 9"):
        SampleFolder(out, IDENTITY, 9, 5, resume=True)
    folder = SampleFolder(out, IDENTITY, 12, 5, resume=True)  # more questions are welcome
    with pytest.raises(ConfigError, match=r"policy\.fingerprint"):
        folder.begin({**POLICY, "fingerprint": "bb"})
    folder.release()
    (out / "manifest.json").write_text('{"half')
    SampleFolder(out, IDENTITY, 12, 5, resume=True).release()  # the one of before is beside it
    (out / "manifest.json.before").unlink()
    with pytest.raises(DataError, match=r"manifest\.json"):
        SampleFolder(out, IDENTITY, 12, 5, resume=True)


def test_questions_that_were_in_flight_at_deaths_come_under_suspicion(tmp_path: Path) -> None:
    def session(*events: tuple[str, bool]) -> Queue:
        folder = SampleFolder(tmp_path, IDENTITY, 4, 5, resume=True)
        folder.begin(POLICY)
        schedule = folder.schedule(["a", "b", "c", "d"], 2)
        for key, alone in events:
            folder.attempts.start(key, alone)
        folder.attempts._file.close()  # the process dies
        folder.shards.close()
        folder.put_aside.close()
        folder.release()
        return schedule

    session(("a", False), ("b", False))
    first = session(("a", False), ("c", False))
    assert [first.fresh() for _ in range(4)] == [
        "a",
        "b",
        "c",
        "d",
    ] and first.suspect() is None  # one death is no reason
    second = session(("a", True))
    assert second.suspect() == "a" and second.suspect() is None and second.fresh() == "b"
    session(("a", True))
    with (tmp_path / "attempts.jsonl").open("ab") as file:
        file.write(b'{"event": "start", "key": "d", "al')  # cut
    last = session()
    assert last.set_aside == {"a": ("failed in earlier sessions", 2)}


# -- whole runs --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict, Summary]:
    """Trees of 30 questions, by a run that nothing disturbed."""
    out = tmp_path_factory.mktemp("whole")
    summary = run_sample(a_job(30), out)
    return trees_in(out), summary


def test_a_run_leaves_a_manifest_that_adds_up(tmp_path: Path) -> None:
    job = a_job(16)
    summary = run_sample(job, tmp_path / "out")
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    found = trees_in(tmp_path / "out")
    assert set(found) == set(keys_of(job)) and summary.status == manifest["status"] == "complete"
    assert [entry["records"] for entry in manifest["shards"]] == [7, 7, 2]
    assert manifest["totals"]["trees"] == 16 == sum(e["totals"]["trees"] for e in manifest["shards"])
    sampled = sum(record["cost"]["sampled_tokens"] for record in found.values())
    assert manifest["totals"]["cost"]["sampled_tokens"] == sampled == summary.folder.cost.sampled_tokens > 0
    assert manifest["policy"]["version"] == 0 and len(manifest["policy"]["fingerprint"]) == 64
    assert manifest["config"]["search"]["simulations"] == 2 and "concurrent" not in manifest["config"]["search"]
    assert {(record["policy_version"], record["split"]) for record in found.values()} == {(0, "train")}
    assert 0 < summary.folder.right <= summary.folder.responses and summary.folder.simulations >= 16 * 4
    assert run_sample(job, tmp_path / "out", resume=True).session.trees == 0  # nothing is left to do
    more = run_sample(a_job(18), tmp_path / "out", resume=True)
    assert more.session.trees == 2 and more.folder.trees == 18


def test_killed_at_any_moment_every_question_has_its_tree(tmp_path: Path, whole: tuple[dict, Summary]) -> None:
    rng, job = Random(3), a_job(30, delay=0.02)
    for kill in range(3):
        had = lines_in(tmp_path)
        child = forked(lambda: run_sample(job, tmp_path, resume=True))
        wait_for(lambda: lines_in(tmp_path) >= had + rng.randrange(1, 8))
        os.kill(child.pid, signal.SIGKILL)
        child.join(10)
        assert child.exitcode == -signal.SIGKILL and had < lines_in(tmp_path) < 30, kill
        shard = max(tmp_path.glob("shard-*.jsonl"))
        if kill == 1:
            shard.write_bytes(shard.read_bytes()[:-9])  # as if the kill had come in the middle of a line
    summary = run_sample(job, tmp_path, resume=True)
    assert summary.status == "complete" and not summary.set_aside
    assert {k: what_counts(r) for k, r in trees_in(tmp_path).items()} == {
        k: what_counts(r) for k, r in whole[0].items()
    }


def test_poison_is_set_aside_and_the_rest_is_searched(tmp_path: Path) -> None:
    job = a_job(9)
    raises, hangs = keys_of(job)[2], keys_of(job)[5]
    job = a_job(9, poison={raises: "raise", hangs: "hang"}, attempts=2, timeout_seconds=0.5)
    summary = run_sample(job, tmp_path)
    assert summary.status == "complete" and set(trees_in(tmp_path)) == set(keys_of(job)) - {raises, hangs}
    assert {key: (reason, n) for key, reason, n in summary.set_aside} == {
        raises: ("EngineError: poison", 2),
        hangs: ("no tree within 0.5 s", 2),
    }
    lines = [json.loads(line) for line in (tmp_path / "set_aside.jsonl").read_text().splitlines()]
    assert {line["key"] for line in lines} == {raises, hangs} and all(line["attempts"] == 2 for line in lines)
    assert run_sample(job, tmp_path, resume=True).session.trees == 0  # they stay aside


def test_a_mistake_in_the_configuration_ends_the_run(tmp_path: Path) -> None:
    keys = keys_of(a_job(9))
    with pytest.raises(ConfigError, match="wrong for every question"):
        run_sample(a_job(9, poison={keys[4]: "configure"}, attempts=1), tmp_path)
    assert (tmp_path / "set_aside.jsonl").read_bytes() == b""
    assert json.loads((tmp_path / "manifest.json").read_text())["status"] == "stopped"
    run_sample(a_job(9), tmp_path, resume=True)
    assert set(trees_in(tmp_path)) == set(keys)


def test_a_question_that_kills_the_process_ends_up_aside(tmp_path: Path) -> None:
    poison = keys_of(a_job(6))[1]
    job = a_job(6, poison={poison: "die"}, delay=0.01, attempts=2)
    deaths = 0
    while deaths < 10:
        child = forked(lambda: run_sample(job, tmp_path, resume=True))
        child.join(60)
        if child.exitcode == 0:
            break
        deaths += 1
    assert deaths == 4  # twice beside others, twice alone
    assert set(trees_in(tmp_path)) == set(keys_of(job)) - {poison}
    [aside] = [json.loads(line) for line in (tmp_path / "set_aside.jsonl").read_text().splitlines()]
    assert aside["key"] == poison and aside["attempts"] == 2


def test_stopping_leaves_whole_trees_and_goes_on(tmp_path: Path, whole: tuple[dict, Summary]) -> None:
    job, count = a_job(30), 0

    def stop() -> bool:
        return count >= 5

    def counted(*_: object) -> None:
        nonlocal count
        count += 1

    summary = run_sample(job, tmp_path, stop=stop, on_record=counted)
    assert summary.status == "stopped" and 5 <= len(trees_in(tmp_path)) < 30
    assert json.loads((tmp_path / "manifest.json").read_text())["status"] == "stopped"
    run_sample(job, tmp_path, resume=True)
    assert {k: what_counts(r) for k, r in trees_in(tmp_path).items()} == {
        k: what_counts(r) for k, r in whole[0].items()
    }


# -- the command -------------------------------------------------------------------------------------------------------

SMALL = ["--model", "embedded", "--set", "search.simulations=1", "--set", "train.requeue_limit=0"]


def test_the_command_samples_estimates_and_explains(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "out")
    assert main(["sample", "--num", "4", "--out", out, "--json", *SMALL]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["trees"] == 4 and facts["set_aside"] == 0 and facts["sampled_tokens_per_second"] > 0
    # PRE is off unless asked for.
    assert json.loads((Path(out) / "manifest.json").read_text())["config"]["rewards"]["use_student_model"] is False
    assert main(["sample", "--num", "6", "--out", out, "--resume", *SMALL]) == 0
    said = capsys.readouterr().out
    assert "6 of 6 questions" in said and "a second" in said and "peak memory" in said
    before = sorted(Path(tmp_path).iterdir())
    assert main(["sample", "--num", "1000", "--dry-run", *SMALL]) == 0
    said = capsys.readouterr().out
    assert "1,000 questions would take about" in said and sorted(Path(tmp_path).iterdir()) == before
    megabytes = float(re.search(r"their trees ([0-9.]+) MB of disk", said)[1])
    a_tree = sum(path.stat().st_size for path in Path(out).glob("shard-*")) / 6 / 1e6
    assert 400 * a_tree < megabytes < 2500 * a_tree
    broken, nothing = tmp_path / "broken.yaml", str(tmp_path / "nothing")
    broken.write_text("rewards: 0.5\n")
    for argv, words in (
        (["--out", nothing, "--config", str(broken)], "rewards is 0.5"),
        (["--out", nothing, "--set", "search.rollout=none"], "search.rollout is none"),
        (["--out", out], "--resume"),
        (["--out", out, "--resume", "--seed", "8"], "seed is 8"),
        ([], "--out is missing"),
        (["--out", out, "--num", "0"], "--num is 0"),
        (["--out", out, "--workers", "0"], "--workers is 0"),
    ):
        assert main(["sample", "--num", "6", *argv, *SMALL]) == 2
        said = capsys.readouterr().err.strip()
        assert words in said and said.startswith("error: ") and "\n" not in said
    assert not Path(nothing).exists()
    with pytest.raises(SystemExit):
        main(["sample", "--help"])
    said = capsys.readouterr().out
    assert all(words in said for words in ("search.simulations", "search.samples", "Teachers propose steps"))
