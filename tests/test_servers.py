"""Several vLLM servers: prompts go where their beginning was read, a server that dies loses nothing, versions never mix."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from alphazero_llm_trainer.cli.main import main
from alphazero_llm_trainer.collect import Collector
from alphazero_llm_trainer.config.load import load_config
from alphazero_llm_trainer.config.sections import LoraConfig
from alphazero_llm_trainer.engine import vllm_server
from alphazero_llm_trainer.engine.protocol import GenerateRequest
from alphazero_llm_trainer.engine.server_routes import BLOCK, SLACK, Routes
from alphazero_llm_trainer.errors import ConfigError, EngineError
from alphazero_llm_trainer.policy.student import Student, load_student
from alphazero_llm_trainer.problems.load import load_tasks
from alphazero_llm_trainer.training.models import make_trainable, save_adapter

from completion_server import CONFIG, CompletionServer  # isort: skip

SERVED = ["--set", "engine.backend=vllm-server"]
TASKS = load_tasks("embedded", "train", 12, start=5000)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def servers() -> Iterator[list[CompletionServer]]:
    found = [CompletionServer(), CompletionServer()]
    yield found
    for server in found:
        server.close()


def flags(*servers: CompletionServer) -> list[str]:
    return ["engine.backend=vllm-server", f"engine.vllm.base_url=[{', '.join(one.url for one in servers)}]"]


def student_of(*servers: CompletionServer, **more: str) -> Student:
    return load_student(load_config(overrides=[*CONFIG, *flags(*servers)]))


def trees_of(student: Student) -> list[dict[str, Any]]:
    """Twelve training trees, by question."""
    config = load_config(overrides=[*CONFIG, "train.requeue_limit=0"])

    async def collected() -> list[dict[str, Any]]:
        found = [one async for one in Collector(student, config, None).collect([(t.problem.id, t) for t in TASKS], 7)]
        return [one.tree.to_dict() for one in sorted(found, key=lambda one: one.key)]

    return asyncio.run(collected())


# -- where a prompt goes ---------------------------------------------------------------------------------------------------


def test_a_prompt_goes_where_its_beginning_was_read() -> None:
    routes = Routes(["a", "b", "c"])
    system = tuple(range(2 * BLOCK))
    questions = [system + tuple(range(100 * at, 100 * at + 3 * BLOCK)) for at in range(1, 7)]
    first = []
    for question in questions:
        server = routes.choose(question)
        server.served += 1
        first.append(server)
    # The system prompt, which all share, sends nothing anywhere: the least busy one takes a new question.
    assert [first.count(server) for server in routes.servers] == [2, 2, 2]
    for turn in range(1, 4):
        longer = [question + tuple(range(7000, 7000 + turn * BLOCK)) for question in questions]
        assert [routes.choose(prompt) for prompt in longer] == first


def test_a_busy_server_and_one_that_is_down_are_passed_over() -> None:
    routes = Routes(["a", "b"])
    prompt = tuple(range(4 * BLOCK))
    home = routes.choose(prompt)
    [other] = [server for server in routes.servers if server is not home]
    home.busy, other.busy = SLACK + 2, 1
    assert routes.choose(prompt) is home
    home.busy += 1
    assert routes.choose(prompt) is other
    home.busy, home.up = 0, False
    assert routes.choose(prompt) is other and routes.choose(prompt + (5,) * BLOCK) is other
    home.up = True
    assert routes.choose(prompt) is other  # who took the prompt over has read it by now
    other.up = home.up = False
    with pytest.raises(EngineError, match="none of the 2 vLLM servers"):
        routes.choose(prompt)


# -- a server dies ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_search_goes_on_with_the_rest_and_takes_the_lost_one_back(
    servers: list[CompletionServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_server, "RETURN_SECONDS", 0.05)
    alone = student_of(servers[0])
    expected = trees_of(alone)
    alone.engine.close()
    student = student_of(*servers)
    engine: Any = student.engine
    before = [one.served for one in engine.routes.servers]
    assert trees_of(student) == expected
    shares = [one.served - first for one, first in zip(engine.routes.servers, before, strict=True)]
    assert min(shares) > 10
    # It dies in the middle of its answers: those that it owes are drawn again elsewhere, with the same seeds.
    servers[1].die_after = sum(servers[1].answered.values()) + 9
    assert trees_of(student) == expected
    lost = engine.routes.servers[1]
    assert lost.losses == 1 and not lost.up
    assert trees_of(student) == expected and lost.served < before[1] + shares[1] + 9
    servers[1].start()
    began = time.monotonic()
    while not lost.up and time.monotonic() - began < 20:
        time.sleep(0.05)
    served = lost.served
    assert trees_of(student) == expected and lost.served > served + 10
    engine.close()


def test_a_server_that_comes_back_with_another_model_is_not_taken_back_and_told_once(
    servers: list[CompletionServer], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(vllm_server, "RETURN_SECONDS", 0.05)
    student = student_of(*servers)
    engine: Any = student.engine
    expected = trees_of(student)
    servers[1].die_after = sum(servers[1].answered.values()) + 9
    with caplog.at_level("WARNING"):
        assert trees_of(student) == expected
        servers[1].name = "other"
        servers[1].start()
        began = time.monotonic()
        while "not taken back" not in caplog.text and time.monotonic() - began < 20:
            time.sleep(0.05)
        time.sleep(0.5)  # it is asked again some times
    told = [record.message for record in caplog.records if "the server at" in record.message]
    assert len(told) == 2 and "is left out" in told[0] and "two models, student and other" in told[1]
    assert not engine.routes.servers[1].up and trees_of(student) == expected
    engine.close()


def test_where_none_is_left_it_is_one_sentence(servers: list[CompletionServer]) -> None:
    student = student_of(*servers)
    for server in servers:
        server.stop()
    with pytest.raises(EngineError, match=r"none of the 2 vLLM servers is left.*can't be reached") as caught:
        asyncio.run(student.engine.generate([GenerateRequest((7, 8, 9))]))
    assert "\n" not in str(caught.value)
    student.engine.close()
    for server in servers:
        server.start()


@pytest.mark.parametrize("what", ["name", "weights", "missing"])
def test_servers_that_do_not_belong_together_are_refused(servers: list[CompletionServer], what: str) -> None:
    one, other = servers
    words = {"name": "two models, student and other", "weights": "has other weights", "missing": "can't be reached"}
    if what == "name":
        other.students = {"other": other.students.pop("student")}
        other.name = "other"
    elif what == "weights":
        with torch.no_grad():
            other.students["student"].model.get_input_embeddings().weight.mul_(1.5)
        other.students["student"].engine.set_policy(None, 1)
    else:
        other.stop()
    with pytest.raises(EngineError, match=words[what]) as caught:
        student_of(one, other)
    assert "\n" not in str(caught.value)
    if what == "missing":
        other.start()


def test_no_server_at_all_is_one_sentence() -> None:
    with pytest.raises(ConfigError, match=r"engine\.vllm\.base_url is \[\]: name a server"):
        load_config(overrides=["engine.vllm.base_url=[]"])


# -- training --------------------------------------------------------------------------------------------------------------


def trained(folder: Path, *servers: CompletionServer) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Three rounds of GRPO with an adapter: the run's card, and the line of each round."""
    overrides = [*CONFIG, *flags(*servers), "train.adapter=lora", "models.embedded.lora.dropout=0.0"]
    # Two minibatches a round: the trainer recomputes what was sampled.
    overrides += ["train.questions_per_round=12", "train.demonstrations=50", "train.grpo.epochs=1"]
    overrides += ["train.grpo.warmup_rounds=1", "train.grpo.learning_rate=0.01", "train.keep_best=false"]
    command = ["train", "--use-grpo", "-n", "36", "--save-every", "12", "--eval-size", "12", "-q"]
    command += ["--checkpoint-dir", str(folder)]
    for override in [*overrides, "train.validation_size=12"]:
        command += ["--set", override]
    assert main(command) == 0
    run = folder / "run-001"
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return json.loads((run / "run.json").read_text()), [line for line in lines if "mean_reward" in line]


