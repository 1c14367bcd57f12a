"""Between text and token ids: what a student's tokenizer does for search. No model, no torch."""

from __future__ import annotations

import datetime
import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, cycle, pairwise
from typing import Any, Literal

from jinja2 import TemplateError

from ..config.sections import StudentModel
from ..engine.step_ends import joins_texts
from ..errors import ConfigError, RequestError, first_line
from ..grading.answers import marks_thinking
from ..types import Facts, Opening, Problem, TokenIds, in_first_question
from .folders import PACKAGED, TEMPLATE

DATE = datetime.date(2024, 7, 26)  # of templates that tell the day: Llama's, so that prompts stay
OPEN, NO_THOUGHT = "<think>", "\n\n</think>\n\n"
# A chat ends with the beginning of a response, in the middle of one, or with a response's end.
Form = Literal["opened", "going on", "closed"]
OPENED: Form = "opened"
GOING_ON: Form = "going on"
CLOSED: Form = "closed"
ANSWER = "x7x"  # of a chat that shows what a template writes around one
# What a template raises: its own refusal, a message that it doesn't show and is to go on from, a
# variable that isn't there.
TEMPLATE_ERRORS = (
    TemplateError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    RecursionError,
)


@functools.cache
def packaged_template() -> str:
    """The embedded student's chat template, which leaves system messages out on purpose."""
    return (PACKAGED / TEMPLATE).read_text(encoding="utf-8")


