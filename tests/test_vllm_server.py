"""What the vLLM backends do without vLLM: requests and answers, cuts and costs, folders of weights, refusals.

Their contract with the real vLLM is tests/test_vllm.py.
"""

from __future__ import annotations

import asyncio
import copy
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from alphazero_llm_trainer.cli.main import main
from alphazero_llm_trainer.config.load import load_config
from alphazero_llm_trainer.config.sections import LoraConfig, StudentModel
from alphazero_llm_trainer.engine.background import LoopThread
from alphazero_llm_trainer.engine.completions import Answer, Ask, CompletionEngine, sample_seed
from alphazero_llm_trainer.engine.device import device_memory
from alphazero_llm_trainer.engine.inprocess import InProcessEngine
from alphazero_llm_trainer.engine.protocol import Engine, Generated, GenerateRequest
from alphazero_llm_trainer.engine.vllm_launch import Launch, launch_for
from alphazero_llm_trainer.engine.vllm_server import body, parse
from alphazero_llm_trainer.engine.vllm_weights import has_adapter, write_adapter, write_model
from alphazero_llm_trainer.errors import ConfigError, EngineError
from alphazero_llm_trainer.policy.backend import SERVED, check_numerics, trainer_logprobs
from alphazero_llm_trainer.policy.student import QUESTION, load_student
from alphazero_llm_trainer.training.models import make_trainable

from completion_server import CONFIG, CompletionServer  # isort: skip
from support import EOS, LINE_ENDS, STEP_ENDS, tiny_engine, tiny_llama  # isort: skip

PROMPT = (7, 8, 9, 10)
TINY = StudentModel(path="tiny", lora=LoraConfig(rank=4, alpha=8, dropout=0.0))


class LocalCompletions(CompletionEngine):
    """A backend that completes prompts with a real in-process engine: what vLLM does, one completion at a time."""

    def __init__(self, inner: InProcessEngine) -> None:
        context = inner.capabilities.max_context
        super().__init__(inner.model, eos_id=EOS, eos_ids=frozenset({EOS}), step_ends=STEP_ENDS, context=context - 1)
        self.inner, self.thread, self.facts = inner, LoopThread("local"), {"backend": "local"}
        self.pushed = 0

    async def _complete(self, ask: Ask, base: bool = False) -> Answer:
        scores: tuple[float | None, ...] = ()
        if ask.scored:
            [own] = await self.inner.score([(ask.prompt_ids[:1], ask.prompt_ids[1:])])
            scores = (None, *own)
        request = GenerateRequest(
            ask.prompt_ids,
            max_new_tokens=ask.max_new_tokens,
            temperature=ask.temperature,
            seed=ask.seed,
            stop_ids=frozenset(ask.stop_ids),
            top_k=ask.top_k,
        )
        [[one]] = await self.inner.generate([request])
        return Answer(one.token_ids, one.logprobs, one.top or (), one.cached_tokens, scores)

    async def _push(self) -> None:
        self.pushed += 1


@pytest.fixture
def local() -> Iterator[LocalCompletions]:
    engine = LocalCompletions(tiny_engine(tiny_llama()))
    yield engine
    engine.thread.close()


def generate(engine: Any, *requests: GenerateRequest) -> list[list[Generated]]:
    return asyncio.run(engine.generate(list(requests)))


# -- the engine over completions ------------------------------------------------------------------------------------------


def test_it_is_an_engine_that_says_what_the_in_process_one_says(local: LocalCompletions) -> None:
    own = tiny_engine(tiny_llama())
    assert isinstance(local, Engine) and isinstance(own, Engine)
    rng = Random(1)
    prompts = [tuple(rng.randrange(5, 60) for _ in range(rng.randint(1, 9))) for _ in range(12)]
    for lines in (None, 1, 2, 4):
        requests = [
            GenerateRequest(p, n=2, max_new_tokens=40, temperature=0.0, max_steps=lines, top_k=3) for p in prompts
        ]
        mine, theirs = generate(own, *requests), generate(local, *requests)
        for a, b in zip(chain(*mine), chain(*theirs), strict=True):
            assert (a.token_ids, a.finish) == (b.token_ids, b.finish)
            assert a.logprobs == pytest.approx(b.logprobs, abs=1e-5)
            assert a.top is not None and b.top is not None and len(b.top) == len(b.token_ids)
    pairs = [(p, (9, 10, 11)) for p in prompts]
    for a, b in zip(*(asyncio.run(engine.score(pairs)) for engine in (own, local)), strict=True):
        assert a == pytest.approx(b, abs=1e-5)
    mine_top, their_top = (asyncio.run(engine.next_token_topk(prompts, 4)) for engine in (own, local))
    assert [[token for token, _ in row] for row in mine_top] == [[token for token, _ in row] for row in their_top]


