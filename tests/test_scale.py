"""Sampling over Ray: the same trees as one process, exactly one a question, whichever process dies."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from faults import a_job, actors, forked, keys_of, lines_in, trees_in, wait_for, what_counts
from safetensors.torch import load_file

from alphazero_llm_trainer.api.train import execute
from alphazero_llm_trainer.cli.main import main
from alphazero_llm_trainer.collect import Collector, GradedTree
from alphazero_llm_trainer.config.load import load_config
from alphazero_llm_trainer.engine.protocol import Capabilities, GenerateRequest, TeacherLedger
from alphazero_llm_trainer.errors import CheckpointError, ConfigError, EngineError, RequestError
from alphazero_llm_trainer.live import Progress
from alphazero_llm_trainer.mcts.journal import Journal, read
from alphazero_llm_trainer.policy.student import load_student
from alphazero_llm_trainer.policy.value_function import EngineValue
from alphazero_llm_trainer.scale.fleet import Fleet
from alphazero_llm_trainer.scale.host import load_host
from alphazero_llm_trainer.scale.local import LocalPool
from alphazero_llm_trainer.scale.pool import Pool
from alphazero_llm_trainer.scale.question_queue import QuestionQueue
from alphazero_llm_trainer.scale.ray_pool import RayPool
from alphazero_llm_trainer.scale.remote import EngineCard, EngineLostError, Letter, Link, PostOffice, RemoteEngine
from alphazero_llm_trainer.scale.sample import run_sample
from alphazero_llm_trainer.training.fleet import FleetSource, Workers, check_workers
from alphazero_llm_trainer.training.loop import Run, _RoundWatch
from alphazero_llm_trainer.training.models import make_trainable, save_adapter
from alphazero_llm_trainer.training.run import RunFolder
from alphazero_llm_trainer.training.size import RunSize
from alphazero_llm_trainer.training.source import RoundSource, RoundStats
from alphazero_llm_trainer.types import Cost

from completion_server import CONFIG as SERVED  # isort: skip
from completion_server import CompletionServer  # isort: skip

CARD = EngineCard(3, 1, frozenset({1}), frozenset({2}), Capabilities(True, True, True, 64))


# -- letters -----------------------------------------------------------------------------------------------------------


class FakeEngine:
    """FAKE engine: answers a request with its seed after as many turns, or fails as the prompt says."""

    def __init__(self) -> None:
        self.cancelled: list[int] = []

    async def generate(self, requests: list[GenerateRequest]) -> list[int]:
        [request] = requests
        if request.prompt_ids == (13,):
            raise RequestError("too long")
        if request.prompt_ids == (14,):
            raise ZeroDivisionError("bug")
        try:
            for _ in range(request.seed):
                await asyncio.sleep(0)
            if request.prompt_ids == (99,):
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.append(request.seed)
            raise
        return [request.seed]


class Post:
    """Both sides of a link in one event loop; counts what travels."""

    def __init__(self) -> None:
        self.engine = FakeEngine()
        self.office = PostOffice({"policy": self.engine})
        self.sent: list[int] = []
        self.taken: list[int] = []
        self.lost = False
        self.link = Link(self.send, self.take, lambda number: self.office.cancel("me", number))
        self.remote = RemoteEngine(self.link, "policy", CARD)

    def send(self, letters: list[Letter]) -> None:
        self.sent.append(len(letters))
        self.office.put("me", letters)

    async def take(self) -> Any:
        if self.lost:
            raise EngineLostError("gone")
        replies = await self.office.take("me")
        self.taken.append(len(replies))
        return replies


def ask(post: Post, seed: int, prompt: int = 0) -> Any:
    return post.remote.generate([GenerateRequest((prompt,), seed=seed)])


def test_what_is_asked_in_one_turn_travels_together() -> None:
    async def whole() -> None:
        post = Post()
        assert await asyncio.gather(*(ask(post, seed) for seed in (5, 0, 9, 0))) == [[5], [0], [9], [0]]
        assert post.sent == [4] and sum(post.taken) == 4 and len(post.taken) <= 3
        assert post.remote.version == 3 and post.remote.capabilities.max_context == 64

    asyncio.run(whole())


def test_errors_come_back_as_what_they_are() -> None:
    async def whole() -> None:
        post = Post()
        with pytest.raises(RequestError, match="too long"):
            await ask(post, 0, prompt=13)
        with pytest.raises(EngineError, match="ZeroDivisionError: bug"):
            await ask(post, 0, prompt=14)
        assert await ask(post, 1) == [1]

    asyncio.run(whole())


def test_a_caller_that_goes_away_takes_its_call_along() -> None:
    async def whole() -> None:
        post = Post()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(ask(post, 2, prompt=99), 0.05)
        await asyncio.sleep(0)
        assert post.engine.cancelled == [2] and await ask(post, 4) == [4]
        waiting = asyncio.ensure_future(ask(post, 6, prompt=99))
        await asyncio.sleep(0.02)
        post.office.drop("me")
        await asyncio.sleep(0)
        assert post.engine.cancelled == [2, 6]
        waiting.cancel()

    asyncio.run(whole())


def test_nobody_waits_for_a_dead_client() -> None:
    async def whole() -> None:
        office = PostOffice({})
        waiting = asyncio.ensure_future(office.take("dead"))
        await asyncio.sleep(0)
        office.drop("dead")
        assert await asyncio.wait_for(waiting, 5) == []
        office.drop("never there")

    asyncio.run(whole())


def test_a_dead_engine_fails_everybody_who_waits() -> None:
    async def whole() -> None:
        post = Post()
        post.lost = True
        results = await asyncio.gather(*(ask(post, seed) for seed in range(3)), return_exceptions=True)
        assert all(isinstance(one, EngineLostError) for one in results)
        with pytest.raises(EngineLostError):
            await ask(post, 1)

    asyncio.run(whole())


# -- versions ----------------------------------------------------------------------------------------------------------


def nudged(pool_weights: dict[str, Any]) -> dict[str, Any]:
    """Other weights: a little noise on every tensor."""
    import torch

    generator = torch.Generator().manual_seed(0)
    return {
        name: tensor + 0.02 * tensor.std() * torch.randn(tensor.shape, generator=generator)
        for name, tensor in pool_weights.items()
    }


def both_versions(job: Any) -> dict[int, dict[str, Any]]:
    """Version -> key -> what every tree is under those weights."""
    trees = {}
    for version in (0, 1):
        host = load_host(job.config, None)
        if version:
            host.student.engine.set_policy(nudged(host.student.model.state_dict()), version)
        pool = LocalPool(host, job.config)
        tasks = {task.problem.id: task for task in job.tasks}
        found = pool.collect(QuestionQueue(list(tasks), 3), tasks, job.split, job.config.seed, lambda: False)
        trees[version] = {record["key"]: what_counts(record) for record in found}
    return trees


def check_versions(found: dict[str, dict[str, Any]], trees: dict[int, dict[str, Any]]) -> None:
    """Every record is what its version's weights give, and both versions are there."""
    assert {record["policy_version"] for record in found.values()} == {0, 1}
    for key, record in found.items():
        assert what_counts(record) == trees[record["policy_version"]][key]
    assert trees[0] != {key: {**tree, "policy_version": 0} for key, tree in trees[1].items()}


