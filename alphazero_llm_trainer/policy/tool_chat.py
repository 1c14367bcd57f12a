"""Turns with tools as a student's chat template reads and writes them: in worlds, and where a
client runs the tools.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from ..chat.tool_calls import CallForm, form_of, read_calls, read_line
from ..types import Facts, Said
from .chat import CLOSED, OPENED


class ToolChat:
    """The chats of one student beside `tools` (JSON schemas)."""

    def __init__(self, student: Any, tools: Sequence[Facts] = ()) -> None:
        self.student, self.tools = student, tools

    def render(self, messages: Sequence[Facts], add_generation_prompt: bool) -> str:
        """The chat template's text of messages, with the tools."""
        form = OPENED if add_generation_prompt else CLOSED
        return self.student.render(messages, form, self.tools)

    @cached_property
    def form(self) -> CallForm:
        """How the student's chat template writes calls."""
        return form_of(self.render)

    def read(self, turn: str) -> Said:
        """The text and the calls of a turn."""
        if not self.tools:
            return Said(turn)
        return read_line(turn, self.tools) if self.student.plain else read_calls(turn, self.form)

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of a turn's tokens, the marks of calls in it."""
        if self.student.plain:
            return self.student.decode(token_ids)
        return self.student.tokenizer.decode(token_ids, clean_up_tokenization_spaces=False)
