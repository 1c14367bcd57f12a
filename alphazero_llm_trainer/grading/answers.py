r"""Reading a final answer out of text, and deciding when two answers are the same. The only place
that does either.

Only what a response says to its reader can be an answer (`spoken`): no thinking, closed or not,
nothing after an end-of-turn token, and nothing from a next question on that a model asks itself
after its answer.

`extract` looks for an answer by these rules, in this order:

1. `####`: what follows it on the last line that has one (Markdown headings such as `#### Step 1:`
   are not answers);
2. `\boxed{...}`: the last box, nested braces included; boxes that commas, "and" or "or" join are
   one list;
3. the key "answer" of JSON, else `<answer>`, else "answer is", "should be" or "answer:", in the
   languages of `tables.toml`: the rest of that sentence, up to a reason ("because", "koska"); the
   last one counts, and "it should be" after it mends it;
4. the last number anywhere in the text.

`strict=False` (the default) keeps all four; `strict=True` keeps 1 and 2, the marks: in a response
that a limit cut the last number is an accident. Where rule 1 or 3 finds a sentence that states one
number, that number is the answer. `words=True` is for answers that need not be numbers (LaTeX,
names): rules 1 to 3, each as it stands. `extract_number` is for answers that are numbers: by the
same rules, and what is no number is no answer. There a statement is read as a person reads it
(`_numeric_form`): the last side of a calculation, units of one letter, groups of digits, no remark
and no decoration. `extract_choice` is for letters of choices: what names none is passed over.

`normalize` maps an answer to a key, and `equal` compares keys. Numbers are compared as exact
fractions: thousands separators, currency, units and trailing zeros don't matter; a percent sign is
a unit (`50%` is 50, not 1/2), "dozen" and "million" are factors, in other languages too, and
"minus" and "below zero" are signs. Before a number may stand `x =`, a name in words (`Total cost
=`) or arithmetic (`10 - 3 =`), and nothing else: `x + y = 5`, `x >= 5`, `5!`, `5 i` and `5 out of
six` are not 5 but text.
"""

from __future__ import annotations

import itertools
import re
import string
import unicodedata
from collections.abc import Iterator
from fractions import Fraction
from functools import cache, lru_cache

from ..errors import DataError
from .tables import (
    LANGUAGES,
    NUMBERS,
    PATTERNS,
    TABLES,
    WORDS,
    Language,
    load_translation,
    rewrite_text,
)

CACHED_TEXTS = 8192  # a search reads the same few lines again and again
STOPS = "。।॥۔።។៕။։؟、،"  # full stops of scripts that have their own, and others
SHORTENED = 5  # letters of a word that a full stop shortens, at most
SEEN = 80  # characters on each side of a full stop that tell what it ends
MAX_NUMBER_LENGTH = 300  # a longer text is never a number: int() refuses more than 4,300 digits
FACTORS = {
    unicodedata.normalize("NFKC", word).casefold(): int(factor)
    for scales in ("scales", "joined_scales")
    for factor, words in TABLES[scales].items()
    for word in words.split()
}
_SCALED = re.compile(unicodedata.normalize("NFKC", rf"\s*(?P<word>{WORDS['scale']})"))


def _answer_phrase(language: Language) -> str:
    """What says in a language that the answer follows."""
    letter = rf"\s*[({{*\"«]*(?:[-+]?[{WORDS['money']}]?[0-9]|[A-Z](?!\w|['’]s\b))"
    free = {"": "(?!)", "marked": rf"(?-i:(?={letter}))", "always": ""}[language.open]
    if not language.spaced:
        return rf"(?:{language.answer})(?:{language.correct})?(?:{language.link})?\s*[:：]?"
    return (
        rf"(?:{language.answer})(?:\s+(?:{language.correct})(?!\w))?"
        rf"(?:\s+(?:{language.link})(?!\w)(?:\s+(?:{WORDS['therefore']})(?!\w))?|\s*(?:[-=]>"
        rf"|[:=：—→])|\s+[-–]\s|{free})"
    )


def _reason_pattern(language: Language, comma: str) -> str:
    """What gives a reason in a language, behind one of `comma` or, for some words, without."""
    end = r"(?:\b|(?!\w))" if language.spaced else ""
    space = r"\s" if language.spaced else r"\s*"
    return rf"(?:{comma}?{space}(?:{language.reason})|{comma}\s*(?:{language.behind})){end}"


