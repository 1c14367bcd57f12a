"""What the vLLM backends do without vLLM: requests and answers, folders of weights, starts and
refusals.

What they promise as engines is in tests/contract/test_engine.py, their contract with the real vLLM
in tests/contract/test_vllm.py.
"""

import copy
import json
import signal
import subprocess
import sys

import pytest
import torch
from tables import read_jsonl, table
from transformers import AutoModelForCausalLM

from alphazero_llm_trainer.cli.main import main
from alphazero_llm_trainer.config.load import load_config
from alphazero_llm_trainer.config.sections import LoraConfig, StudentModel
from alphazero_llm_trainer.engine.background import LoopThread
from alphazero_llm_trainer.engine.completions import Ask, sample_seed
from alphazero_llm_trainer.engine.device import device_memory
from alphazero_llm_trainer.engine.vllm_launch import launch_for
from alphazero_llm_trainer.engine.vllm_server import parse_answer, request_body
from alphazero_llm_trainer.engine.vllm_weights import has_adapter, write_adapter, write_model
from alphazero_llm_trainer.errors import ConfigError, EngineError
from alphazero_llm_trainer.learning.models import make_trainable
from alphazero_llm_trainer.policy import backend
from alphazero_llm_trainer.policy.backend import check_numerics, check_update, trainer_logprobs
from alphazero_llm_trainer.policy.student import QUESTION, load_student

from completion_server import CONFIG, CompletionServer  # isort: skip
from support import tiny_llama  # isort: skip

PROMPT = (7, 8, 9, 10)
TINY = StudentModel(path="tiny", lora=LoraConfig(rank=4, alpha=8, dropout=0.0))


def test_the_thread_takes_no_interrupts():
    thread = LoopThread("test")

    async def mask():
        return set(signal.pthread_sigmask(signal.SIG_BLOCK, []))

    assert signal.SIGINT in thread.wait(mask())
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    thread.close()


# -- requests and answers --------------------------------------------------------------------------


def test_the_request_says_everything_that_defaults_could_change():
    ask = Ask(PROMPT, 12, 0.7, sample_seed(3, 0), (1, 2), top_k=4)
    sent = request_body(ask, "student")
    assert table("vllm")["request"].items() <= sent.items()
    assert sent["seed"] == ask.seed and "prompt_logprobs" not in sent
    assert json.loads(json.dumps(sent)) == sent
    assert request_body(Ask(PROMPT, 12, 0.7, 1, top_p=0.9), "student")["top_p"] == 0.9
    greedy = request_body(Ask(PROMPT, 1, 0.0, 5, scored=True), "student")
    assert "seed" not in greedy and greedy["prompt_logprobs"] == 0


RECORDED = json.loads(table("vllm")["answer"])


def test_an_answer_is_read():
    answer = parse_answer(RECORDED, Ask(PROMPT, 12, 1.0, 0, top_k=2, scored=True))
    assert (answer.token_ids, answer.logprobs, answer.cached) == ((11, 1), (-0.5, -1.25), 3)
    # Likeliest first, of equal ones the lower token; the drawn one is not among them where it is
    # less likely.
    assert answer.top == (((11, -0.5), (12, -1.5)), ((9, -0.75), (12, -0.75)))
    assert answer.scores == (None, -3.0, -0.25, -1.0)
    broken = copy.deepcopy(RECORDED)
    broken["choices"][0].pop("token_ids")
    with pytest.raises(EngineError, match="lacks token ids"):
        parse_answer(broken, Ask(PROMPT, 12, 1.0, 0))


# -- weights ---------------------------------------------------------------------------------------


def test_an_adapters_folder_is_pefts(tmp_path):
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


def test_a_models_folder_has_an_output_layer_of_its_own(tmp_path):
    model = load_student(load_config(overrides=["student=embedded"])).model
    assert model.config.tie_word_embeddings
    write_model(model, tmp_path / "one")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "one")
    assert not loaded.config.tie_word_embeddings and model.config.tie_word_embeddings
    ids = torch.tensor([[5, 6, 7]])
    assert torch.equal(loaded(input_ids=ids).logits, model(input_ids=ids).logits)


# -- starts ----------------------------------------------------------------------------------------


def launch(*overrides, spec=TINY, adapter="full"):
    config = load_config(overrides=["student=embedded", *overrides])
    return launch_for(tiny_llama(), "tiny", spec, adapter, config.engine)


def test_how_vllm_is_started():
    lora = launch("engine.max_context=100", adapter="lora").arguments
    assert (
        lora["max_lora_rank"] == 8
        and lora["enable_lora"]
        and "lm_head" not in lora["lora_target_modules"]
    )
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
            launch(spec=TINY.with_values(quantization="nf4"))
    with pytest.raises(ConfigError, match="up to rank 512"):
        launch(spec=TINY.with_values(lora={"rank": 1000}), adapter="lora")