def push_at(moment: int) -> Any:
    """An `on_record` that pushes version 1 after so many records."""
    count = 0

    def on_record(pool: Pool, record: dict[str, Any]) -> None:
        nonlocal count
        count += 1
        if count == moment:
            pool.push(nudged(load_host(a_job(1).config, None).student.model.state_dict()), 1)

    return on_record


def test_weights_can_be_swapped_between_trees_of_one_process(tmp_path: Path) -> None:
    job = a_job(12)
    run_sample(job, tmp_path, on_record=push_at(4))
    check_versions(trees_in(tmp_path), both_versions(job))


def test_weights_are_not_pushed_under_a_head() -> None:
    job = a_job(1)
    host = load_host(job.config, None)
    for own in (False, True):
        host.value = EngineValue(host.student.engine, 1.0, {"files": {}}, own)
        pool = LocalPool(host, job.config)
        if own:
            pool.push({}, 1)
            continue
        with pytest.raises(ConfigError, match="use a network to push weights"):
            pool.push({}, 1)


# -- actors and lanes without Ray's processes --------------------------------------------------------------------------


STUDENT = {"name": "embedded", "version": 0, "fingerprint": "aa", "value": None}
CONNECTION = {"engine": CARD, "student": ("embedded", None, None), "engines": ["policy"], "value": None}