@cache
def _end_pattern(code: str | None) -> re.Pattern[str]:
    """What ends a statement: the end of its sentence, or a reason in the language of its phrase. A
    word that is another one, too (da Vinci, un car scolaire), gives one behind a comma alone."""
    return re.compile(
        rf"(?:{WORDS['tails']})?(?:(?<=\.\.\.)(?=\s|\Z)|(?P<point>(?<!\.\.)\.)(?=\s|\Z)|[!?](?=\s"
        rf"|\Z)|[。।॥۔።។៕។։！？\n]|\Z"
        rf"|{_reason_pattern(LANGUAGES[code or 'en'], '[,，、،]')})"
    )


# "The answer is", or what mends an answer that was stated before ("it should be").
_PHRASES = {
    spaced: "|".join(
        f"(?P<{code}>{_answer_phrase(language)})"
        for code, language in LANGUAGES.items()
        if language.spaced is spaced
    )
    for spaced in (True, False)
}
_ANSWER_IS = re.compile(
    rf"(?:\b(?=\w)(?:{_PHRASES[True]}|(?:(?:it|that|this|which)\s+(?:should|must|would|has to)"
    r"(?: (?:really|actually|instead))? be|correction\s*:"
    r"|i mean(?:t)?)(?=[\s:*$(\\\"]*(?:[-+]?[0-9.]|(?-i:[A-Z])|\\)))"
    rf"|(?=[^\x00-\x7f])(?:{_PHRASES[False]}))[\s:*]*+(?=.)",
    re.IGNORECASE,
)
_REASONS = "|".join(_reason_pattern(language, "[,;]") for language in LANGUAGES.values())
_OPENS, _CLOSES = (
    "|".join(marks).replace("{tag}", f"(?:{WORDS['tag']})")
    for marks in zip(*TABLES["thinking"].values(), strict=True)
)
_THINKING = re.compile(rf"(?P<closes>{_CLOSES})|{_OPENS}", re.IGNORECASE)
_PARTS = ("<|channel|>", "<|message|>", "<|channel>")  # special tokens that marks begin or end with
_OPERATORS = frozenset("+-*/×÷·^")
# Behind a number: a bracket or a dash and words, unless they change the value; a reason; a smile.
_REMARK = re.compile(
    r"(?<=[0-9A-Za-z%.$])(?:\s*[\[{]|\s+\()(?!\s*(?:or|and|to|plus|minus|times|mod|x|[-+*/^]"
    r"|[0-9]* ?(?:repeat|recur)ing)\b)[^()\[\]{}]*[)\]}]"
    r"|(?<=[0-9A-Za-z%)])\s+(?:-{1,2}|→)\s+(?=[^\W\d_]{2}).*"
    rf"|(?:{_REASONS}|[,;]\s*(?:(?:of )?which|as|so|not|that is|meaning|after|for)\b"
    rf"|[,;]?\s(?:since|where|i\.e)\b).*"
    rf"|\s+or so\W*$|\s*(?:[#|]|<-|//)\s.*|{WORDS['smile']}|\s*(?:>|\\n?|\\\\)\s*$",
    re.DOTALL,
)

CHARACTERS = load_translation("characters")
_EMOJI = re.compile(
    "[\U0001f000-\U0001faff\u2600-\u265f\u2668-\u266c\u2670-\u27bf\u2b00-\u2bff\ufe0f\u200b-"
    "\u200f\u2060\ufeff\u00ad\u220e\u25a0\u25cf]"
)


def without_thinking(response: str) -> str:
    """`response` less its thinking.

    Thinking that isn't closed lasts to the end. Where a chat template opened it, the response has
    its close alone.
    """
    said, start, thinking = "", 0, False
    for tag in _THINKING.finditer(response):
        closing = tag["closes"] is not None
        if not closing and not thinking:
            said += response[start : tag.start()]
        elif closing and not thinking:
            said = ""
        thinking, start = not closing, tag.end()
    return said if thinking else said + response[start:]


def thinks(text: str) -> bool:
    """Whether `text` ends inside thinking."""
    tags = [*_THINKING.finditer(text)]
    return bool(tags) and tags[-1]["closes"] is None


def marks_thinking(token: str) -> bool:
    """Whether a tokenizer's special token is, or is a part of, what opens or closes thinking."""
    return bool(_THINKING.fullmatch(token)) or token in _PARTS


