"""The tables of `tables.toml`, as the answer reader and the graders use them: languages, scale
words and signs, the marks of thinking, and ways of writing one thing."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

TABLES: dict[str, Any] = tomllib.loads(
    Path(__file__).with_name("tables.toml").read_text(encoding="utf-8")
)


class Language(NamedTuple):
    """How a language says which answer is right. The table says what the fields are; `(?!)` matches
    nothing."""

    answer: str
    option: str
    link: str
    reason: str
    correct: str = "(?!)"
    behind: str = "(?!)"
    open: str = ""
    spaced: bool = True


LANGUAGES = {code: Language(**fields) for code, fields in TABLES["languages"].items()}
# Alternatives by their name; those of all languages, too.
WORDS = {name: "|".join(words) for name, words in TABLES["words"].items()} | {
    field: "|".join(getattr(language, field) for language in LANGUAGES.values())
    for field in ("answer", "option", "correct", "link")
}
NUMBERS: dict[str, int] = TABLES["numbers"]


@cache
def _load_rewrites(name: str) -> list[tuple[re.Pattern[str], str]]:
    rows = []
    for pattern, new in TABLES[name].items():
        filled = re.sub(r"\{([a-z]+)\}", lambda words: WORDS.get(words[1], words[0]), pattern)
        rows.append((re.compile(filled), new))
    return rows


def rewrite_text(text: str, name: str) -> str:
    """`text` after all replacements of one table."""
    for pattern, new in _load_rewrites(name):
        text = pattern.sub(new, text)
    return text


def load_translation(name: str) -> dict[int, str]:
    """What `str.translate` takes, of a table of characters."""
    return {ord(char): new for new, chars in TABLES[name].items() for char in chars}
