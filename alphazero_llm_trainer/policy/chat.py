"""Between text and token ids: what a student's tokenizer does for search. No model, no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


class Chat:
    """The text side of a student; a subclass has the `tokenizer` and the `system_prompt` that opens every chat."""

    __slots__ = ()
    tokenizer: Any
    system_prompt: str | None

    def prompt_ids(self, question: str) -> tuple[int, ...]:
        """Token ids of the chat that asks `question`, ready for a response."""
        messages = [{"role": "user", "content": question}]
        if self.system_prompt is not None:
            messages.insert(0, {"role": "system", "content": self.system_prompt})
        text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return tuple(self.encode(text))

    def encode(self, text: str) -> list[int]:
        """Token ids of `text` as it stands, no special tokens added."""
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of `token_ids`, special tokens left out."""
        return self.tokenizer.decode(list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)


@dataclass(slots=True)
class RemoteStudent(Chat):
    """A student whose model is in another process: `engine` is the way to it."""

    name: str
    tokenizer: Any
    engine: Any
    system_prompt: str | None = None