@lru_cache(maxsize=CACHED_TEXTS)
def spoken(response: str) -> str:
    """What a response says to its reader: no thinking, no special tokens, and no turn or question
    after its answer."""
    said = without_thinking(response)
    for end in PATTERNS.turn_end.finditer(said):
        if PATTERNS.special.sub("", said[: end.start()]).strip():
            said = said[: end.start()]
            break
    said = PATTERNS.special.sub("", said)
    answered = next(_find_marks(said), None) or PATTERNS.box.search(said) or _ANSWER_IS.search(said)
    first = answered or PATTERNS.first_digit.search(said)
    following = None if first is None else PATTERNS.next_question.search(said, first.start())
    if following is None or (answered is None and not following[0].startswith("\n\n")):
        return said
    return said[: following.start()]


@lru_cache(maxsize=CACHED_TEXTS)
def extract(text: str, strict: bool = False, words: bool = False) -> str | None:
    """The final answer in `text` as it was written, or None where there is none.

    Args:
        text: a response, possibly cut off.
        strict: True takes a `####` line or a box only; False tries every rule of the module's
            docstring.
        words: True takes what is stated as it stands: no number out of a sentence, no last number.
    """
    text = spoken(text)
    for boxed, stated in _find_stated(text, strict):
        if stated:
            return stated[-1] if words or boxed else _one_number(untagged(stated[-1]))
    return None if strict or words else _last_number(text)


def _find_stated(text: str, strict: bool) -> Iterator[tuple[bool, list[str]]]:
    """For each of the module's rules 1 to 3 (1 and 2 where `strict`): whether it reads a box, and
    the statements that it finds."""
    yield False, _marked_lines(text)
    yield True, _box_contents(text, strict)
    if not strict:
        yield False, _answer_sentences(text)


@lru_cache(maxsize=CACHED_TEXTS)
def extract_number(text: str, strict: bool = False) -> str | None:
    """The final answer in `text` where answers are numbers, or None where there is none: as it was
    written where `number` reads it so, else the number that it states.

    A statement without a digit (`#### N`, "the answer is the number of eggs") states nothing: what
    was stated before it, or the next rule, counts. A word alone (`#### twelve`) and digits that are
    not one number (`#### 5 or 6`) are answers that can't be read, and no number that merely stands
    in the text is taken for them. `strict` as in `extract`.
    """
    text, unread = spoken(text), strict
    for boxed, stated in _find_stated(text, strict):
        numeric = [words for words in stated if any(map(str.isnumeric, words))]
        if numeric:
            last, unread = numeric[-1], True
            for reading in (last, _one_number(last), _numeric_form(last, boxed)):
                if number(reading) is not None:
                    return reading
        elif stated and re.fullmatch(r"\S{2,}", normalize(stated[-1])):
            unread = True
    stray = None if unread else _last_number(_join_groups(text))
    for reading in () if stray is None else (stray, _numeric_form(stray)):
        if number(reading) is not None:  # 0/0 is none
            return reading
    return None


def solution_answer(solution: str) -> str | None:
    """The answer that a worked solution states by a `####` line or a box, None where it states
    none.

    Raises DataError for boxes of several answers that nothing joins: none of them is known to be
    it.
    """
    stated = extract(solution, strict=True, words=True)
    boxes = dict.fromkeys(map(normalize, _joined_boxes(spoken(solution), True)))
    if len(boxes) > 1 and not _marked_lines(spoken(solution)):
        shown = " and ".join(map(repr, boxes))
        raise DataError(f"boxes {shown}, several answers: write the right one as `answer`")
    return stated


def after_mark(response: str) -> str | None:
    """All that follows the last `####` of `response`, several lines where there are; None where
    there is none."""
    response = spoken(response)
    marks = list(PATTERNS.hashes.finditer(response))
    return response[marks[-1].start(1) :].strip() or None if marks else None