def test_a_search_actor_returns_mistakes_of_the_configuration() -> None:
    pytest.importorskip("ray")
    from alphazero_llm_trainer.scale.actors import SearchHost

    error = CheckpointError("no such value")

    def refuse(*_: Any) -> Any:
        raise error

    assert asyncio.run(SearchHost(a_job(1).config, refuse).connect(None, CONNECTION)) is error

    async def whole() -> tuple[str, Any]:
        collector: Any = SimpleNamespace(teachers=None, checker=None, remote=None, collect=refuse)
        host = SearchHost(a_job(1).config, lambda *_: collector)
        await host.connect(None, CONNECTION)
        return await host.search("key", a_job(1).tasks[0], "train", 7, 0)

    assert asyncio.run(whole()) == ("fatal", error)


def test_teachers_costs_outlive_a_connection() -> None:
    pytest.importorskip("ray")
    from alphazero_llm_trainer.scale.actors import SearchHost

    def spending(*_: Any) -> Any:
        teachers = SimpleNamespace(ledgers={"a teacher": TeacherLedger(cost=Cost(calls=2, dollars=0.5))})
        return SimpleNamespace(teachers=teachers, checker=None, remote=None)

    async def whole() -> None:
        host = SearchHost(a_job(1).config, spending)
        for times in (1, 2, 3):
            await host.connect(None, CONNECTION)
            assert (await host.stats()).teachers == {"a teacher": Cost(calls=2 * times, dollars=0.5 * times)}

    asyncio.run(whole())


class InstantFleet(Fleet):
    """FAKE fleet: a reference is its own answer, there as soon as somebody attends."""

    def _watch(self, owner: Any, reference: Any, then: Any) -> None:
        if reference is not None:
            self._pending[object()] = lambda _: then(reference)

    def attend(self) -> list[Any]:
        while self._pending:
            key, end = self._pending.popitem()
            end(key)
        return []


def fake_fleet(monkeypatch: pytest.MonkeyPatch, *cards: dict[str, Any]) -> None:
    """Make `RayPool`s of engines with these cards, one search actor each."""
    from alphazero_llm_trainer.scale import actors, fleet, ray_pool

    def asked(answer: Any = None) -> Any:
        return SimpleNamespace(remote=lambda *_: answer)

    def engine(*_: Any) -> Any:
        return SimpleNamespace(begin=asked(next(left)), alive=asked())

    left = iter(cards)
    monkeypatch.setattr(fleet, "Cluster", lambda *_: SimpleNamespace(gpus=0, close=lambda: None))
    monkeypatch.setattr(actors, "start_engine", engine)
    monkeypatch.setattr(actors, "start_search", lambda *_: SimpleNamespace(connect=asked("me"), alive=asked()))
    monkeypatch.setattr(ray_pool, "Fleet", InstantFleet)


