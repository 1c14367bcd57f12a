"""A real tokenizer, chat template and model: SmolLM2-135M (see scripts/fetch_smollm2.py), and a cut
of it for speed.
"""

import asyncio

import pytest

from alphazero_llm_trainer.config.load import load_config
from alphazero_llm_trainer.engine.protocol import GenerateRequest, Limits
from alphazero_llm_trainer.policy.engine_steps import EngineSteps
from alphazero_llm_trainer.policy.student import load_student
from alphazero_llm_trainer.types import Opening, Problem

QUESTION = "Natalia sold 48 clips in April and half as many in May. How many did she sell in all?"


def student_of(folder, *overrides, system_prompt=None):
    config = load_config(overrides=["student=smollm2-135m", *overrides])
    return load_student(config, path=folder, opening=Opening(system_prompt))


def test_its_chat_template_and_end_token(smollm2_cut):
    student = student_of(smollm2_cut)
    text = student.tokenizer.decode(student.prompt_ids(QUESTION))
    assert text.count("<|im_start|>") == 3 and "You are a helpful AI assistant named SmolLM" in text
    assert text.endswith(f"<|im_start|>user\n{QUESTION}<|im_end|>\n<|im_start|>assistant\n")
    assert student.tokenizer.convert_ids_to_tokens(student.engine.eos_id) == "<|im_end|>"
    told = student_of(smollm2_cut, system_prompt="Answer briefly.")
    asked = told.tokenizer.decode(told.prompt_ids(QUESTION))
    assert "Answer briefly." in asked and "SmolLM" not in asked


@pytest.mark.parametrize("rule", ["line", "sentence", "thought"])
def test_steps_of_its_samples_are_its_own_tokens(rule, smollm2_cut):
    student = student_of(smollm2_cut, f"search.step={rule}")
    steps, problem = EngineSteps(student, 1.0), Problem("a/1", QUESTION, "gsm8k")
    found, cost = asyncio.run(steps.continuations(problem, [], 6, 3, Limits(4, 48)))
    prompt = student.prompt_ids(QUESTION)
    for continuation in found:
        assert 0 < len(continuation.steps) <= 4
        ids = [token for step in continuation.steps for token in step.token_ids]
        assert "".join(step.text for step in continuation.steps) == student.decode(ids)
        for step in continuation.steps[:-1]:
            assert student.engine.step_ends.whole(step.token_ids)
        [scores] = asyncio.run(student.engine.score([(prompt, tuple(ids))]))
        assert scores == pytest.approx(
            [x for step in continuation.steps for x in step.logprobs], abs=1e-4
        )
    assert cost.sampled_tokens <= 6 * 48


@pytest.mark.slow
def test_the_whole_model_answers_as_transformers_has_it(smollm2):
    import torch

    config = load_config(overrides=["student=smollm2-135m", "engine.dtype=float32"])
    quick, whole = (
        load_student(config, path=smollm2, inference=inference) for inference in (True, False)
    )
    prompt = quick.prompt_ids(QUESTION)
    request = GenerateRequest(prompt, max_new_tokens=30, temperature=0.0)
    [[mine]] = asyncio.run(quick.engine.generate([request]))
    ids = torch.tensor([prompt])
    with torch.no_grad():
        theirs = whole.model.generate(ids, max_new_tokens=30, do_sample=False)
    assert list(mine.token_ids) == theirs[0, len(prompt) :].tolist()