def extract_choice(text: str, strict: bool = False) -> str | None:
    """The statement in `text` that names a choice, as written: what names none is passed over.
    Where none does, the last line that names one; else what is stated, or a text of one line.
    `strict` as in `extract`.
    """
    text, boxes, first = spoken(text), not strict, None
    for boxed, stated in _find_stated(text, strict):
        for statement in reversed(stated):
            if _named_choices(statement) is not None:
                return statement
            first, boxes = first or statement, boxes and boxed
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if boxes:
        # One option, or all of them and then one of them again.
        *listed, last = [mark[1] for line in lines if (mark := PATTERNS.option.match(line))] or [""]
        chosen = not listed or (last in listed and len({*listed}) == len(listed))
        for line in reversed(lines):
            if letter(line) and (chosen or not PATTERNS.option.match(line)):
                return line
    return lines[0] if first is None and len(lines) == 1 and not strict else first


def letter(statement: str) -> str | None:
    """The choice that a statement names, in upper case, or None where it names none, or several.

    A letter names a choice where it stands alone (`c`, `(C)`, `C. a dog`), in brackets, or after a
    word such as "option" or "is"; one that is denied ("not B", "rules out C") doesn't count, nor do
    `A cat`, `Vitamin C` and `I think`.
    """
    named = _named_choices(statement) or ()
    return named[0] if len(named) == 1 else None


def _named_choices(statement: str) -> list[str] | None:
    """The choices that a statement names, less those that it denies; None where it has neither."""
    text = _strip_text(_plain_text(PATTERNS.tags.sub("", statement)))
    text = re.sub(rf"[*`_]|\\boxed|(?<=[ (])\s+|\s+(?=\))|\s{WORDS['smile']}", "", text)
    whole = PATTERNS.one_letter.fullmatch(text)
    if whole:
        return [whole[1].upper()]
    if {"A", "B"} <= {label[1] for label in PATTERNS.options.finditer(text)}:
        text = PATTERNS.options.sub(" ", text)  # all of them are listed
    denied = [
        letter for names in PATTERNS.denied.finditer(text) for letter in _lone_letters(names[1])
    ]
    denied += [name[1] for name in PATTERNS.is_wrong.finditer(text)]
    named = [next(filter(None, name.groups())).upper() for name in PATTERNS.named.finditer(text)]
    for names in PATTERNS.several.finditer(text):
        several = _lone_letters(names[0])
        named += several if len(several) > 1 else []
    left = [name for name in dict.fromkeys(named) if name not in denied]
    return left if named or denied else None


def _lone_letters(text: str) -> list[str]:
    """The capital letters that stand alone."""
    return re.findall(r"(?<![A-Za-z])[A-Z](?![A-Za-z])", text)


def is_final(step: str, before: str = "") -> bool:
    """True for a reasoning step that states the final answer in the house's format (`#### N`), and
    not in thinking.

    `before` is the response up to it, which may have opened thinking.
    """
    if "####" not in step:
        return False
    return bool(_marked_lines(without_thinking(f"<think>{step}" if thinks(before) else step)))


def normalize(text: str) -> str:
    """The key that every way of writing one answer shares: `n` or `p/q` in lowest terms, or folded
    text.

    Applying it again changes nothing. An answer of nothing but punctuation gives "".
    """
    # Folding can bring new text to light (a box in bold, say), so this goes on until nothing
    # changes.
    for _ in range(8):
        key = _answer_key(text)
        if key == text:
            break
        text = key
    return text


def equal(a: str, b: str) -> bool:
    """Whether `a` and `b` are the same answer. Empty answers equal nothing, not even each other."""
    key = normalize(a)
    return key != "" and key == normalize(b)


def number(text: str) -> Fraction | None:
    """The exact number that `text` states, or None where it states anything else."""
    return _number_value(normalize(text))


def gold_number(text: str) -> Fraction | None:
    """The number that a gold answer states, read as an answer is (`5 000`, `18g`), or None where it
    states anything else."""
    text = bare(text)
    value = number(text)
    return value if value is not None else number(_spelt_out(text))


def bare(text: str) -> str:
    """`text`, or what it states where it is a sentence of that kind (`The answer is 5.`)."""
    phrase = _ANSWER_IS.search(text)
    sentence = phrase and phrase.lastgroup and re.fullmatch(r"[\w, ]*", text[: phrase.start()])
    return next(_find_statements(text), text).strip() if sentence else text


def repeating(text: str) -> str:
    r"""`text` with fractions for repeating decimals: `0.\overline{36}`, `0.(36)`, `0.3636...`."""
    text = rewrite_text(text, "marked_digits")
    return PATTERNS.repeating.sub(_repeating_fraction, text)