def test_every_node_has_the_same_student(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    card = {"policy": STUDENT, "head": False}
    job = a_job(1, engines=2)
    fake_fleet(monkeypatch, card, card)
    assert RayPool(job.config, None, 2).policy == STUDENT
    fake_fleet(monkeypatch, card, {**card, "policy": {**STUDENT, "fingerprint": "bb"}})
    with pytest.raises(ConfigError, match=r"engine \d has another student .*fingerprint.* every node"):
        RayPool(job.config, None, 2)


def test_weights_are_not_pushed_to_engines_with_a_head(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    fake_fleet(monkeypatch, {"policy": STUDENT, "head": True})
    with pytest.raises(ConfigError, match="use a network to push weights"):
        RayPool(a_job(1).config, None, 1).push({}, 1)


def test_without_ray_there_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"alphazero-llm-trainer\[scale\]"):
        run_sample(a_job(1, workers=2), tmp_path)


# -- over Ray ----------------------------------------------------------------------------------------------------------


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def cluster() -> Iterator[tuple[str, int]]:
    """(address, process) of a Ray cluster in a child, which can import the faulty collector; it ends with the tests."""
    pytest.importorskip("ray")
    ours, theirs = multiprocessing.Pipe()

    def serve() -> None:
        from alphazero_llm_trainer.scale.cluster import Cluster

        running = Cluster(None, 6)
        import ray

        theirs.send(ray.get_runtime_context().gcs_address)
        theirs.recv()
        running.close()

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent))
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("RAY_worker_niceness", "0")  # as nice as Ray makes them, actors starve where anything else runs
        child = forked(serve)
        assert ours.poll(120), "no cluster"
        yield ours.recv(), child.pid
        ours.send("end")
        child.join(30)
        assert child.exitcode == 0


@pytest.mark.parametrize("driver", [True, False])  # a process is forked before this one has met Ray
def test_actors_are_killed_and_weights_are_pushed(tmp_path: Path, cluster: tuple[str, int], driver: bool) -> None:
    """A search actor and an engine actor die, weights are pushed: the trees are those of one quiet process."""
    address, root = cluster
    job, had = dataclasses.replace(a_job(40, workers=2, delay=0.05), address=address), 0
    if driver:
        child = forked(lambda: run_sample(job, tmp_path, resume=True))
        wait_for(lambda: lines_in(tmp_path) >= 4, 120)
        kill(child.pid)
        child.join(10)
        had = lines_in(tmp_path)
        assert child.exitcode == -signal.SIGKILL and 4 <= had < 40
        wait_for(lambda: not actors(root, "SearchHost") and not actors(root, "EngineHost"), 30)
    count, push = 0, push_at(8)

    def strike(pool: Pool, record: dict[str, Any]) -> None:
        nonlocal count
        count += 1
        push(pool, record)
        if count in (2, 12):
            kill(random.choice(actors(root, "SearchHost" if count == 2 else "EngineHost")))

    summary = run_sample(job, tmp_path, resume=True, on_record=strike)
    assert summary.status == "complete" and not summary.set_aside and summary.stats.restarts >= 2
    assert summary.session.trees == 40 - had
    found = trees_in(tmp_path)
    assert set(found) == set(keys_of(job))
    check_versions(found, both_versions(a_job(40)))


@pytest.mark.slow
def test_a_mistake_in_the_configuration_ends_the_run(tmp_path: Path, cluster: tuple[str, int]) -> None:
    keys = keys_of(a_job(6))
    job = a_job(6, workers=2, poison={keys[3]: "configure"}, attempts=1)
    with pytest.raises(ConfigError, match="wrong for every question"):
        run_sample(dataclasses.replace(job, address=cluster[0]), tmp_path)
    assert (tmp_path / "set_aside.jsonl").read_bytes() == b""


@pytest.mark.slow
def test_poison_over_ray_is_isolated(tmp_path: Path, cluster: tuple[str, int]) -> None:
    """Questions that kill, block or raise end up aside; the innocent ones beside them are searched."""
    keys = keys_of(a_job(14))
    poison = {keys[1]: "die", keys[3]: "raise", keys[6]: "block", keys[9]: "hang"}
    job = a_job(14, workers=2, poison=poison, attempts=2, timeout_seconds=3.0)
    summary = run_sample(dataclasses.replace(job, address=cluster[0]), tmp_path)
    assert summary.status == "complete" and summary.stats.restarts >= 4
    assert {key for key, _, _ in summary.set_aside} == set(poison)
    assert all(attempts == 2 for _, _, attempts in summary.set_aside)
    assert set(trees_in(tmp_path)) == set(keys) - set(poison)