def test_samples_depend_on_seed_and_index_and_lines_cut_them(local: LocalCompletions) -> None:
    def drawn(n: int, seed: int, lines: int | None = None) -> list[Generated]:
        return generate(local, GenerateRequest(PROMPT, n=n, max_new_tokens=30, seed=seed, max_steps=lines))[0]

    free = drawn(30, 1)
    assert len({one.token_ids for one in free}) == 30
    assert [one.token_ids for one in drawn(3, 1)] == [one.token_ids for one in free[:3]]
    seen = set()
    for lines in (1, 2, 3):
        for one, whole in zip(drawn(30, 1, lines), free, strict=True):
            ends = sum(token in LINE_ENDS for token in one.token_ids)
            assert whole.token_ids[: len(one.token_ids)] == one.token_ids and len(one.logprobs) == len(one.token_ids)
            assert ends <= lines and (one.finish == "stop") == (ends == lines)
            seen.add(one.finish)
    assert seen == {"eos", "stop", "length"}


def test_cost_counts_what_was_drawn(local: LocalCompletions) -> None:
    [free] = generate(local, GenerateRequest(PROMPT, n=8, max_new_tokens=30, seed=1))
    before = copy.copy(local.cost)
    [cut] = generate(local, GenerateRequest(PROMPT, n=8, max_new_tokens=30, seed=1, max_steps=2))
    # The tokens after the second line were drawn all the same.
    assert sum(len(one.token_ids) for one in cut) < sum(len(one.token_ids) for one in free)
    assert local.cost.sampled_tokens - before.sampled_tokens == sum(len(one.token_ids) for one in free)
    assert local.cost.calls - before.calls == 1 and local.cost.cached_tokens - before.cached_tokens == len(PROMPT)
    asyncio.run(local.score([(PROMPT, (5, 6)), (PROMPT, ())]))
    assert local.cost.scored_tokens == 2 and local.cost.calls == before.calls + 3


def test_set_policy_waits_for_nothing_and_takes_no_weights_under_way(local: LocalCompletions) -> None:
    async def both() -> None:
        under_way = asyncio.ensure_future(
            local.generate([GenerateRequest(PROMPT, n=64, max_new_tokens=200, temperature=3.0)])
        )
        await asyncio.sleep(0.01)
        with pytest.raises(EngineError, match="under way"):
            await asyncio.to_thread(local.set_policy, None, 3)
        under_way.cancel()

    asyncio.run(both())
    local.set_policy(None, 4)
    assert (local.version, local.pushed) == (4, 1)


def test_refusals(local: LocalCompletions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(local, "inner")  # nothing of this gets to the backend
    ways = [
        local.generate([GenerateRequest((5, 60))]),
        local.score([(PROMPT, (60,))]),
        local.next_token_topk([(60,)], 2),
    ]
    for way in ways:
        with pytest.raises(EngineError, match="token id 60 is not one of the model's 60 tokens"):
            asyncio.run(way)
    with pytest.raises(EngineError, match="value head"):
        asyncio.run(local.values([PROMPT]))
    with pytest.raises(EngineError, match="value head"):
        local.set_value(torch.zeros(1))
    local.set_value(None)


def test_the_thread_takes_no_interrupts() -> None:
    thread = LoopThread("test")

    async def mask() -> set[Any]:
        return set(signal.pthread_sigmask(signal.SIG_BLOCK, []))

    assert signal.SIGINT in thread.wait(mask())
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    thread.close()


# -- requests and answers -------------------------------------------------------------------------------------------------


def test_the_request_says_everything_that_defaults_could_change() -> None:
    ask = Ask(PROMPT, 12, 0.7, sample_seed(3, 0), (1, 2), top_k=4)
    sent = body(ask, "student")
    assert sent["prompt"] == list(PROMPT) and sent["stop_token_ids"] == [1, 2] and sent["logprobs"] == 4
    assert (sent["top_p"], sent["top_k"], sent["min_p"], sent["repetition_penalty"]) == (1.0, 0, 0.0, 1.0)
    assert (sent["presence_penalty"], sent["frequency_penalty"], sent["ignore_eos"]) == (0.0, 0.0, True)
    assert sent["seed"] == ask.seed and "prompt_logprobs" not in sent
    assert json.loads(json.dumps(sent)) == sent
    assert body(Ask(PROMPT, 12, 0.7, 1, top_p=0.9), "student")["top_p"] == 0.9
    greedy = body(Ask(PROMPT, 1, 0.0, 5, scored=True), "student")
    assert "seed" not in greedy and greedy["prompt_logprobs"] == 0


# As vLLM 0.32 answers; the numbers are made up.
RECORDED = {
    "choices": [
        {
            "index": 0,
            "text": "a b",
            "logprobs": {
                "tokens": ["token_id:11", "token_id:1"],
                "token_logprobs": [-0.5, -1.25],
                "top_logprobs": [
                    {"token_id:11": -0.5, "token_id:12": -1.5, "token_id:13": -2.5},
                    {"token_id:1": -1.25, "token_id:12": -0.75, "token_id:9": -0.75},
                ],
                "text_offset": [0, 1],
            },
            "finish_reason": "stop",
            "stop_reason": 1,
            "prompt_logprobs": [
                None,
                {"8": {"logprob": -3.0, "rank": 4, "decoded_token": "x"}},
                {"9": {"logprob": -0.25, "rank": 1, "decoded_token": "y"}},
                {"10": {"logprob": -1.0, "rank": 1, "decoded_token": "z"}},
            ],
            "token_ids": [11, 1],
        }
    ],
    "usage": {"prompt_tokens": 4, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 3}},
}