def _repeating_fraction(decimal: re.Match[str]) -> str:
    before = decimal["before"] or ""
    # of the ways of writing what is repeated a text has one
    ways = ("line", "digit", "brackets", "said", "tripled", "first", "middle", "last", "doubled")
    again = "".join(filter(None, decimal.group(*ways)))
    once = (decimal["whole"] or "0") + before
    nines = (10 ** len(again) - 1) * 10 ** len(before)
    value = Fraction(int(once + again) - int(once), nines)
    return rf"\frac{{{value.numerator}}}{{{value.denominator}}}"


def unglued(text: str) -> str:
    """`text` with what NFKC and NFKD would glue to the digits before it apart from them: 10⁶ is not
    106, and 1½ is not 11/2."""
    return rewrite_text(text, "glued")


def without_unit(latex: str) -> str:
    r"""`latex` without the unit at its end, for what reads formulas only: `3\sqrt2 \text{ cm}^2` is
    `3\sqrt2`."""
    unit = PATTERNS.latex_unit.search(latex)
    # A lone \text{even} is the answer, and words that change the value stay.
    return latex[: unit.start()].rstrip() if unit and _is_unit(_plain_text(unit[0])) else latex


def gold(text: str) -> str:
    """The normalised gold number of a GSM8K `answer` column.

    Raises:
        DataError: there is no `####` line, or what follows it is not a number.
    """
    lines = _marked_lines(text)
    value = _number_value(_plain_text(lines[-1])) if lines else None
    if value is None:
        shown = text if len(text) <= 80 else "..." + text[-80:]
        raise DataError(
            f"gold answer {shown!r} has no number after '####': "
            "end it with a line such as `#### 72`"
        )
    return str(value)


def _marked_lines(text: str) -> list[str]:
    """What follows `####` on each line that has it, headings and empty ones left out."""
    return [mark[1].strip() for mark in _find_marks(text)]


def untagged(text: str) -> str:
    """`text` without the tags in it, but for a tag and nothing else."""
    return PATTERNS.tags.sub("", text).strip() or text.strip()


def _find_marks(text: str) -> Iterator[re.Match[str]]:
    """The lines with `####` that hold an answer."""
    for mark in PATTERNS.hashes.finditer(text):
        if normalize(untagged(mark[1])) and not PATTERNS.heading.match(mark[1]):
            yield mark


def _box_contents(text: str, strict: bool = False) -> list[str]:
    """The content of the last box, where it has one: a list with that of the boxes joined to it.

    Where not `strict`, a box without braces is one, too.
    """
    stated = _joined_boxes(text, strict)[-1:]
    return stated if stated and normalize(stated[0]) else []


def _joined_boxes(text: str, strict: bool) -> list[str]:
    """What boxes hold, in order; joined ones as one list of what they say, and none of what is
    denied ("not \\boxed{3}")."""
    boxes = _complete_boxes(text)
    for bare in () if strict else PATTERNS.bare_box.finditer(text):
        content = bare[1].rstrip(" .,;")
        boxes.append((bare.start(), bare.start(1) + len(content), content.strip()))
    lists, last = list[dict[str, str]](), 0  # by keys, so that what says the same is there once
    for start, end, content in sorted(boxes):
        if PATTERNS.no_box.search(text, max(0, start - SEEN), start):
            continue
        if not lists or not PATTERNS.joint.fullmatch(text, last, start):
            lists.append({})
        lists[-1].setdefault(normalize(content), content)
        last = end
    return [", ".join(contents.values()) for contents in lists]


def _unescape_json(value: str) -> str:
    """A value of JSON without its escapes; LaTeX that wasn't escaped stays."""
    value = re.sub(
        r'\\(?:u([0-9a-fA-F]{4})|(["\\/]))',
        lambda code: code[2] or chr(int(code[1], 16)),
        value,
    )
    return value.strip("\"'")


def _answer_sentences(text: str) -> list[str]:
    """What the key "answer" of JSON or `<answer>` holds, else what follows each "answer is" or
    "answer:".
    """
    stated = [
        _unescape_json("".join(filter(None, value.groups())))
        for value in PATTERNS.json.finditer(text)
    ]
    stated = (
        stated
        or [tag[2] for tag in PATTERNS.answer_tag.finditer(text)]
        or [*_find_statements(text)]
    )
    return [sentence.strip() for sentence in stated if normalize(sentence)]


