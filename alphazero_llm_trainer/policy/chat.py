"""Between text and token ids: what a student's tokenizer does for search. No model, no torch."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from jinja2 import TemplateError
from pydantic import BaseModel

from ..errors import RequestError
from ..types import Opening, Problem

# Qwen 3's template: an answer without a hidden monologue. Llama 3's: always the same day, so that prompts are too.
TEMPLATE_SETTINGS = {"enable_thinking": False, "date_string": "26 Jul 2024"}


class Chat:
    """The text side of a student; a subclass has the `tokenizer` and the `opening` of every chat."""

    __slots__ = ()
    tokenizer: Any
    opening: Opening

    def prompt_ids(self, question: str) -> tuple[int, ...]:
        """Token ids of the chat that asks `question`, ready for a response."""
        return self.chat_ids([*self.opening.messages(question), {"role": "user", "content": question}])

    def chat_ids(self, messages: Sequence[Mapping[str, str]], going_on: bool = False) -> tuple[int, ...]:
        """Token ids of a whole chat (`role` and `content` each), ready for the next response; `going_on`: for the rest of
        its last message.

        Without a chat template it is the messages' plain text, a line end after each, after the token that the tokenizer
        opens texts with, if it does. Raises RequestError where the student's template takes no such chat.
        """
        if self.tokenizer.chat_template is None:
            opened = self.tokenizer("")["input_ids"][:1]
            opening = opened if opened == [self.tokenizer.bos_token_id] else []
            texts = [message["content"].rstrip("\n") + "\n" for message in messages]
            if going_on:
                texts[-1] = messages[-1]["content"]
            return (*opening, *self.encode("".join(texts)))
        try:
            text = self.tokenizer.apply_chat_template(
                messages,
                tokenize=False,
                add_generation_prompt=not going_on,
                continue_final_message=going_on,
                **TEMPLATE_SETTINGS,
            )
        except (TemplateError, ValueError) as error:  # ValueError: the template doesn't show the message to go on from
            raise RequestError(f"the student's chat template refuses these messages ({error}): change them") from error
        if going_on:
            last = messages[-1]["content"]
            if not text.endswith(last):  # templates trim a message's end, which the next token depends on
                text += last[len(last.rstrip()) :]
        return tuple(self.encode(text))

    def encode(self, text: str) -> list[int]:
        """Token ids of `text` as it stands, no special tokens added."""
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of `token_ids`, special tokens left out."""
        return self.tokenizer.decode(list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)


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
        text = self.content if isinstance(self.content, str) else "\n".join(part.text for part in self.content)
        return {"role": "system" if self.role == "developer" else self.role, "content": text}
