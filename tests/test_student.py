"""The shipped student is what its manifest says."""

from __future__ import annotations

import asyncio
import hashlib
import json

import pytest

from alphazero_llm_trainer.answers import extract
from alphazero_llm_trainer.config.load import load_config
from alphazero_llm_trainer.engine.protocol import GenerateRequest
from alphazero_llm_trainer.errors import RequestError
from alphazero_llm_trainer.eval.greedy import answer
from alphazero_llm_trainer.policy.student import PACKAGED, PADS, give_pad, load_student, make_student
from alphazero_llm_trainer.problems.embedded import DEFAULT_LEVELS
from alphazero_llm_trainer.problems.load import load_tasks
from alphazero_llm_trainer.problems.tokenizer import build_tokenizer
from alphazero_llm_trainer.training.sft import QUESTION_WEIGHT, sft_rows
from alphazero_llm_trainer.types import Opening

MANIFEST = json.loads((PACKAGED / "manifest.json").read_text())


def test_it_was_trained_on_the_demonstrations_that_the_configuration_names():
    config = load_config()
    tasks = load_tasks("embedded", "train", config.train.demonstrations)
    rows = sft_rows(tasks, load_student(config, "embedded"), QUESTION_WEIGHT)
    data = json.dumps([[*row.prompt_ids, *row.completion_ids] for row in rows])
    digest = hashlib.sha256(data.encode()).hexdigest()
    assert digest == MANIFEST["data_sha256"]
    assert MANIFEST["rows"] == len(rows)
    assert MANIFEST["levels"] == list(DEFAULT_LEVELS)


def test_it_reproduces_its_recorded_accuracy():
    student = load_student(load_config(overrides=["student=embedded"]))
    recorded = MANIFEST["test_greedy"]
    answers = answer(student, load_tasks("embedded", "test", recorded["problems"]), max_tokens=160)
    accuracy = sum(answers.first) / len(answers.first)
    # Greedy answers are exact; only a tie within rounding error can fall otherwise on another processor.
    assert abs(accuracy - recorded["value"]) <= 0.005
    assert 0.45 <= accuracy <= 0.61
    assert recorded["low"] < accuracy < recorded["high"]


def test_its_tokenizer_is_the_generators_own():
    student = load_student(load_config(overrides=["student=embedded"]))
    assert student.tokenizer.get_vocab() == build_tokenizer().get_vocab()
    question = load_tasks("embedded", "test", 1)[0].problem.question
    assert student.decode(student.prompt_ids(question)) == question + "\n"


# -- chat models -------------------------------------------------------------------------------------------------------


def test_every_named_student_is_trained_by_lora_on_seven_projections_and_over_4_bits_where_it_needs_a_gpu():
    models = load_config().models
    assert {"llama-3.2-3b", "llama-3.2-1b", "llama-3.1-8b", "qwen2.5-0.5b", "qwen3-4b", "mistral-7b"} < models.keys()
    for name, spec in models.items():
        if name in ("embedded", "small", "smollm2-135m", "smollm2-360m"):  # small enough to be trained whole
            continue
        bits = "none" if name.endswith("-0.5b") else "nf4"
        assert (spec.quantization, spec.adapter, spec.dtype) == (bits, "lora", "bfloat16"), name
        assert spec.lora.rank == 32 and len(spec.lora.targets) == 7
        assert spec.gated == (spec.mirror is not None) and spec.path.count("/") == 1, name


def test_all_of_a_models_end_tokens_end_a_response_and_stay_its_last():
    """Llama 3 has three. A token that the student samples often is made the second one."""
    student = load_student(load_config(overrides=["student=embedded"]))
    prompt = student.prompt_ids(load_tasks("embedded", "test", 1)[0].problem.question)
    request = GenerateRequest(prompt, max_new_tokens=60, temperature=0.0)
    [[whole]] = asyncio.run(student.engine.generate([request]))
    assert whole.finish == "eos" and whole.token_ids[-1] == student.tokenizer.eos_token_id
    second = whole.token_ids[2]
    first_at = whole.token_ids.index(second)
    student.model.generation_config.eos_token_id = [student.tokenizer.eos_token_id, second]
    again = make_student("two ends", student.model, student.tokenizer, student.spec, load_config(), Opening())
    assert again.engine.eos_ids == {student.tokenizer.eos_token_id, second}
    [[cut]] = asyncio.run(again.engine.generate([request]))
    assert (cut.finish, cut.token_ids) == ("eos", whole.token_ids[: first_at + 1])


def test_a_tokenizer_without_padding_gets_a_token_that_is_not_the_end():
    tokenizer = build_tokenizer()
    tokenizer.pad_token = None
    give_pad(tokenizer)  # nothing of its vocabulary is for padding: only then it is the end
    known = tokenizer.get_vocab()
    assert tokenizer.pad_token_id == next((known[t] for t in PADS if t in known), tokenizer.eos_token_id)
    tokenizer = build_tokenizer()
    tokenizer.add_tokens(["<|finetune_right_pad_id|>"], special_tokens=True)
    tokenizer.pad_token = None
    give_pad(tokenizer)
    assert tokenizer.pad_token == "<|finetune_right_pad_id|>"


def test_templates_are_asked_for_no_hidden_monologue_and_always_the_same_day():
    student = load_student(load_config(overrides=["student=embedded"]))
    student.tokenizer.chat_template = (
        "{{ messages[0]['content'] }} {% if enable_thinking is defined and not enable_thinking %}3{% else %}4{% endif %}"
        "{% if date_string is defined %} + 3{% endif %}"
    )
    assert student.decode(student.prompt_ids("Ana has 2 pens.")).split()[-2:] == ["+", "3"]


@pytest.mark.parametrize("content", ["{{ m['content'] }}", "{{ m['content'] | trim }}"])
def test_a_chat_that_goes_on_ends_as_its_last_message_does(content):
    student = load_student(load_config(overrides=["student=embedded"]))
    student.tokenizer.chat_template = f"{{% for m in messages %}}{content}{{{{ '\n' }}}}{{% endfor %}}"
    begun = [{"role": "user", "content": "Ana has 2 pens."}, {"role": "assistant", "content": "3 + 4 = 7\n"}]
    ids = student.chat_ids(begun, going_on=True)
    assert ids == (*student.encode("Ana has 2 pens.\n"), *student.encode("3 + 4 = 7\n"))
    student.tokenizer.chat_template = "{{ messages[0]['content'] }}"  # the last message is lost
    with pytest.raises(RequestError, match="chat template refuses"):
        student.chat_ids(begun, going_on=True)


def test_the_last_number_of_a_response_that_was_cut_is_no_answer():
    student = load_student(load_config(overrides=["student=embedded"]))
    tasks = load_tasks("embedded", "test", 120)
    found = answer(student, tasks, max_tokens=9)
    texts = [samples[0] for samples in found.responses]
    lucky = [i for i, task in enumerate(tasks) if "####" not in texts[i] and extract(texts[i]) == task.gold]
    assert lucky and not any(found.first[i] for i in lucky)