class Chat:
    """The text side of a student; a subclass has the `tokenizer`, the `opening` of every chat and
    its entry, `spec`.
    """

    __slots__ = ()
    tokenizer: Any
    opening: Opening
    spec: StudentModel

    def prompt_ids(self, question: str) -> TokenIds:
        """Token ids of the chat that asks `question`, ready for a response."""
        return self.chat_ids(
            [*self.opening.messages(question), {"role": "user", "content": question}]
        )

    def chat_ids(
        self,
        messages: Sequence[Facts],
        going_on: bool = False,
        tools: Sequence[Facts] = (),
    ) -> TokenIds:
        """Token ids of a whole chat (`role` and `content` each), ready for the next response, which
        may call `tools`; `going_on`: for the rest of its last message.

        A system message that the student's template refuses or leaves out goes into the first
        question. Without a template it is the messages' plain text, a line end after each, after
        the token that the tokenizer opens texts with, if it does. Raises RequestError where the
        student's template takes no such chat, or leaves some of it out.
        """
        if self.tokenizer.chat_template is None:
            opened = self.tokenizer("")["input_ids"][:1]
            opening = opened if opened == [self.tokenizer.bos_token_id] else []
            texts = [message["content"].rstrip("\n") + "\n" for message in messages]
            if going_on:
                texts[-1] = messages[-1]["content"]
            check_tools(text := "".join(texts), messages, tools)
            return (*opening, *self.encode(text))
        form = GOING_ON if going_on else OPENED
        return tuple(self.encode(self.write_chat(messages, form, tools)))

    def turn_ids(self, question: str, answer: str, end: int) -> TokenIds:
        """Token ids of what the student's chat template writes of an `answer` after the prompt of
        `question`, down to the token that is the turn's `end`; of the answer and that token where
        there is no template, or it writes the answer otherwise than the prompt lets it.
        """
        if self.tokenizer.chat_template not in (None, packaged_template()):
            prompt = self.prompt_ids(question)
            chat = [*self.opening.messages(question), *make_turns(question, answer)]
            whole = self.encode(self.write_chat(chat, CLOSED))
            ids = whole[len(prompt) :]
            if tuple(whole[: len(prompt)]) == prompt and end in ids:
                ids = ids[: ids.index(end) + 1]
                if answer.strip() in self.decode(ids):
                    return tuple(ids)
        return (*self.encode_part(answer), end)

    def turn_end(self) -> int:
        """The token that ends a turn in the student's chat template, the tokenizer's end token
        where it has none of its own.
        """
        tokenizer = self.tokenizer
        marks = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
        marks = marks - {tokenizer.bos_token_id} | {tokenizer.eos_token_id}
        last, followed = (
            [i for i in self.encode(self.frame(*more)[2]) if i in marks] for more in ((), ("?",))
        )
        # Behind the last turn there may be an end of the text, before a next one that one's mark.
        both = [mark for mark, other in zip(last, followed, strict=False) if mark == other]
        return next(iter(both[-1:] or last), tokenizer.eos_token_id)

    def frame(self, *more: str) -> tuple[str, str, str]:
        """The text of a short prompt, and what the student's chat template writes between it and a
        response, and behind the response, where a question may follow.
        """
        try:
            prompt = self.write_chat(make_turns("?"))
            whole = self.write_chat(make_turns("?", ANSWER, *more), CLOSED)
        except RequestError:
            return "", "", ""
        before, _, behind = whole.rpartition(ANSWER)
        return prompt, before[len(prompt) :] if before.startswith(prompt) else "", behind

    def write_chat(
        self,
        messages: Sequence[Facts],
        form: Form = OPENED,
        tools: Sequence[Facts] = (),
    ) -> str:
        """The text of a chat (see `chat_ids`) under the student's template."""
        try:
            text = self.whole(messages, form, tools)
        except RequestError:
            if messages[0]["role"] != "system":
                raise
            text = self.whole(in_first_question(messages), form, tools)
        if form == GOING_ON:
            last = messages[-1]["content"]
            # Templates trim a message's end, which the next token depends on.
            if not text.endswith(last):
                text += last[len(last.rstrip()) :]
        elif form == OPENED:
            text = self.without_thought(text)
        return text

    def without_thought(self, text: str) -> str:
        """A prompt that the template ends with the mark that opens thinking, closed at once where
        the student's entry switches thinking off.
        """
        if self.spec.thinking == "off" and text.rstrip().endswith(OPEN):
            return text.rstrip() + NO_THOUGHT
        return text

    @property
    def plain(self) -> bool:
        """Whether the student writes lines and no chat: it has no chat template, or the embedded
        one.
        """
        return self.tokenizer.chat_template in (None, packaged_template())

    def render(
        self,
        messages: Sequence[Facts],
        form: Form = OPENED,
        tools: Sequence[Facts] = (),
    ) -> str:
        """A chat as the student's template writes it, with the JSON schemas of `tools`. Raises
        RequestError where the template refuses it.
        """
        try:
            return self.tokenizer.apply_chat_template(
                messages,
                tools=[*tools] or None,
                tokenize=False,
                add_generation_prompt=form == OPENED,
                continue_final_message=form == GOING_ON,
                enable_thinking=self.spec.thinking == "on",
                date_string=DATE.strftime("%d %b %Y"),
                strftime_now=DATE.strftime,
            )
        except TEMPLATE_ERRORS as error:
            raise RequestError(
                "the student's chat template refuses these messages "
                f"({first_line(error)}): change them"
            ) from error

    def whole(
        self,
        messages: Sequence[Facts],
        form: Form,
        tools: Sequence[Facts] = (),
    ) -> str:
        """`render`, with all messages, calls and tools in it. Raises RequestError where the
        template refuses them or leaves one out.
        """
        text = self.render(messages, form, tools)
        for message in messages:
            role, content = message["role"], message["content"].strip()
            # Earlier turns' thinking is left out, and what tools answered may be written as JSON.
            written = json.dumps(content, ensure_ascii=False)[1:-1]
            shown = content in text or "</think>" in content or written in text
            if not shown and (
                role != "system" or self.tokenizer.chat_template != packaged_template()
            ):
                raise RequestError(
                    f"the student's chat template leaves out the {role} message {content[:60]!r}: "
                    "put a template that shows it into its folder (chat_template.jinja), "
                    "or choose another model"
                )
        check_tools(text, messages, tools)
        return text

    def lead(self) -> str:
        """What a response's text begins with that the template has put into the prompt: the mark
        that opens thinking.
        """
        if self.tokenizer.chat_template is None:
            return ""
        return f"{OPEN}\n" if self.write_chat(make_turns("?")).rstrip().endswith(OPEN) else ""

    def encode(self, text: str) -> list[int]:
        """Token ids of a whole `text` as it stands, no special tokens added."""
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def encode_part(self, text: str, before: Sequence[int] = ()) -> list[int]:
        """Token ids of `text` in a response, after a line that the tokens `before` end, or at its
        beginning: `decode_part` gives the text back. No special tokens are added.

        A tokenizer may put a space before a text, and so may a chat template: the text is read
        behind what stands before it, which is cut off then.
        """
        if joins_texts(self.tokenizer):
            return self.encode(text)
        readings, anchors = [], [("\n", ""), ("\n", " "), ("", "")]
        if not before and self.tokenizer.chat_template is not None:
            prompt, lead, _ = self.frame()
            anchors = [(prompt, lead), (prompt, ""), *anchors]
        for anchor, between in anchors:
            begun, whole = self.encode(anchor), self.encode(anchor + between + text)
            if whole[: len(begun)] == begun:
                readings.append(whole[len(begun) :])
        same = (ids for ids in readings if self.decode_part(ids, before) == text)
        return next(same, readings[0])

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of a whole sequence, special tokens left out but for those that open and close
        thinking.
        """
        hidden = not_shown(self.tokenizer)
        return self.tokenizer.decode(
            [i for i in token_ids if i not in hidden], clean_up_tokenization_spaces=False
        )

    def decode_part(self, token_ids: Sequence[int], before: Sequence[int] = ()) -> str:
        """The text that `token_ids` add to that of the tokens `before`."""
        return self.decode_parts(token_ids, [len(token_ids)], before)[0]

    def decode_parts(
        self, token_ids: Sequence[int], ends: Sequence[int], before: Sequence[int] = ()
    ) -> list[str]:
        """The texts of the parts of `token_ids` that end at these places, after the tokens
        `before`: differences of whole texts, which join to the text of all.
        """
        if joins_texts(self.tokenizer):
            return [self.decode(token_ids[start:end]) for start, end in pairwise((0, *ends))]
        texts = [self.decode([*before, *token_ids[:end]]) for end in (0, *ends)]
        # A character is nothing, or several unknown ones, while a part of its bytes is there.
        places = accumulate(map(len, texts), max)
        return [texts[-1][start:end] for start, end in pairwise(places)]


def make_turns(*texts: str) -> list[Mapping[str, str]]:
    """A chat of these texts, a user's first."""
    roles = cycle(("user", "assistant"))
    return [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]


