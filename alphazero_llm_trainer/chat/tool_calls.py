"""Calls of tools as models write them: one table of forms, and their reader.

A tokenizer's own chat template says which form its model writes (`form_of`), and how a turn is
written: the table is only trusted where it reads back what the template wrote. Texts keep their
special tokens: some forms are made of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ..errors import ConfigError
from ..types import Facts, JsonObject, Said, ToolCall


class CallForm(NamedTuple):
    """How calls stand in a turn.

    Attributes:
        begin: what stands before a call, or before the list of all calls. "": the turn is a call.
        end: what stands after it; "": the next call, or the turn's end.
        key: the arguments' name in the call's JSON.
        apart: what stands between the name and the arguments' JSON where a call isn't one JSON.
        also: what may stand before a call, and is left out.
    """

    begin: str
    end: str = ""
    key: str = "arguments"
    apart: str = ""
    also: str = ""


FORMS = {
    "hermes": CallForm("<tool_call>", "</tool_call>"),  # Hermes, Qwen 2.5 and 3
    "mistral-11": CallForm("[TOOL_CALLS]", apart="[ARGS]"),  # from tokenizer version 11 on
    "mistral": CallForm("[TOOL_CALLS]"),
    "llama": CallForm("", key="parameters", also="<|python_tag|>"),  # Llama 3.1 and later
}

Render = Callable[..., str]  # (messages, add_generation_prompt=...) -> text


def read_calls(turn: str, form: CallForm) -> Said:
    """The text and the calls of a turn. A call that can't be read has an `error`."""
    if not form.begin:
        body = turn.strip().removeprefix(form.also).strip()
        is_call = body.startswith("{") and ('"name"' in body or body != turn.strip())
        return Said("", tuple(read_body(body, form))) if is_call else Said(turn)
    text, *pieces = turn.split(form.begin)
    calls: list[ToolCall] = []
    for piece in pieces:
        body, end, after = piece.partition(form.end) if form.end else (piece, "", "")
        if form.end and not end:
            calls.append(ToolCall("", {}, f"the call has no {form.end}"))
            continue
        text += after.strip() and after
        calls += read_body(body.strip(), form)
    return Said(text.strip() if calls else text, tuple(calls))


def read_body(body: str, form: CallForm) -> list[ToolCall]:
    """The calls of one piece of JSON."""
    try:
        if form.apart:
            name, mark, arguments = body.partition(form.apart)
            found = {"name": name.strip(), form.key: json.loads(arguments) if mark else None}
        else:
            found = json.loads(body)
    except (ValueError, RecursionError) as error:
        return [ToolCall("", {}, f"the call is no JSON ({error})")]
    return [as_call(one, form) for one in (found if isinstance(found, list) else [found])]


def as_call(found: Any, form: CallForm) -> ToolCall:
    """A call from its JSON."""
    name = found.get("name") if isinstance(found, dict) else None
    if not isinstance(name, str) or not name:
        return ToolCall("", {}, "the call has no name")
    arguments = found.get(form.key, {})
    if not isinstance(arguments, dict):
        return ToolCall(name, {}, f"the call's {form.key} are no JSON object")
    return ToolCall(name, arguments)


def read_line(line: str, tools: Sequence[Facts]) -> Said:
    """A line of a student without a chat template: `NAME: VALUE` calls the tool of that name, with
    a JSON object, or with the value of its only parameter. Any other line is text.
    """
    name, colon, rest = (part.strip() for part in line.strip().partition(":"))
    known = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
    if name not in known or not colon:
        return Said(line)
    parameters = known[name]["properties"]
    if rest and not rest.startswith("{"):
        if len(parameters) != 1:
            return Said("", (ToolCall(name, {}, "the arguments are no JSON object"),))
        [(key, schema)] = parameters.items()
        value = rest if schema.get("type") == "string" else as_json(rest)
        return Said("", (ToolCall(name, {key: value}),))
    return Said("", (as_call({"name": name, "arguments": as_json(rest or "{}")}, FORMS["hermes"]),))


def as_json(text: str) -> Any:
    """A JSON value; the text itself where it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def write_line(said: Said) -> str:
    """A turn as `read_line` reads it: text, or one call."""
    if not said.calls:
        return said.text
    if len(said.calls) > 1 or said.text.strip():
        raise ConfigError("a turn of this student is a line: write calls as turns apart")
    [(name, arguments, _)] = said.calls
    [value] = arguments.values() if len(arguments) == 1 else [arguments]
    return f"{name}: {value if isinstance(value, str) else json.dumps(value)}"


def as_message(said: Said) -> JsonObject:
    """A turn as a message of a chat, as chat templates and servers read it; ids of calls count from
    0 in nine digits, which Mistral's templates ask for.
    """
    calls = [
        {
            "id": f"{at:09}",
            "type": "function",
            "function": {"name": call.name, "arguments": dict(call.arguments)},
        }
        for at, call in enumerate(said.calls)
    ]
    return {"role": "assistant", "content": said.text, **({"tool_calls": calls} if calls else {})}


def render_turn(said: Said, before: Sequence[Facts], render: Render) -> str:
    """What a model writes that says this turn after the messages `before`: the template's own text,
    up to the turn's end. Raises ConfigError where the template changes what stands before it.
    """
    prompt = render([*before], add_generation_prompt=True)
    texts = [
        render([*before, message], add_generation_prompt=False)
        for message in (as_message(said), {"role": "assistant", "content": "#"})
    ]
    if not all(text.startswith(prompt) for text in texts):
        raise ConfigError(
            "the chat template rewrites earlier turns: tools need one that keeps them"
        )
    turn, plain = (text[len(prompt) :] for text in texts)
    return turn.removesuffix(plain.partition("#")[2])


def form_of(render: Render) -> CallForm:
    """The form that a tokenizer's chat template writes calls in. Raises ConfigError for one that
    isn't in `FORMS`, and for a template that shows no calls.
    """
    said = Said("", (ToolCall("look", {"at": 'a "b"', "n": 3}),))
    turn = render_turn(said, [{"role": "user", "content": "?"}], render)
    for form in FORMS.values():
        if read_calls(turn, form) == said:
            return form
    raise ConfigError(
        f"the chat template writes calls of tools as {turn[:80]!r}, which can't be read: use a "
        "model of the Hermes, Qwen, Llama 3 or Mistral form"
    )