def _find_statements(text: str) -> Iterator[str]:
    """What follows each "answer is" or "answer:", and what mends it, up to the end of its sentence
    or a reason."""
    stated, phrase = False, _ANSWER_IS.search(text)
    while phrase is not None:
        start = last = phrase.end()
        stated = stated or phrase.lastgroup is not None
        for end in _end_pattern(phrase.lastgroup).finditer(text, start + 1) if stated else ():
            if not (end["point"] and _goes_on(text, start, end.start("point"))):
                last = end.start()
                yield text[start:last]
                break
        phrase = _ANSWER_IS.search(text, last)


def _goes_on(text: str, start: int, point: int) -> bool:
    """Whether the statement from `start` on goes on behind its full stop at `point`, which belongs
    to an abbreviation (`U.S. Navy`, `No. 5`) or an initial (`Philip K. Dick`)."""
    rest = text[point + 1 : point + 1 + SEEN].partition("\n")[0].strip()
    said = re.sub(r"[*_(\"'“]", "", text[max(start, point - SEEN) : point]).split()
    if not rest or not said:
        return False
    word, before = said[-1], said[-2] if len(said) > 1 else ""
    if PATTERNS.title.fullmatch(word):
        return True
    if PATTERNS.counted.fullmatch(word) and re.match(rf"-?[{WORDS['money']}]?[0-9]", rest):
        return not re.match(r"[0-9]+ (?:is|are|was|were|has|have|does|do|can)\b", rest)  # No. 5 is
    following = re.match(r"[\w'’-]*", rest)[0]  # type: ignore[index]  # it may be empty
    if rest[0].islower() and word.isalpha() and 1 < len(word) <= SHORTENED:  # Dept. of State
        return not PATTERNS.starts_small.match(rest)
    initials = rest[1:2] == "."  # A. A. Milne
    if not initials and (PATTERNS.starts.match(rest) or following in said):
        return False
    if PATTERNS.shortened.fullmatch(word):
        return True
    if len(word) != 1 or not word.isupper():
        return False
    if not before or word in "IVX":  # B. Mammals have it; Henry V. Shakespeare wrote it
        return bool(PATTERNS.name_alone.match(rest)) and not PATTERNS.lettered.match(rest)
    goes_on = following[:1].isupper() or re.match(WORDS["particle"], rest)
    return before[0].isupper() and bool(goes_on) and not PATTERNS.lettered.match(before)


def _last_number(text: str) -> str | None:
    plain = _plain_text(text)
    numbers = [*PATTERNS.token.finditer(plain)]
    if not numbers:
        return None
    start, end = numbers[-1].span()
    below = PATTERNS.below_zero.search(plain[end : end + SEEN].partition(". ")[0])
    signed = below or PATTERNS.signed.search(plain, max(0, start - SEEN), start)
    return f"-{plain[start:end]}" if signed else plain[start:end]


def _spelt_digits(spelt: re.Match[str]) -> str:
    """What stands in the brackets of `five (5)`; all of it where the words say another number."""
    whole = part = 0
    for word in re.findall(WORDS["word"], spelt[1].casefold()):
        scale = FACTORS.get(word, 1)
        part = part * scale + NUMBERS.get(word, 0)
        if scale > FACTORS["hundred"]:
            whole, part = whole + part, 0
    return spelt[2] if whole + part == Fraction(spelt[3].replace(",", "")) else spelt[0]


def _one_number(statement: str) -> str:
    """`statement`, or the number in it where it is a sentence that states one number."""
    statement = PATTERNS.in_words.sub(_spelt_digits, statement)
    plain = _strip_text(_plain_text(statement))
    numbers = list(itertools.islice(PATTERNS.token.finditer(plain), 2))
    if len(numbers) != 1 or _number_value(plain) is not None:
        return statement
    lead, tail = plain[: numbers[0].start()], plain[numbers[0].end() :]
    return numbers[0][0] if _may_lead(lead) and _is_unit(tail) else statement


def _may_lead(text: str) -> bool:
    """Whether `text` may stand before the one number of a sentence and leave its value."""
    words = re.findall(WORDS["word"], text.casefold())
    limit = re.search(r"(?:(?<!left )\bover|\A\W*up to)\s*\Z", text, re.IGNORECASE)
    says_none = (
        limit or PATTERNS.changes.search(text) or any(map(PATTERNS.no_sentence.fullmatch, words))
    )
    scaled = any(len(word) > SHORTENED - 2 and word in FACTORS for word in text.casefold().split())
    return bool(PATTERNS.lead.fullmatch(text)) and not says_none and not scaled