@pytest.mark.slow
def test_training_loses_a_server_and_gets_it_back_and_versions_never_mix(
    servers: list[CompletionServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_server, "RETURN_SECONDS", 0.05)
    one, other = servers
    other.die_after = 30
    die = other.die

    def die_and_return() -> None:
        die()
        # Soon enough for a later round, as a new process without adapters.
        asyncio.run_coroutine_threadsafe(back(), other.thread.loop)

    async def back() -> None:
        await asyncio.sleep(1.0)
        other.start()

    monkeypatch.setattr(other, "die", die_and_return)
    card, rounds = trained(tmp_path, one, other)
    assert card["engine"]["base_url"] == [one.url, other.url]
    versions = set(one.answered) - {"student"}
    assert len(versions) >= 3 and set(other.answered) - {"student"} <= versions
    assert sum(other.answered.values()) > 60  # it came back
    # What was sampled is what the trainer computes with the weights of that round, wherever it was sampled.
    gaps = [line["engine_logprob_gap"] for line in rounds if "engine_logprob_gap" in line]
    assert len(gaps) == 3 and max(gaps) < 1e-4
    for server in servers:
        assert set(server.students) == {"student"}  # nothing of ours is left behind


@pytest.mark.slow
def test_a_command_that_ends_leaves_no_adapter_on_its_servers(servers: list[CompletionServer], tmp_path: Path) -> None:
    """In a process of its own, as a user runs it: `eval` doesn't close its engine."""
    spec = LoraConfig(rank=2, alpha=4, dropout=0.0, targets=("q_proj",))
    student = load_student(load_config(overrides=CONFIG))
    make_trainable(student.model, student.spec.model_copy(update={"lora": spec}), "lora")
    save_adapter(student.model, spec, tmp_path / "adapter")
    command = [sys.executable, "-m", "alphazero_llm_trainer", "eval", "--path", str(tmp_path / "adapter")]
    command += ["--num", "4", "--methods", "greedy", "--out", str(tmp_path / "eval"), "-q"]
    by_name = [flag.replace("127.0.0.1", "localhost") for flag in flags(*servers)]
    for override in [*CONFIG, *by_name, "train.adapter=lora"]:
        command += ["--set", override]
    assert subprocess.run(command, check=False).returncode == 0
    for server in servers:
        assert set(server.students) == {"student"}
    assert sum(count for server in servers for name, count in server.answered.items() if name != "student") >= 4
