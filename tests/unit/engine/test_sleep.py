"""One card for trainer and vLLM: the order of calls, by a vLLM that records them. No GPU shows more
here.
"""

import asyncio
import sys
from types import ModuleType, SimpleNamespace

import torch

from alphazero_llm_trainer.config.load import load_config
from alphazero_llm_trainer.engine import vllm_engine
from alphazero_llm_trainer.engine.protocol import GenerateRequest
from alphazero_llm_trainer.engine.vllm_launch import Launch
from alphazero_llm_trainer.eval.greedy import answer_tasks
from alphazero_llm_trainer.learning.models import make_trainable
from alphazero_llm_trainer.policy import backend
from alphazero_llm_trainer.policy.adapters import POLICY
from alphazero_llm_trainer.policy.student import Student, load_student
from alphazero_llm_trainer.problems.load import load_tasks


class RecordingVllm:
    """vLLM's AsyncLLM as far as it is called: it answers with the end token."""

    errored = False

    def __init__(self, calls, eos_id):
        self.calls, self.eos_id = calls, eos_id

    def __getattr__(self, name):
        async def call(*words, **more):
            told = [str(word) for word in (*words, *more.values()) if isinstance(word, str | int)]
            self.calls.append(" ".join([name, *told]))

        return call

    async def generate(self, *words, **more):
        self.calls.append("generate")
        row = {self.eos_id: SimpleNamespace(logprob=-0.5)}
        completion = SimpleNamespace(token_ids=[self.eos_id], logprobs=[row], finish_reason="stop")
        yield SimpleNamespace(outputs=[completion], num_cached_tokens=0)

    def shutdown(self, timeout):
        self.calls.append("shutdown")


def modules(client):
    """What `VllmEngine` imports of vLLM."""
    names = {
        "vllm": {"SamplingParams": SimpleNamespace, "__version__": "0"},
        "vllm.engine.arg_utils": {"AsyncEngineArgs": SimpleNamespace},
        "vllm.exceptions": {"VLLMValidationError": KeyError},
        "vllm.lora.request": {
            "LoRARequest": lambda *words: SimpleNamespace(lora_int_id=words[1], lora_path=words[2])
        },
        "vllm.sampling_params": {"RequestOutputKind": SimpleNamespace(FINAL_ONLY=0, CUMULATIVE=1)},
        "vllm.v1.engine.async_llm": {
            "AsyncLLM": SimpleNamespace(from_engine_args=lambda args: client)
        },
        "vllm.v1.engine.exceptions": {"EngineDeadError": KeyError, "EngineGenerateError": KeyError},
    }
    made = {}
    for name, parts in names.items():
        made[name] = ModuleType(name)
        vars(made[name]).update(parts)
    return made


def test_trainer_and_vllm_take_turns_on_one_card(monkeypatch):
    local = load_student(load_config(overrides=["student=embedded"]))
    calls = []
    client = RecordingVllm(calls, local.engine.eos_id)
    for name, module in modules(client).items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: calls.append("empty_cache"))
    monkeypatch.setattr(vllm_engine, "write_adapter", lambda model, folder: calls.append("write"))
    monkeypatch.setattr(backend, "check_numerics", lambda *words: calls.append("numerics") or {})
    make_trainable(local.model, local.spec, "lora")
    launch = Launch({"model": "m"}, 512, lora=True, reloads=False, sleeps=True)
    ends = {
        "eos_id": local.engine.eos_id,
        "eos_ids": local.engine.eos_ids,
        "step_ends": local.engine.step_ends,
    }
    engine = vllm_engine.VllmEngine(local.model, launch=launch, **ends)
    student = Student("m", local.model, local.tokenizer, engine, local.spec)
    try:
        engine.facts["numerics"] = {}
        asyncio.run(engine.generate([GenerateRequest((5,), max_new_tokens=4)]))
        engine.sleep()
        calls.append("updates")
        engine.version = 1
        answer_tasks(student, load_tasks("embedded", "validation", 1), max_tokens=4)
    finally:
        engine.close()
    assert calls == [
        "generate", "reset_prefix_cache", "sleep 1", "updates", "empty_cache", "wake_up", "write",
        "add_lora", "reset_prefix_cache", "numerics", "generate", "reset_prefix_cache",
        "reset_prefix_cache", "sleep 1", "shutdown",
    ]  # fmt: skip
    assert POLICY in local.model.peft_config