def _numeric_form(statement: str, boxed: bool = False) -> str:
    """What a statement says where answers are numbers, in a form that `number` reads: what
    `_spelt_out` mends, the result of a calculation; remarks are gone. In a box an exclamation mark
    is a factorial, elsewhere it is delight.
    """
    text = re.sub(r"^[a-zA-Z]\([\w, ]{1,9}\)(?= ?=)", "x", _spelt_out(statement))
    # Between two numbers a comma would be followed by a space.
    text = re.sub(r"(?<![0-9.,(\[{])([0-9]+),([0-9]{1,2}|[0-9]{4,})(?![0-9.,)\]}])", r"\1.\2", text)
    if not boxed:
        text = re.sub(r"(?<=[0-9])\s*!+", "", text)
    left, equals, right = text.rpartition("=")
    if equals and _is_computed(left, right):
        text = right
    elif equals and _number_value(left) is not None and _is_computed(right, left):
        text = left  # 18 = 9 + 9
    text = _one_number(text.strip())
    return text if number(text) is not None else _one_number(_REMARK.sub("", text))


def _spelt_out(text: str) -> str:
    """`text` with units of one letter or after a hyphen, digits in groups, `No. 5` and `negative 5`
    as `number` reads them."""
    return rewrite_text(
        _join_groups(_strip_text(_plain_text(PATTERNS.tags.sub("", text)))), "spelt_out"
    )


def _join_groups(text: str) -> str:
    """`text` without what separates groups of digits: spaces, apostrophes, points in pairs, commas
    as India sets them."""
    european = r"(?<![0-9.,])[0-9]{1,3}(?:[. ][0-9]{3})+,[0-9]{1,2}(?![0-9,.])"
    marks = str.maketrans(",", ".", ". ")
    text = re.sub(european, lambda digits: digits[0].translate(marks), text)
    return PATTERNS.groups.sub(lambda digits: re.sub(r"[^0-9]", "", digits[0]), text)


def _is_computed(left: str, right: str) -> bool:
    """Whether `left = right` is a calculation whose result is `right`: `left` ends in numbers with
    operators or units, and names no variable there, or only says what has the value."""
    side = re.sub(r"'s\b", "", re.split("[=;]", left)[-1])
    start = re.search(rf"[0-9(]|[{WORDS['money']}](?=[0-9])|(?<=[\s=])[-+](?=[0-9])", side)
    if not _may_lead(side if start is None else side[: start.start()]):
        return False
    if start is None:
        words = re.findall(WORDS["word"], side)
        return bool(words) and all(len(word) > 1 for word in words) and "-" not in side
    # The x of "3 x 6" is a sign.
    side = re.sub(r"(?<=[0-9)])\s*[xX]\s*(?=[0-9($])", "*", side[start.start() :])
    counts, before = False, ""
    for part in re.findall(rf"{WORDS['decimal']}|{WORDS['word']}|\S", side):
        if part in _OPERATORS or (part == "(" and before[-1:].isdigit()):
            counts = True
        elif part[0].isalpha():
            after_number = before != "" and before not in _OPERATORS
            changes = (
                PATTERNS.no_unit_first.fullmatch(part.casefold()) or part.casefold() in FACTORS
            )
            if not after_number or changes or not _is_unit_word(part):
                return False
            counts = True
        elif not re.match(rf"[0-9.()%{WORDS['money']}]", part):
            return False
        before = part
    return counts or _number_value(side) == _number_value(right)


def _complete_boxes(text: str) -> list[tuple[int, int, str]]:
    """Start, end and content of the complete boxes without a box inside, in order."""
    boxes = list[tuple[int, int, str]]()
    opened = list[re.Match[str]]()
    for brace in PATTERNS.braces.finditer(text):
        if brace[0] != "}":
            opened.append(brace)
        elif opened:
            start = opened.pop()
            if start[0] != "{" and (not boxes or start.start() > boxes[-1][0]):
                content = text[start.end() : brace.start()].strip()
                boxes.append((start.start(), brace.end(), content))
    return boxes


