"""Between text and token ids: what a student's tokenizer does for search. No model, no torch."""

from __future__ import annotations

import datetime
import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from jinja2 import TemplateError
from pydantic import BaseModel

from ..config.load import Config
from ..config.sections import StudentModel
from ..errors import ConfigError, RequestError, first_line
from ..grading.answers import marks_thinking
from ..types import Opening, Problem, in_first_question
from .folders import PACKAGED, TEMPLATE

DATE = datetime.date(2024, 7, 26)  # of templates that tell the day: Llama's, so that prompts stay
OPEN, CLOSED = "<think>", "\n\n</think>\n\n"
# What a template raises: its own refusal, a message that it doesn't show and is to go on from, a
# variable that isn't there.
REFUSALS = (TemplateError, ValueError, TypeError, LookupError, AttributeError)


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

    def prompt_ids(self, question: str) -> tuple[int, ...]:
        """Token ids of the chat that asks `question`, ready for a response."""
        return self.chat_ids(
            [*self.opening.messages(question), {"role": "user", "content": question}]
        )

    def chat_ids(
        self, messages: Sequence[Mapping[str, str]], going_on: bool = False
    ) -> tuple[int, ...]:
        """Token ids of a whole chat (`role` and `content` each), ready for the next response;
        `going_on`: for the rest of its last message.

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
            return (*opening, *self.encode("".join(texts)))
        try:
            text = self.whole(messages, going_on)
        except RequestError:
            if messages[0]["role"] != "system":
                raise
            text = self.whole(in_first_question(messages), going_on)
        if going_on:
            last = messages[-1]["content"]
            # Templates trim a message's end, which the next token depends on.
            if not text.endswith(last):
                text += last[len(last.rstrip()) :]
        elif self.spec.thinking == "off" and text.rstrip().endswith(OPEN):
            text = text.rstrip() + CLOSED
        return tuple(self.encode(text))

    def render(self, messages: Sequence[Mapping[str, str]], going_on: bool = False) -> str:
        """A chat as the student's template writes it."""
        return self.tokenizer.apply_chat_template(
            messages,
            tokenize=False,
            add_generation_prompt=not going_on,
            continue_final_message=going_on,
            enable_thinking=self.spec.thinking == "on",
            date_string=DATE.strftime("%d %b %Y"),
            strftime_now=DATE.strftime,
        )

    def whole(self, messages: Sequence[Mapping[str, str]], going_on: bool) -> str:
        """`render`, with all messages in it. Raises RequestError where the template refuses them or
        leaves one out.
        """
        try:
            text = self.render(messages, going_on)
        except REFUSALS as error:
            raise RequestError(
                "the student's chat template refuses these messages "
                f"({first_line(error)}): change them"
            ) from error
        for message in messages:
            role, content = message["role"], message["content"].strip()
            shown = content in text or "</think>" in content  # earlier turns' thinking is left out
            if not shown and (
                role != "system" or self.tokenizer.chat_template != packaged_template()
            ):
                raise RequestError(
                    f"the student's chat template leaves out the {role} message {content[:60]!r}: "
                    "put a template that shows it into its folder (chat_template.jinja), "
                    "or choose another model"
                )
        return text

    def lead(self) -> str:
        """What a response's text begins with that the template has put into the prompt: the mark
        that opens thinking.
        """
        if self.tokenizer.chat_template is None or self.spec.thinking == "off":
            return ""
        return (
            f"{OPEN}\n"
            if self.render([{"role": "user", "content": "?"}]).rstrip().endswith(OPEN)
            else ""
        )

    def encode(self, text: str) -> list[int]:
        """Token ids of `text` as it stands, no special tokens added."""
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of `token_ids`, special tokens left out but for those that open and close
        thinking.
        """
        hidden = not_shown(self.tokenizer)
        return self.tokenizer.decode(
            [i for i in token_ids if i not in hidden], clean_up_tokenization_spaces=False
        )


@functools.lru_cache
def not_shown(tokenizer: Any) -> frozenset[int]:
    """The special tokens that no response shows."""
    added = tokenizer.added_tokens_decoder.items()
    return frozenset(i for i, token in added if token.special and not marks_thinking(token.content))


def check_prompts(student: Any, config: Config, questions: Iterable[str]) -> str | None:
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
    limit, fix = f"engine.max_context, which is {context:,}", "raise it"
    if context < config.engine.context:
        limit, fix = f"the model, which reads {context:,} tokens", "take another model, or source"
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

    def prompt_ids(self, problem: Problem) -> tuple[int, ...]:
        """The problem's prompt."""
        return self._ids(problem.question)


class TextPart(BaseModel):
    type: Literal["text"]
    text: str


class ChatMessage(BaseModel):
    """A message as OpenAI's clients write it."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart]

    def wire(self) -> dict[str, str]:
        """The message as a chat template takes it."""
        text = (
            self.content
            if isinstance(self.content, str)
            else "\n".join(part.text for part in self.content)
        )
        return {"role": "system" if self.role == "developer" else self.role, "content": text}