@functools.lru_cache
def not_shown(tokenizer: Any) -> frozenset[int]:
    """The special tokens that no response shows."""
    added = tokenizer.added_tokens_decoder.items()
    return frozenset(i for i, token in added if token.special and not marks_thinking(token.content))


def check_prompts(student: Any, questions: Iterable[str]) -> str | None:
    """A line on the questions whose prompts don't fit the student's context, or None where all do.

    Raises ConfigError where more than half of them don't.
    """
    context = student.engine.capabilities.max_context
    around, count, long = len(student.prompt_ids("?")), 0, []
    for question in questions:
        count += 1
        if around + len(question.encode()) < context:  # no token is less than a byte
            continue
        tokens = len(student.prompt_ids(question))
        if tokens >= context:
            long.append(tokens)
    if not long:
        return None
    limit, fix = student.engine.capabilities.limit
    said = (
        f"{len(long):,} of {count:,} questions don't fit {limit}: the longest has {max(long):,} "
        "tokens, and its response comes on top"
    )
    if 2 * len(long) > count:
        raise ConfigError(f"{said}; {fix}")
    return said


class Prompts:
    """The prompts of a student's problems, each tokenised once."""

    def __init__(self, student: Chat) -> None:
        self._ids = functools.cache(student.prompt_ids)

    def prompt_ids(self, problem: Problem) -> TokenIds:
        """The problem's prompt."""
        return self._ids(problem.question)


def check_tools(text: str, messages: Sequence[Facts], tools: Sequence[Facts]) -> None:
    """Raise ConfigError where the text of a chat lacks a tool, or a call."""
    calls = [call for message in messages for call in message.get("tool_calls", ())]
    if not all(one["function"]["name"] in text for one in (*calls, *tools)):
        raise ConfigError(
            "the student's chat template shows no tools: choose a model of the Hermes, Qwen, "
            "Llama 3 or Mistral form"
        )