def test_an_answer_is_read() -> None:
    answer = parse(RECORDED, Ask(PROMPT, 12, 1.0, 0, top_k=2, scored=True))
    assert (answer.token_ids, answer.logprobs, answer.cached) == ((11, 1), (-0.5, -1.25), 3)
    # Likeliest first, of equal ones the lower token; the drawn one is not among them where it is less likely.
    assert answer.top == (((11, -0.5), (12, -1.5)), ((9, -0.75), (12, -0.75)))
    assert answer.scores == (None, -3.0, -0.25, -1.0)
    broken = copy.deepcopy(RECORDED)
    broken["choices"][0].pop("token_ids")  # type: ignore[index,attr-defined]
    with pytest.raises(EngineError, match="lacks token ids"):
        parse(broken, Ask(PROMPT, 12, 1.0, 0))


# -- weights --------------------------------------------------------------------------------------------------------------


def test_an_adapters_folder_is_pefts(tmp_path: Path) -> None:
    from peft import PeftModel

    model = tiny_llama()
    base = copy.deepcopy(model)
    assert not has_adapter(model)
    trained = make_trainable(model, TINY, "lora")
    with torch.no_grad():
        for name, parameter in trained.named_parameters():
            if ".lora_" in name:
                parameter.add_(0.1)
    assert has_adapter(model)
    write_adapter(model, tmp_path / "one")
    loaded = PeftModel.from_pretrained(base, str(tmp_path / "one"))
    ids = torch.tensor([PROMPT])
    trained.eval()
    assert torch.equal(loaded.eval()(input_ids=ids).logits, trained(input_ids=ids).logits)


def test_a_models_folder_has_an_output_layer_of_its_own(tmp_path: Path) -> None:
    model = load_student(load_config(overrides=["student=embedded"])).model
    assert model.config.tie_word_embeddings
    write_model(model, tmp_path / "one")
    loaded: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "one")
    assert not loaded.config.tie_word_embeddings and model.config.tie_word_embeddings
    ids = torch.tensor([[5, 6, 7]])
    assert torch.equal(loaded(input_ids=ids).logits, model(input_ids=ids).logits)


# -- starts ---------------------------------------------------------------------------------------------------------------


def launch(*overrides: str, spec: StudentModel = TINY, adapter: str = "full") -> Launch:
    config = load_config(overrides=["student=embedded", *overrides])
    return launch_for(tiny_llama(), "tiny", spec, adapter, config.engine)


