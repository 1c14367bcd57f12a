"""The tables of `tables.toml`, as the answer reader and the graders use them: languages, scale
words and signs, the marks of thinking, ways of writing one thing, and the patterns."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from pathlib import Path
from types import SimpleNamespace
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
NUMBERS: dict[str, int] = TABLES["numbers"]
# Alternatives by their name; those of all languages, too; and parts of patterns.
WORDS = {name: "|".join(words) for name, words in TABLES["words"].items()} | {
    field: "|".join(getattr(language, field) for language in LANGUAGES.values())
    for field in ("answer", "option", "correct", "link")
}
WORDS |= {name: "|".join(TABLES[name]) for name in ("numbers", "notations")}
for scales in ("scales", "joined_scales"):
    WORDS[scales] = "|".join(" ".join(TABLES[scales].values()).split())


def fill_parts(pattern: str | list[str]) -> str:
    """A pattern with the parts that it names in braces."""
    return re.sub(r"\{([a-z_]+)\}", lambda part: WORDS.get(part[1], part[0]), "".join(pattern))


for name, part in TABLES["parts"].items():
    WORDS[name] = fill_parts(part)
# What the reader and the graders look for, by its name.
PATTERNS = SimpleNamespace(
    **{name: re.compile(fill_parts(pattern)) for name, pattern in TABLES["patterns"].items()}
)


@cache
def _load_rewrites(name: str) -> list[tuple[re.Pattern[str], str]]:
    return [(re.compile(fill_parts(pattern)), new) for pattern, new in TABLES[name].items()]


def rewrite_text(text: str, name: str) -> str:
    """`text` after all replacements of one table."""
    for pattern, new in _load_rewrites(name):
        text = pattern.sub(new, text)
    return text


def load_translation(name: str) -> dict[int, str]:
    """What `str.translate` takes, of a table of characters."""
    return {ord(char): new for new, chars in TABLES[name].items() for char in chars}