@pytest.mark.slow
def test_a_student_that_cannot_be_loaded_is_one_sentence(tmp_path: Path, cluster: tuple[str, int]) -> None:
    job = dataclasses.replace(a_job(2, workers=2), address=cluster[0], student_path=tmp_path)
    with pytest.raises(CheckpointError, match=r"config.json"):
        run_sample(job, tmp_path / "out")
    with pytest.raises(ConfigError, match=r"127.0.0.1:1"):
        run_sample(dataclasses.replace(job, address="127.0.0.1:1"), tmp_path / "out")


@pytest.mark.slow
def test_up_to_nine_kills_lose_nothing(tmp_path: Path) -> None:
    """benchmarks/kill_test.py: the driver, search actors and engine actors, at random moments."""
    pytest.importorskip("ray")
    root = Path(__file__).parents[1]
    out = tmp_path / "kills.json"
    command = [sys.executable, "benchmarks/kill_test.py", "--kills", "9", "--questions", "200"]
    done = subprocess.run(
        [*command, "--out", str(out)], check=False, cwd=root, timeout=600, capture_output=True, text=True
    )
    print(done.stdout)
    figures = json.loads(out.read_text())
    assert done.returncode == 0, done.stdout
    assert min(figures["kills"].values()) >= 1  # how many there is time for
    assert figures["lost"] == figures["duplicate"] == figures["half_written"] == figures["set_aside"] == 0
    assert figures["same_as_undisturbed"] == figures["questions"]


def test_actors_sample_through_vllm_servers(tmp_path: Path, cluster: tuple[str, int]) -> None:
    servers = [CompletionServer(), CompletionServer()]
    urls = ", ".join(server.url for server in servers)
    flags = [*SERVED, "engine.backend=vllm-server", f"engine.vllm.base_url=[{urls}]"]
    command = ["sample", "-n", "8", "--quiet", *(word for flag in flags for word in ("--set", flag))]
    try:
        assert main([*command, "--out", str(tmp_path / "alone")]) == 0
        assert main([*command, "--out", str(tmp_path / "fleet"), "--workers", "2", "--address", cluster[0]]) == 0
        # An adapter is unloaded at the end, although actors are killed.
        student = load_student(load_config(overrides=SERVED))
        make_trainable(student.model, student.spec, "lora")
        save_adapter(student.model, student.spec.lora, tmp_path / "adapter")
        adapted = [*command, "--path", str(tmp_path / "adapter"), "--set", "train.adapter=lora"]
        assert main([*adapted, "--out", str(tmp_path / "own"), "--workers", "2", "--address", cluster[0]]) == 0
        for server in servers:
            assert set(server.students) == {"student"} and len(server.answered) > 1
    finally:
        for server in servers:
            server.close()
    trees = [
        {key: what_counts(record)["tree"] for key, record in trees_in(tmp_path / name).items()}
        for name in ("alone", "fleet")
    ]
    assert trees[0] == trees[1] and len(trees[0]) == 8


# -- training rounds ---------------------------------------------------------------------------------------------------


def a_training(out: Path, rounds: int) -> dict[str, Any]:
    """The keys of a run over four questions a round, which trains on all trees."""
    return {
        "student": "embedded",
        "rewards": {"use_student_model": False},
        "search": {"concurrent": 4, "temperature": 1.2},
        "problems": {"levels": [3, 4]},
        "sample": {"worker_trees": 2},
        "train": {
            **{"method": "rft", "num_examples": 4 * rounds, "questions_per_round": 4, "save_every": 4},
            **{"iterations": 2, "samples": 2, "requeue_limit": 0, "demonstrations": 8, "eval_size": 0},
            **{"validation_size": 0, "rft": {"batch_size": 4, "updates_per_round": 2, "warmup_rounds": 0}},
            "checkpoint_dir": str(out),
        },
    }


def train(raw: dict[str, Any], *workers: Any, run: RunFolder | None = None) -> Path:
    """The folder of a run to its end, one that is there (`run`) gone on with."""
    config = load_config(overrides=[raw])
    return execute(config, run, run is not None, Progress(quiet=True), lambda: False, *workers).folder


