"""Chat templates as models come with them: system roles, few-shot turns, thinking; and texts that think."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import tiny_chat

from alphazero_llm_trainer.answers import is_final, thinks, without_thinking
from alphazero_llm_trainer.cli.main import main
from alphazero_llm_trainer.config.load import load_config
from alphazero_llm_trainer.engine.protocol import Generated, Limits
from alphazero_llm_trainer.environment.calls import ChatSteps
from alphazero_llm_trainer.errors import ConfigError, RequestError
from alphazero_llm_trainer.mcts.steps import verdict
from alphazero_llm_trainer.policy.engine_steps import EngineSteps
from alphazero_llm_trainer.policy.engine_tokens import EngineTokens
from alphazero_llm_trainer.policy.folders import find_model, trained_with, write_facts
from alphazero_llm_trainer.policy.student import load_student
from alphazero_llm_trainer.rewards.combined import steps_of
from alphazero_llm_trainer.types import NOTHING, Continuation, Direction, Opening, Problem, Step

GEMMA = (
    "{{ '<bos>' }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{{ '<start_of_turn>' + ('model' if m['role'] == 'assistant' else m['role']) + '\n' + m['content'] | trim"
    " + '<end_of_turn>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
MISTRAL = (
    "{{ '<s>' }}{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if m['role'] == 'user' %}{{ '[INST] ' + m['content'] + ' [/INST]' }}{% elif m['role'] == 'assistant' %}"
    "{{ m['content'] + '</s>' }}{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}"
    "{% endif %}{% endfor %}"
)
# leaves system messages out without a word
SILENT = (
    "{% for m in messages %}{% if m['role'] == 'user' %}{{ 'U: ' + m['content'] + '\n' }}"
    "{% elif m['role'] == 'assistant' %}{{ 'A: ' + m['content'] + '\n' }}{% endif %}{% endfor %}"
)
CHATML = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}%s{% endif %}"
)
# Qwen 3: thinking is off where it is told so; DeepSeek's and QwQ's open it themselves
QWEN3 = CHATML.replace(
    "%s", "{% if enable_thinking is defined and not enable_thinking %}{{ '<think>\n\n</think>\n\n' }}{% endif %}"
)
OPENED = CHATML.replace("%s", "{{ '<think>\n' }}")
QUESTION = "Ana has 2 pens."


@pytest.fixture
def student() -> Any:
    return load_student(load_config(overrides=["student=embedded"]))


def chat(student: Any, template: str, opening: Opening = NOTHING, **spec: Any) -> Any:
    student.tokenizer.chat_template = template
    student.opening, student.spec = opening, student.spec.model_copy(update=spec)
    return student


def prompt(student: Any) -> str:
    """What the student's prompt was before it became tokens: its own vocabulary has few of these words."""
    seen: list[str] = []
    encode = type(student).encode
    type(student).encode = lambda self, text: seen.append(text) or encode(self, text)
    try:
        student.prompt_ids(QUESTION)
    finally:
        type(student).encode = encode
    return seen[-1]


SHOTS = Opening("Be brief.", (("1 + 1?", "1 + 1 = 2"), ("2 + 2?", "2 + 2 = 4")), 2)


@pytest.mark.parametrize("template", [GEMMA, MISTRAL, SILENT])
def test_a_system_text_goes_into_the_first_question_where_the_role_is_refused(student: Any, template: str) -> None:
    text = prompt(chat(student, template, SHOTS))
    assert text.count("Be brief.") == 1 and "Be brief.\n\n1 + 1?" in text
    assert text.index("1 + 1 = 2") < text.index("2 + 2?") < text.index("2 + 2 = 4") < text.index(QUESTION)
    assert f"Be brief.\n\n{QUESTION}" in prompt(chat(student, template, Opening("Be brief.")))
    assert "Be brief" not in prompt(chat(student, template))
    begun = [*SHOTS.messages("?"), {"role": "user", "content": QUESTION}, {"role": "assistant", "content": "2 + 3 = "}]
    assert student.chat_ids(begun, going_on=True)[-3:] == tuple(student.encode("2 + 3 = "))[-3:]


