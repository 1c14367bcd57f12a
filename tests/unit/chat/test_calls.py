"""Calls of tools as models write them: one table of forms, read and written."""

from importlib.resources import files

import pytest
from scripted import write_calls
from transformers.utils.chat_template_utils import render_jinja_template

from alphazero_llm_trainer.chat.tool_calls import (
    FORMS,
    as_message,
    form_of,
    read_calls,
    render_turn,
)
from alphazero_llm_trainer.errors import ConfigError
from alphazero_llm_trainer.types import Said, ToolCall

ONE = ToolCall("look", {"at": 'a "b" </x>', "n": [1, 2.5, None], "ü": {"deep": True}})
TWO = ToolCall("add", {})


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize(
    "said",
    [Said("Two words."), Said("", (ONE,)), Said("First.", (ONE,)), Said("", (ONE, TWO))],
)
def test_what_is_written_is_read(name, said):
    one = name != "llama" or not said.calls or not (said.text or len(said.calls) > 1)
    if one:  # a turn of Llama's is a call or text
        assert read_calls(write_calls(said, FORMS[name]), FORMS[name]) == said


@pytest.mark.parametrize(
    ("name", "turn", "calls"),
    [
        ("llama", '<|python_tag|>{"name": "f", "parameters": {"a": 1}}', [("f", {"a": 1})]),
        ("llama", '{"row": 3}', []),
        ("llama", '{"name": "f", "parameters": {', ["no JSON"]),
        ("mistral", '[TOOL_CALLS] [{"name": "f", "arguments": {}}]', [("f", {})]),
        ("mistral", '[TOOL_CALLS] [{"name": "f", "arguments": "x"}]', ["no JSON object"]),
        ("mistral", "[TOOL_CALLS] [1]", ["no name"]),
        ("mistral-11", "[TOOL_CALLS]f[ARGS]{}[TOOL_CALLS]g[ARGS]{}", [("f", {}), ("g", {})]),
        ("mistral-11", "[TOOL_CALLS]f", ["no JSON object"]),
        ("hermes", '<tool_call>{"name": "f"}</tool_call> and', [("f", {})]),
        ("hermes", '<tool_call>{"name": 3}</tool_call>', ["no name"]),
        ("hermes", "</tool_call> said", []),
        ("hermes", f"<tool_call>{'[' * 100_000}</tool_call>", ["no JSON"]),
    ],
)
def test_calls_are_read(name, turn, calls):
    found = read_calls(turn, FORMS[name]).calls
    assert len(found) == len(calls)
    for call, wanted in zip(found, calls, strict=True):
        if isinstance(wanted, str):
            assert wanted in call.error
        else:
            assert (call.name, call.arguments, call.error) == (*wanted, None)


def renderer(template):
    text = (files("trl") / "chat_templates" / f"{template}.jinja").read_text(encoding="utf-8")
    special = {"bos_token": "<s>", "eos_token": "</s>", "date_string": "1 Jan 2026"}

    def render(messages, add_generation_prompt=False):
        [texts], _ = render_jinja_template(
            [messages],
            chat_template=text,
            add_generation_prompt=add_generation_prompt,
            **special,
        )
        return texts

    return render


@pytest.mark.parametrize(
    ("template", "name"),
    [("qwen2_5", "hermes"), ("qwen3_instruct_2507", "hermes"), ("llama3_1", "llama"),
     ("llama3_2", "llama")],
)  # fmt: skip
def test_a_chat_template_says_the_form(template, name):
    render = renderer(template)
    assert form_of(render) == FORMS[name]
    said = Said("", (ONE,))
    before = [{"role": "user", "content": "Look."}]
    turn = render_turn(said, before, render)
    assert read_calls(turn, FORMS[name]) == said
    after = [*before, as_message(said), {"role": "tool", "name": "look", "content": "seen"}]
    assert turn in render(after, add_generation_prompt=True)


@pytest.mark.parametrize("template", ["phi3", "gemma4", "glm4moe"])
def test_a_form_that_is_not_known_is_refused(template):
    with pytest.raises(ConfigError, match="chat template"):
        form_of(renderer(template))