def trained(run: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """What counts of a run's journal, by key, and its last weights."""
    records = list(read(run / "journal.jsonl"))
    trees = {record["key"]: what_counts(record) for record in records}
    assert len(trees) == len(records)
    return trees, load_file(run / "student" / "model.safetensors")


def check_same(run: Path, other: Path) -> None:
    """The same trees, and the same weights to the bit."""
    (trees, weights), (others, same) = trained(run), trained(other)
    assert trees == others
    assert all(torch.equal(weights[name], same[name]) for name in weights)


def test_two_actors_search_rounds_as_one_process_does(tmp_path: Path, cluster: tuple[str, int]) -> None:
    alone = train(a_training(tmp_path / "alone", 2))
    check_same(alone, train(a_training(tmp_path / "fleet", 2), (2, cluster[0])))
    trees, _ = trained(alone)
    assert {tree["policy_version"] for tree in trees.values()} == {0, 1}  # the second round had new weights


class OneBehind(RoundSource):
    """What `train.lag` 1 means, in one process: the next round is searched before this one is trained on."""

    def search(self, number: int) -> tuple[list[GradedTree], RoundStats]:
        found = super().search(number)
        if number + 1 < self.size.rounds:
            super().search(number + 1)
        return found


def lagging(raw: dict[str, Any], out: Path) -> dict[str, Any]:
    return {**raw, "train": {**raw["train"], "lag": 1, "checkpoint_dir": str(out)}}


@pytest.mark.parametrize("method", ["rft", pytest.param("grpo", marks=pytest.mark.slow)])
def test_with_lag_the_next_round_is_searched_with_the_weights_of_before_the_updates(
    tmp_path: Path, cluster: tuple[str, int], monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    raw = a_training(tmp_path / "alone", 4)
    raw["train"] |= {"method": method, "rows_per_round": 8, "grpo": {"batch_size": 4, "epochs": 1, "warmup_rounds": 0}}
    fleet = train(lagging(raw, tmp_path / "fleet"), (1, cluster[0]))
    monkeypatch.setattr("alphazero_llm_trainer.training.loop.RoundSource", OneBehind)
    alone = train(raw)
    (trees, weights), (others, same) = trained(alone), trained(fleet)
    for key, tree in trees.items():
        version = max(tree["round"] - 1, 0)  # the process alone numbers its weights by the round that they search
        assert others[key] == {**tree, "policy": version, "policy_version": version}
    assert all(torch.equal(weights[name], same[name]) for name in weights)
    lines = RunFolder(fleet).read_metrics()
    assert all(line["reused_trees"] == 0 and line["search_seconds"] > 0 for line in lines if "reused_trees" in line)


def test_a_checkpoint_counts_once_the_round_after_it_has_its_trees(tmp_path: Path) -> None:
    """The user has asked to stop: what was searched before is whole or isn't."""
    source: Any = object.__new__(FleetSource)
    source.stop, source.journal = (lambda: True), {"3/a": 1, "3/b": 2}
    source.tasks_of_round = lambda number: {f"{number}/{name}": None for name in "ab"}
    assert source.settle()
    done: Future[tuple[int, float]] = Future()
    done.set_result((2, 1.0))
    source._early = (3, done)
    assert source.settle() and source.settle()
    del source.journal["3/b"]
    assert not source.settle()


@pytest.mark.parametrize("whole", [True, False])
def test_a_checkpoint_without_those_trees_is_not_sealed(tmp_path: Path, whole: bool) -> None:
    raw = a_training(tmp_path, 2)
    run = Run(load_config(overrides=[raw]))
    run.folder, run.journal, run.tasks = RunFolder(tmp_path), Journal(tmp_path / "journal.jsonl"), []
    run.validation, run.began = [], 0.0
    checkpoint = tmp_path / "checkpoint-2"
    checkpoint.mkdir()
    watch = _RoundWatch(run)
    watch.settle = lambda: whole
    watch.on_save(None, SimpleNamespace(global_step=2), None)
    assert (checkpoint / "alphazero.json").exists() == whole


@pytest.mark.parametrize("workers", [[], ["--workers", "2"]])
def test_a_dry_run_refuses_what_lagging_actors_can_not_do(
    workers: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    lagged = ["--set", "train.lag=1", "--set", "train.adapter=lora"]
    assert main(["train", "--student", "embedded", "--dry-run", *workers, *lagged]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "set train.lag=0" in said and ("leave --workers out" in said) == bool(workers)


def test_lag_needs_actors_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"train\.lag is 1 and no actors"):
        Run(load_config(overrides=[lagging(a_training(tmp_path, 2), tmp_path)])).load()


@pytest.mark.slow
@pytest.mark.parametrize("lag", [0])
def test_a_killed_fleet_and_trainer_end_with_the_same_weights(
    tmp_path: Path, cluster: tuple[str, int], lag: int
) -> None:
    """Search actors, engine actors and the trainer die at random moments."""
    address, root = cluster
    raw = a_training(tmp_path / "fleet", 6)
    raw["train"]["lag"] = lag
    whole = {**raw, "train": {**raw["train"], "checkpoint_dir": str(tmp_path / "alone")}}
    alone = train(whole, (lag, address)) if lag else train(whole)
    (tmp_path / "run.yaml").write_text(json.dumps(raw))
    run, chance, kills = RunFolder(tmp_path / "fleet" / "run-001"), random.Random(5), 0

    def trees() -> int:
        return run.journal.read_bytes().count(b"\n") if run.journal.exists() else 0

    for life in range(4):
        flags = ["--resume"] if run.card.exists() else ["--config", str(tmp_path / "run.yaml")]
        flags += ["--out", str(tmp_path / "fleet"), "--workers", "2", "--address", address, "--quiet"]
        command = [sys.executable, str(Path(__file__).parents[1] / "train_vllm.py"), *flags]
        trainer, had = subprocess.Popen(command, stderr=subprocess.PIPE, text=True), trees()
        for _ in range(2):
            had = min(had + chance.randint(1, 3), 24)
            wait_for(lambda wanted=had: trees() >= wanted or trainer.poll() is not None, 400)
            found = actors(root, chance.choice(("SearchHost", "EngineHost")))
            if found and trainer.poll() is None:
                kill(chance.choice(found))
                kills += 1
        if life < 3 and trainer.poll() is None:
            wait_for(lambda wanted=had: trees() > wanted or trainer.poll() is not None, 400)
            trainer.kill()
            kills += 1
        assert trainer.wait(400) in (0, -signal.SIGKILL), trainer.communicate()[1]
        wait_for(lambda: not actors(root, "SearchHost") and not actors(root, "EngineHost"), 60)
    assert kills >= 6
    check_same(alone, run.path)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ({"engine": {"backend": "vllm"}}, "engine.backend is vllm"),
        ({"train": {"adapter": "lora"}}, "train.adapter is lora"),
        ({"teachers": {"tier": "free"}}, "teachers are remote"),
    ],
)
def test_what_actors_cannot_search_is_one_sentence(override: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=f"--workers is 2 and {words}"):
        check_workers(load_config(overrides=[{"student": "embedded"}, override]), Workers(2))


def test_ranks_and_actors_do_not_go_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="--workers is 3 and 2 processes train"):
        check_workers(load_config(overrides=[{"student": "embedded"}]), Workers(3))


def test_a_question_that_always_fails_ends_the_round_in_a_sentence(tmp_path: Path) -> None:
    """One process of `sample`'s stands in for the actors: a round without all of its trees isn't trained on."""
    job = a_job(2, poison={"0/" + keys_of(a_job(2))[1]: "raise"}, attempts=2)
    host = load_host(job.config, None)
    source = FleetSource(
        host.student, job.config, Collector(host.student, job.config, None), job.tasks, [],
        Journal(tmp_path / "journal.jsonl"), size=RunSize.of(job.config), on_tree=lambda tree: None,
        on_round=lambda stats: None, stop=lambda: False,
    )  # fmt: skip
    source.pool = LocalPool(host, job.config, make_collector=job.make_collector)
    with pytest.raises(
        EngineError, match=r"1 questions of round 0 have no tree .* failed 2 times: EngineError: poison"
    ):
        source.grpo(0)
    assert [record["key"] for record in read(tmp_path / "journal.jsonl")] == ["0/" + keys_of(job)[0]]