def _plain_text(text: str) -> str:
    """`text` with one spelling for LaTeX, Unicode and thousands; its numbers are ASCII."""
    text = unglued(rewrite_text(repeating(text), "raw"))
    text = unicodedata.normalize("NFKC", text).translate(CHARACTERS)
    if not text.isascii():
        text = _EMOJI.sub("", text)
        text = re.sub(r"(?![0-9])\d", lambda digit: str(int(digit[0])), text)
    return rewrite_text(text, "plain")


@lru_cache(maxsize=CACHED_TEXTS)
def _answer_key(text: str) -> str:
    text = _strip_text(_plain_text(text))
    box = PATTERNS.whole_box.fullmatch(text)
    if box:
        text = _strip_text(box[1])
    value = _number_value(text)
    if value is not None:
        return str(value)
    text = re.sub(r" ?([-+*/=^(){}]) ?", r"\1", re.sub(r"[\s$]+", " ", text.casefold()))
    return _strip_text(re.sub(r" ?, ?", ", ", text))  # `1, 234` are two numbers


def _strip_text(text: str) -> str:
    # Full stops go at the end only: at the front one is a decimal point. An exclamation mark
    # after a number or a variable stays: it is a factorial.
    text = text.lstrip(" \t\r\n*`'\"_,;:")
    kept = text.rstrip(f" \t\r\n*`'\"_.,;:!?{STOPS}")
    factorial = re.match(r"\s*(!+)", text[len(kept) :])
    counted = factorial and re.search(r"(?:[0-9)\]}]|\b[a-z])\Z", kept[-2:])
    return kept + factorial[1] if factorial and counted else kept


def _number_value(text: str) -> Fraction | None:
    """The exact number that `text`, as `_plain_text` left it, stands for, or None where it isn't
    one number.
    """
    if len(text) > MAX_NUMBER_LENGTH:
        return None
    text = re.sub(rf"[{WORDS['money']}]", " ", _strip_text(text)).strip()
    inner = text.strip("()[]{} \t\r\n")
    if text[:1] in "([{" and "," in inner:
        return None  # (1,234) is a pair or an interval
    # Every part of these is optional: they always match.
    text = inner[PATTERNS.prefix.match(inner).end() :]
    match = PATTERNS.value.match(text)
    if match is None:
        return None
    scale, unit = _read_scale(text[match.end() :])
    unit, below = PATTERNS.below_zero.subn("", unit)
    if not _is_unit(unit):
        return None
    top = Fraction((match["top"] or match["number"]).replace(",", ""))
    bottom = Fraction((match["bottom"] or match["divisor"] or "1").replace(",", ""))
    if bottom == 0:
        return None
    value = (int(match["whole"] or 0) + top / bottom) * Fraction(10) ** int(match["exponent"] or 0)
    return (-value if match["sign"] == "-" or below else value) * scale


def _read_scale(rest: str) -> tuple[int, str]:
    """The factor that words such as "million" name, and the unit that follows."""
    factor = 1
    while scale := _SCALED.match(rest):
        word = scale["word"].casefold().rstrip(".")
        factor *= FACTORS[word]
        rest = rest[scale.end() :]
    return factor, rest


def _is_unit(rest: str) -> bool:
    """Whether what follows a number is nothing, or a unit: words, possibly after a percent or
    degree sign."""
    rest = "".join(
        sign for sign in rest if sign not in ".'’" and unicodedata.category(sign)[0] != "M"
    )
    # It may be empty: it always matches.
    rest = rest[PATTERNS.unit_mark.match(rest).end() :]
    if not PATTERNS.unit.fullmatch(rest):
        return False
    words = re.findall(WORDS["word"], rest)
    if not words:
        return True
    if PATTERNS.no_unit_first.fullmatch(words[0].casefold()) or words[-1] == "a":
        return False
    return _is_unit_word(words[0], rest[0] == words[0][0]) and all(map(_is_unit_word, words[1:]))


def _is_unit_word(word: str, touches: bool = False) -> bool:
    """Whether `word` may be a part of a unit. `touches`: no space stands between the number and
    it.
    """
    if PATTERNS.short_unit.fullmatch(word):
        return len(word) > 1 or not touches
    word = word.casefold()
    if not PATTERNS.variables.fullmatch(word):
        return True
    if len(word) > 3 or (len(word) == 3 and not touches):
        return not PATTERNS.no_unit.fullmatch(word) and word not in string.ascii_lowercase
    return PATTERNS.little_word.fullmatch(word) is not None and not touches