def test_how_vllm_is_started() -> None:
    lora = launch("engine.max_context=100", adapter="lora").arguments
    assert lora["max_lora_rank"] == 8 and lora["enable_lora"] and "lm_head" not in lora["lora_target_modules"]
    full = launch("engine.max_context=100").arguments
    assert "enable_lora" not in full and full["max_model_len"] == 101 and full["model"] == "tiny"
    assert full["generation_config"] == "vllm" and full["logprobs_mode"] == "raw_logprobs"
    if not torch.cuda.is_available():
        # The cache limits of the in-process engine: 2 layers' keys and values, fp32.
        assert (
            full["kv_cache_memory_bytes"] <= load_config().engine.cache(device_memory()[2])
            and full["block_size"] % 32 == 0
        )
        with pytest.raises(ConfigError, match="4-bit"):
            launch(spec=TINY.model_copy(update={"quantization": "nf4"}))
    with pytest.raises(ConfigError, match="up to rank 512"):
        launch(spec=TINY.model_copy(update={"lora": LoraConfig(rank=1000)}), adapter="lora")


def test_a_server_that_is_not_there() -> None:
    common = ["student=embedded", "engine.backend=vllm-server", "engine.vllm.base_url=http://127.0.0.1:9/v1"]
    with pytest.raises(EngineError, match=r"can't be reached.*engine\.vllm\.base_url"):
        load_student(load_config(overrides=common))
    with pytest.raises(ConfigError, match="adapter_dir"):
        load_student(load_config(overrides=[*common, "engine.vllm.adapter_dir=/no/such/folder"]))


@pytest.fixture
def server() -> Iterator[CompletionServer]:
    found = CompletionServer()
    yield found
    found.close()


def test_what_is_no_vllm_server_is_one_sentence(server: CompletionServer) -> None:
    overrides = ["student=embedded", "engine.backend=vllm-server", f"engine.vllm.base_url={server.url}/other"]
    with pytest.raises(EngineError, match="with 404") as caught:
        load_student(load_config(overrides=overrides))
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_training_over_a_server_never_mixes_versions_and_leaves_nothing_behind(
    server: CompletionServer, tmp_path: Path
) -> None:
    """Three rounds of GRPO with an adapter, then `eval` in a process of its own, which doesn't close its engine."""
    overrides = [*CONFIG, "engine.backend=vllm-server", f"engine.vllm.base_url={server.url}", "train.adapter=lora"]
    # Two minibatches a round: the trainer recomputes what was sampled.
    rounds = ["models.embedded.lora.dropout=0.0", "train.questions_per_round=12", "train.demonstrations=50"]
    rounds += ["train.optimizer.epochs=1", "train.optimizer.warmup=1", "train.optimizer.learning_rate=0.01"]
    rounds += ["train.keep_best=false", "train.validation_size=12"]
    command = ["train", "--use-grpo", "-n", "36", "--save-every", "12", "--eval-size", "12", "-q"]
    command += ["--checkpoint-dir", str(tmp_path)]
    assert main([*command, *(word for key in (*overrides, *rounds) for word in ("--set", key))]) == 0
    assert len(set(server.answered) - {"student"}) >= 3 and set(server.students) == {"student"}
    run = tmp_path / "run-001"
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    # What was sampled is what the trainer computes with the weights of that round.
    gaps = [line["engine_logprob_gap"] for line in lines if "engine_logprob_gap" in line]
    assert len(gaps) == 3 and max(gaps) < 1e-4
    [adapter] = run.glob("adapter*")
    command = [sys.executable, "-m", "alphazero_llm_trainer", "eval", "--model", str(adapter), "--num", "4"]
    command += ["--methods", "greedy", "--out", str(tmp_path / "eval"), "-q"]
    command += [word for key in overrides for word in ("--set", key)]
    assert subprocess.run(command, check=False).returncode == 0
    assert set(server.students) == {"student"}


# -- numerics -------------------------------------------------------------------------------------------------------------


def test_numerics_are_measured_and_refused() -> None:
    student: Any = load_student(load_config(overrides=["student=embedded"]))
    facts = check_numerics(student.engine, student.model, student.prompt_ids(QUESTION), SERVED)
    assert facts["tokens"] > 50 and 0 < facts["sampled_max"] < 1e-4 and facts["scored_mean"] <= facts["scored_max"]
    student.engine.facts = {"backend": "inprocess"}
    with pytest.raises(EngineError, match="differ from the trainer's forward"):
        check_numerics(student.engine, student.model, student.prompt_ids(QUESTION), replace(SERVED, gap_mean=1e-12))
    prompt = student.prompt_ids("How many apples are in 3 boxes of 14 apples?")
    with torch.no_grad():
        student.model.get_input_embeddings().weight.mul_(float("nan"))
    assert trainer_logprobs(student.model, prompt, (5,))[0] != 0
    with pytest.raises(EngineError, match="nan"):
        check_numerics(student.engine, student.model, student.prompt_ids(QUESTION), SERVED)