def test_a_system_role_that_is_shown_stays_and_the_embedded_student_leaves_it_out(student: Any) -> None:
    assert prompt(replace(student, opening=SHOTS)).startswith("1 + 1?\n")
    assert prompt(chat(student, QWEN3, SHOTS)).startswith("<|system|>Be brief.\n<|user|>1 + 1?\n")


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{{ messages[0]['content'] }}", "leaves out the"),
        ("{% for m in messages %}{{ m['content'][0]['text'] }}{% endfor %}", "leaves out the user message"),
        ("{{ raise_exception('This model needs tools.') }}", r"refuses these messages \(This model needs tools\.\)"),
        ("{{ tools | length }}{{ messages[-1]['content'] }}", "refuses these messages"),
        ("{% for t in tools %}{{ t.name }}{% endfor %}{{ messages[-1]['content'] }}", "refuses these messages"),
        ("{{ nothing.at.all }}{{ messages[-1]['content'] }}", "refuses these messages"),
    ],
)
def test_a_template_that_takes_no_question_is_one_sentence(student: Any, template: str, said: str) -> None:
    with pytest.raises(RequestError, match=said) as caught:
        chat(student, template, SHOTS).prompt_ids(QUESTION)
    assert "\n" not in str(caught.value)


def test_a_command_says_so_before_it_begins(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tiny_chat(tmp_path / "chat")
    (folder / "chat_template.jinja").write_text("{{ raise_exception('This model needs tools.') }}")
    assert main(["eval", "--model", str(folder), "--methods", "greedy", "--budget-tokens", "8", "-n", "2"]) == 2
    error = capsys.readouterr().err
    assert "This model needs tools." in error and error.count("\n") == 1


# -- thinking ----------------------------------------------------------------------------------------------------------


def test_thinking_is_switched_by_the_students_entry(student: Any) -> None:
    none = "<think>\n\n</think>\n\n"
    assert prompt(chat(student, QWEN3)).endswith(f"<|assistant|>{none}")
    assert prompt(chat(student, QWEN3, thinking="off")).endswith(f"<|assistant|>{none}")
    assert prompt(chat(student, QWEN3, thinking="on")).endswith("<|assistant|>") and student.lead() == ""
    assert prompt(chat(student, OPENED, thinking=None)).endswith("<think>\n") and student.lead() == "<think>\n"
    assert prompt(chat(student, OPENED, thinking="on")).endswith("<think>\n")
    assert prompt(chat(student, OPENED, thinking="off")).endswith(f"<|assistant|>{none}") and student.lead() == ""


@pytest.mark.parametrize("value", ["on", "true"])
def test_its_tokens_come_on_top(value: str) -> None:
    config = load_config(overrides=["student=qwen3-0.6b", f"models.qwen3-0.6b.thinking={value}"])
    assert config.models["qwen3-0.6b"].thinking == "on"
    assert config.search.max_tokens == 1400 and config.search.max_depth == 140
    assert config.search.verify.reserve == 1250
    more = load_config(overrides=[config.model_dump(), "models.qwen3-0.6b.thinking_tokens=50"])
    assert more.models["qwen3-0.6b"].thinking_tokens == 50
    explicit = load_config(overrides=["student=qwen3-0.6b", "models.qwen3-0.6b.thinking=on", "search.max_tokens=99"])
    assert explicit.search.max_tokens == 99
    off = load_config(overrides=["student=qwen3-0.6b", "models.qwen3-0.6b.thinking=off"])
    assert off.models["qwen3-0.6b"].thinking == "off" and off.search.max_tokens == 400
    with pytest.raises(ConfigError, match="thinking"):
        load_config(overrides=["models.qwen3-0.6b.thinking=maybe"])


def test_a_trained_folder_goes_on_thinking(tmp_path: Path) -> None:
    folder = tiny_chat(tmp_path / "chat")
    found, _ = find_model(str(folder), load_config())
    student = load_student(load_config(overrides=[found, f"models.{found['student']}.thinking=on"]))
    write_facts(folder, "tiny-chat", trained_with(student, "embedded"))
    assert json.loads((folder / "student.json").read_text())["thinking"] == "on"
    assert find_model(str(folder), load_config())[0]["models"]["tiny-chat"]["thinking"] == "on"


THOUGHT = "<think>\n1 + 1 = 2\n#### 5\nWait.\n</think>\n\n1 + 2 = 3\n#### 3\n"


def test_thinking_is_no_step_of_the_penalty_and_ends_nothing() -> None:
    assert steps_of(THOUGHT) == steps_of(THOUGHT.removeprefix("<think>\n")) == steps_of("1 + 2 = 3\n#### 3") == 2
    assert steps_of("<think>\nStill at it.\n#### 5\n") == 0
    assert without_thinking("plain\n#### 1") == "plain\n#### 1"
    assert thinks("<think>\nso") and not thinks(THOUGHT) and not thinks("2 < 3")
    assert (
        is_final("#### 3\n")
        and is_final("#### 3\n", "<think>\nso\n</think>\n")
        and is_final("</think>\n#### 3", "<think>")
    )
    assert not is_final("#### 3\n", "<think>\nso\n") and not is_final("<think>#### 3\n")
    assert not is_final("#### 3 </think>", "<think>\n")


def lines(text: str) -> list[str]:
    return [line + "\n" for line in text.split("\n")[:-1]]


def test_a_step_inside_it_is_a_step_of_search(student: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One token a line here, so that the cut is at every line and what it reads is the text above."""
    texts = ["<think>\n", "1 + 1 = 2\n", "#### 5\n", "</think>\n", "1 + 2 = 3\n", "#### 3\n", "and more\n"]
    monkeypatch.setattr(type(student), "decode", lambda self, ids: "".join(texts[i] for i in ids))
    ends = replace(student.engine.step_ends, tokens=frozenset(range(9)), blanks=frozenset(), texts=(), goes_on=None)
    student.engine.step_ends = ends
    cutter = EngineSteps(student, 1.0)

    def cut(ids: tuple[int, ...], before: tuple[Step, ...] = ()) -> Continuation:
        return cutter.cut(Generated(ids, (0.0,) * len(ids), "stop"), before)

    whole = cut((0, 1, 2, 3, 4, 5, 6))
    assert [step.text for step in whole.steps] == texts[:6]  # thinking's #### 5 ended nothing, the answer's did
    assert verdict(whole, Limits(40, 400)) == "answer"
    inside = cut((0, 1, 2))
    assert verdict(inside, Limits(40, 400)) == "length"
    assert verdict(cut((2,), inside.steps[:2]), Limits(1, 400), inside.steps[:2]) == "depth"
    later = cut((2, 3, 4, 5, 6), inside.steps[:2])
    assert [step.text for step in later.steps] == texts[2:6]
    # A template that opened thinking itself: the first step says so, its tokens are as they were.
    chat(student, OPENED)
    cutter = EngineSteps(student, 1.0)
    [first, second, third] = cut((1, 2, 4)).steps
    assert (first.text, first.token_ids) == ("<think>\n1 + 1 = 2\n", (1,)) and second.text == "#### 5\n"
    assert third.text == "1 + 2 = 3\n"
    with pytest.raises(ConfigError, match=r"search\.mode is 'token'.*thinking=off"):
        EngineTokens(student, 1.0, 1)


def test_tags_are_read_where_they_are_special_tokens(student: Any) -> None:
    marks = ["<think>", "</think>", "[THINK]", "<|channel|>", "<|message|>", "<|start|>"]
    student.tokenizer.add_special_tokens({"extra_special_tokens": marks})
    for text in ("<think>1 + 1 = 2\n", "[THINK]2", "<|channel|>2<|message|>3"):
        ids = [*student.encode(text), student.engine.eos_id]
        assert student.decode(ids).replace(" ", "") == text.replace(" ", "")
    assert "start" not in student.decode(student.encode("<|start|>2"))


async def adopted(student: Any, steps: tuple[Step, ...]) -> Continuation:
    continuation, _ = await EngineSteps(student, 1.0).adopt(
        Problem("a", QUESTION, "embedded"), steps, "#### 5", "teacher:x", Direction.RIGHT
    )
    return continuation


def test_a_teachers_answer_inside_it_ends_nothing(student: Any) -> None:
    thought = Step(tuple(student.encode("1 + 1 = 2\n")), (), "<think>\n1 + 1 = 2\n")
    assert asyncio.run(adopted(student, ())).ended
    assert not asyncio.run(adopted(student, (thought,))).ended
    first = asyncio.run(adopted(chat(student, OPENED), ()))
    assert not first.ended and thinks(first.steps[0].text)


def test_a_servers_answer_inside_it_ends_nothing() -> None:
    config = load_config(overrides=["search.step=line"])
    calls = ChatSteps(None, [], config.search, None)  # type: ignore[arg-type]
    texts = [step.text for step in calls._cut("#### 5\nso\n</think>\n#### 3\nmore\n", True, "<think>\n").steps]
    assert texts == ["#### 5\n", "so\n", "</think>\n", "#### 3\n"]
    step = (Step((), (), "<think>\nso\n"),)
    problem = Problem("a", QUESTION, "embedded")
    inside, _ = asyncio.run(calls.adopt(problem, step, "#### 5", "teacher:x", Direction.RIGHT))
    assert not inside.ended