def test_a_server_that_is_not_there():
    common = [
        "student=embedded",
        "engine.backend=vllm-server",
        "engine.vllm.base_url=http://127.0.0.1:9/v1",
    ]
    with pytest.raises(EngineError, match=r"can't be reached.*engine\.vllm\.base_url"):
        load_student(load_config(overrides=common))
    with pytest.raises(ConfigError, match="adapter_dir"):
        load_student(load_config(overrides=[*common, "engine.vllm.adapter_dir=/no/such/folder"]))


@pytest.fixture
def server():
    found = CompletionServer()
    yield found
    found.close()


def test_what_is_no_vllm_server_is_one_sentence(server):
    overrides = [
        "student=embedded",
        "engine.backend=vllm-server",
        f"engine.vllm.base_url={server.url}/other",
    ]
    with pytest.raises(EngineError, match="with 404") as caught:
        load_student(load_config(overrides=overrides))
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_training_over_a_server_never_mixes_versions_and_leaves_nothing_behind(server, tmp_path):
    """Three rounds of GRPO with an adapter, then `eval` in a process of its own, which doesn't
    close its engine.
    """
    far = f"engine.backend=vllm-server engine.vllm.base_url={server.url} train.adapter=lora"
    overrides = [*CONFIG, *far.split()]
    # Two minibatches a round: the trainer recomputes what was sampled.
    rounds = """
        models.embedded.lora.dropout=0.0 train.questions_per_round=12 train.demonstrations=50
        train.optimizer.epochs=1 train.optimizer.learning_rate=0.01
        train.keep_best=false train.validation_size=12
    """.split()
    command = "train --use-grpo -n 36 --save-every 12 --eval-size 12 -q".split()
    command += ["--checkpoint-dir", str(tmp_path)]
    assert (
        main([*command, *(word for key in (*overrides, *rounds) for word in ("--set", key))]) == 0
    )
    assert len(set(server.answered) - {"student"}) >= 3 and set(server.students) == {"student"}
    run = tmp_path / "run-001"
    lines = read_jsonl(run / "metrics.jsonl")
    # What was sampled is what the trainer computes with the weights of that round.
    gaps = [line["engine_logprob_gap"] for line in lines if "engine_logprob_gap" in line]
    assert len(gaps) == 3 and max(gaps) < 1e-4
    [adapter] = run.glob("adapter*")
    command = [sys.executable, *f"-m alphazero_llm_trainer eval --model {adapter} --num 4".split()]
    command += f"--methods greedy --out {tmp_path / 'eval'} -q".split()
    command += [word for key in overrides for word in ("--set", key)]
    assert subprocess.run(command, check=False).returncode == 0
    assert set(server.students) == {"student"}


# -- numerics --------------------------------------------------------------------------------------


def test_numerics_are_measured_and_refused(monkeypatch):
    student = load_student(load_config(overrides=["student=embedded"]))
    facts = check_numerics(student.engine, student.model, student.prompt_ids(QUESTION))
    assert (
        facts["tokens"] > 50
        and 0 < facts["sampled_max"] < 1e-4
        and facts["scored_mean"] <= facts["scored_max"]
    )
    student.engine.facts = {"backend": "inprocess"}
    with (
        monkeypatch.context() as strict,
        pytest.raises(EngineError, match="differ from the trainer's forward"),
    ):
        strict.setattr(backend, "GAP_MEAN", 1e-12)
        check_numerics(student.engine, student.model, student.prompt_ids(QUESTION))
    prompt = student.prompt_ids("How many apples are in 3 boxes of 14 apples?")
    check_update(student.engine, student.model, prompt)  # the start had nothing to compare
    assert "numerics" not in student.engine.facts
    student.engine.facts["numerics"] = facts
    check_update(student.engine, student.model, prompt)
    assert facts["after_updates"]["tokens"] == facts["tokens"]
    with torch.no_grad():  # the engine keeps the weights that it had
        student.model.get_input_embeddings().weight.mul_(1.5)
    with pytest.raises(EngineError, match="with the weights of round 0"):
        check_update(student.engine, student.model, prompt)
    with torch.no_grad():
        student.model.get_input_embeddings().weight.mul_(float("nan"))
    assert trainer_logprobs(student.model, prompt, (5,))[0] != 0
    with pytest.raises(EngineError, match="nan"):
        check_numerics(student.engine, student.model, student.prompt_ids(QUESTION))
