r"""Reading a final answer out of text, and deciding when two answers are the same. The only place that does either.

`extract` looks for an answer by these rules, in this order:

1. `####`: what follows it on the last line that has one (Markdown headings such as `#### Step 1:` are not answers);
2. `\boxed{...}`: the last box, nested braces included;
3. "answer is" or "answer:": the rest of that sentence; the last one counts;
4. the last number anywhere in the text.

`strict=False` (the default) keeps all four; `strict=True` keeps 1 and 2, the marks: in a response that a limit cut the last
number is an accident. Where rule 1 or 3 finds a sentence that states one number, that number is the answer. `words=True` is
for answers that need not be numbers (LaTeX, names): rules 1 to 3, each as it stands. `extract_number` is for answers that
are numbers: by the same rules, and what is no number is no answer.

`normalize` maps an answer to a key, and `equal` compares keys. Numbers are compared as exact fractions: thousands
separators, currency, units and trailing zeros don't matter; a percent sign is a unit (`50%` is 50, not 1/2), "dozen" and
"million" are factors. Before a number may stand `x =`, a name in words (`Total cost =`) or arithmetic (`10 - 3 =`), and
nothing else: `x + y = 5`, `x >= 5`, `5!`, `5 i` and `5 out of six` are not 5 but text.
"""

from __future__ import annotations

import itertools
import re
import string
import unicodedata
from fractions import Fraction
from functools import lru_cache

from .errors import DataError

CACHED_TEXTS = 8192  # a search reads the same few lines again and again
MAX_NUMBER_LENGTH = 300  # a longer text is never a number: int() refuses more than 4,300 digits
SCALES = {"dozen": 12, "hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
GROUPS = 30  # of thousands in one number: without an end, a line of them would be read again from each comma on

_DECIMAL = rf"(?>(?>[0-9]{{1,3}}(?:,[0-9]{{3}}){{1,{GROUPS}}}(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)"
_VALUE = re.compile(
    r"(?P<sign>[-+]?)\s*"
    r"(?:(?P<whole>[0-9]+)\s+(?P<top>[0-9]+)/(?P<bottom>[0-9]+)"
    rf"|(?P<number>{_DECIMAL})(?:\s*/\s*(?P<divisor>{_DECIMAL}))?(?:[eE](?P<exponent>[-+]?[0-9]{{1,2}})(?![0-9]))?)"
)
# What follows a number is its unit when it is words that leave the value as it is. A word of four letters does; so does
# one of three, unless it is variables in a row (xyz). One or two letters are a term (5 i, 3 xy), these excepted:
_WORD = r"[^\W\d_]++"
_SHORT_UNIT = re.compile(
    r"[mglLsh]|(?i:km|cm|mm|nm|kg|mg|ml|cl|dl|ft|in|yd|mi|oz|lbs?|pt|qt|sq|cu|hrs?|min|sec|yrs?|am|pm|[kmgt]b|hz|kwh?"
    r"|mph|kph|gal|cal|rad|deg|usd|eur|gbp|st|nd|rd|th)"
)
_LITTLE_WORD = re.compile(r"an?|a[st]|by|he|i[fnst]|my|o[fnr]|so|to|up|us|we")
_NO_UNIT_FIRST = re.compile(r"and|or|to|point|squared|cubed")  # "5 and a half" is not 5
_NO_UNIT = re.compile(
    r"two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|(?:thir|four|fif|six|seven|eigh|nine)teen"
    r"|(?:twen|thir|for|fif|six|seven|eigh|nine)ty|(?:dozen|hundred|thousand|million|billion|trillion)s?|half|halves"
    r"|(?:third|fourth|fifth|sixth|seventh|eighth|ninth|tenth|hundredth|thousandth|millionth)s?"
    r"|plus|minus|divided|multiplied|choose|factorial|modulo|mod|sqrt|(?:log|sin|cos|tan)[xyz]?|infinity"
    r"|alpha|beta|gamma|delta|theta|lambda|sigma|omega|phi|psi|rho|tau"
)
_NO_SENTENCE = re.compile(
    rf"{_NO_UNIT.pattern}|not?|least|most|than|or|half|twice|double|triple|negative|root|under|below|above"
)
_VARIABLES = re.compile(r"[a-z\u0370-\u03ff]+")  # in the scripts that variables are written in
_UNIT_MARK = re.compile(r"(?:\s*(?:%|¢|°(?:\s?[CFK]\b)?))?")
_UNIT = re.compile(rf"(?:(?:\s\(|[\s,;:/)])*+{_WORD}(?:-{_WORD})*(?:\^\{{?[23]\}}?)?)*+[\s)]*")
_LATEX_UNIT = re.compile(
    r"(?:(?<=[0-9})])|(?<=\\pi))(?:\\?[ ,;~])*+"
    rf"(?:\\(?:text|mbox|mathrm)\s*\{{[^{{}}]*\}}|(?:{_WORD}[ /.]*)++)(?:\^\{{?[23]\}}?)?[\s.]*\Z"
)
_VARIABLE = r"(?:\\(?!not)[a-z]+|[a-z](?![a-z]))(?:_\{?\w+\}?)?"
_NAME = r"[a-z]{3,}(?: [a-z]{2,}){0,9}"
_SUM = r"(?=[-+(\s]*+[0-9.,]++[\s)]*+[-+*/×÷])[-+*/×÷()0-9.,\s]++="
_PREFIX = re.compile(
    rf"(?:(?:(?:{_VARIABLE}|{_NAME})?\s*=|{_SUM})(?:{_SUM})*|[a-z ]+:)?"
    r"\s*(?:about|approximately|around|roughly|nearly|≈|\\approx)?\s*(?:usd|eur|gbp|us|rs\.?)?\s*",
    re.IGNORECASE,
)
# A number in running text. A minus after a digit, a letter or a closing bracket is an operator or a hyphen, and digits
# that touch a letter belong to a name or a term (`H2O`, `3x`) unless a unit of at least two letters follows.
_TOKEN = re.compile(
    r"(?:(?:(?<![\w)%\].])(?<![0-9)%\]]\s)[-+])?[$€£¥₹]?|[$€£¥₹]-)(?<![\w.^])"
    rf"(?>[0-9]+ [0-9]+/[0-9]+|{_DECIMAL}(?:/{_DECIMAL})?(?:[eE][-+]?[0-9]{{1,2}}(?![0-9]))?)"
    rf"(?:%|(?![\w\\^])|(?=[A-Za-z]{{2}}))(?:\s(?:{'|'.join(SCALES)})\b)?"
)
_LEAD = re.compile(r"(?:[^0-9=<>≤≥≠≈±+*/^|!~#\\{}(]|(?<!\w)\()*")  # words before the one number of a sentence
_HASHES = re.compile(r"(?<!#)####(?!#)([^\n]*)")
_HEADING = re.compile(r"\W*(?:(?:the )?(?:final )?(?:answer|result|solution|conclusion)\W*$|step\b)", re.IGNORECASE)
_ANSWER_IS = re.compile(
    r"\banswer(?:\s+is\b|\s*[:=])[\s:*]*+(.+?)(?=[.!?](?:\s|$)|,? (?:because|since)\b|\n|$)", re.IGNORECASE
)
_BRACES = re.compile(r"\\boxed\s*\{|[{}]")
_LETTER = re.compile(r"(?<![^\W_])[A-J](?![^\W_'’])|^[a-j](?![^\W_'’])")
_WHOLE_BOX = re.compile(r"\\boxed\s*\{(.*)\}", re.DOTALL)

_DASHES = dict.fromkeys(map(ord, "‐‑‒–—―−"), "-") | {ord("⁄"): "/", ord("∕"): "/"}
_PLAIN = tuple(
    (re.compile(pattern), new)
    for pattern, new in (
        (r"(?<=[0-9])(?:\\,|,?\\!)\s*(?=[0-9]{3}(?![0-9]))", ""),
        (r"\{,\}", ","),
        (
            r"\\[dtc]?frac\s*(?:\{\s*(-?[0-9.,]+)\s*\}|([0-9]))\s*(?:\{\s*([0-9.,]+)\s*\}|([0-9]))(?!\.?[0-9])",
            r" \1\2/\3\4",
        ),
        (r"\\(?:text|textbf|mathrm|mathbf|mbox|operatorname)\s*\{([^{}]*)\}", r" \1"),
        (r"\\(?:left|right|displaystyle)(?![A-Za-z])|\\[()\[\]!]", ""),
        (r"\\[,;: ]|~", " "),
        (r"\\([$%#&])", r"\1"),
        (r"\^\{\\circ\}|\^?\\(?:circ|degree)(?![A-Za-z])", "°"),
        (r" ?(?:\\times|\\cdot|×|\*) ?10\^\{?([-+]?[0-9]{1,2})\}?(?![0-9])", r"e\1"),
        (r"\\(?:times|cdot)(?![A-Za-z])", "*"),
    )
)


@lru_cache(maxsize=CACHED_TEXTS)
def extract(text: str, strict: bool = False, words: bool = False) -> str | None:
    """The final answer in `text` as it was written, or None where there is none.

    Args:
        text: a response, possibly cut off.
        strict: True takes a `####` line or a box only; False tries every rule of the module's docstring.
        words: True takes what is stated as it stands: no number out of a sentence, no last number.
    """
    for boxed, found in ((False, _lines(text)), (True, _boxes(text)), (False, [] if strict else _sentences(text))):
        if found:
            return found[-1] if words or boxed else _one_number(found[-1])
    return None if strict or words else _last_number(text)


@lru_cache(maxsize=CACHED_TEXTS)
def extract_number(text: str, strict: bool = False) -> str | None:
    """The final answer in `text` where answers are numbers, as it was written, or None where there is none.

    A statement without a digit (`#### N`, "the answer is the number of eggs") states nothing: what was stated before it, or the
    next rule, counts. A word alone (`#### twelve`) and digits that are not one number (`#### 5 or 6`) are answers that can't
    be read, and no number that merely stands in the text is taken for them. `strict` as in `extract`.
    """
    unread = False
    for found in (_lines(text), _boxes(text), [] if strict else _sentences(text)):
        last = next((one for one in reversed(found) if any(letter.isnumeric() for letter in one)), None)
        if last is None:
            unread = unread or any(re.fullmatch(r"\S{2,}", normalize(one)) for one in found[-1:])
        else:
            answer = _one_number(last)
            if number(answer) is not None:
                return answer
            unread = True
    stray = None if strict or unread else _last_number(text)
    return None if stray is None or number(stray) is None else stray  # 0/0 is none


def after_mark(response: str) -> str | None:
    """All that follows the last `####` of `response`, several lines where there are; None where there is none."""
    marks = list(_HASHES.finditer(response))
    return None if not marks else response[marks[-1].start(1) :].strip() or None


def letter(answer: str) -> str | None:
    """The choice that an answer names, in upper case: its first letter from A to J that stands alone, or None."""
    found = _LETTER.search(answer)
    return None if found is None else found[0].upper()


def is_final(step: str) -> bool:
    """True for a reasoning step that states the final answer in the house's format (`#### N`)."""
    return "####" in step and bool(_lines(step))


def normalize(text: str) -> str:
    """The key that every way of writing one answer shares: `n` or `p/q` in lowest terms, or folded text.

    Applying it again changes nothing. An answer of nothing but punctuation gives "".
    """
    # Folding can bring new text to light (a box in bold, say), so this goes on until nothing changes.
    for _ in range(8):
        key = _key(text)
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
    return _value(normalize(text))


def without_unit(latex: str) -> str:
    r"""`latex` without the unit at its end, for what reads formulas only: `3\sqrt2 \text{ cm}^2` is `3\sqrt2`."""
    unit = _LATEX_UNIT.search(latex)
    # A lone \text{even} is the answer, and words that change the value stay.
    return latex[: unit.start()].rstrip() if unit and _is_unit(_plain(unit[0])) else latex


def gold(text: str) -> str:
    """The normalised gold number of a GSM8K `answer` column.

    Raises:
        DataError: there is no `####` line, or what follows it is not a number.
    """
    lines = _lines(text)
    value = _value(_plain(lines[-1])) if lines else None
    if value is None:
        shown = text if len(text) <= 80 else "..." + text[-80:]
        raise DataError(f"gold answer {shown!r} has no number after '####': end it with a line such as `#### 72`")
    return str(value)


def _lines(text: str) -> list[str]:
    """What follows `####` on each line that has it, headings and empty ones left out."""
    return [m[1].strip() for m in _HASHES.finditer(text) if normalize(m[1]) and not _HEADING.match(m[1])]


def _boxes(text: str) -> list[str]:
    """The last box's content, where it has one."""
    box = _last_box(text)
    return [box] if box is not None and normalize(box) else []


def _sentences(text: str) -> list[str]:
    """What follows each "answer is" or "answer:"."""
    return [sentence.strip() for sentence in _ANSWER_IS.findall(text) if normalize(sentence)]


def _last_number(text: str) -> str | None:
    numbers = _TOKEN.findall(_plain(text))
    return numbers[-1] if numbers else None


def _one_number(found: str) -> str:
    """`found`, or the number in it where it is a sentence that states one number."""
    plain = _strip(_plain(found))
    numbers = list(itertools.islice(_TOKEN.finditer(plain), 2))
    if len(numbers) != 1 or _value(plain) is not None:
        return found
    lead, tail = plain[: numbers[0].start()], plain[numbers[0].end() :]
    says = _LEAD.fullmatch(lead) and not any(map(_NO_SENTENCE.fullmatch, re.findall(_WORD, lead.casefold())))
    return numbers[0][0] if says and _is_unit(tail) else found


def _last_box(text: str) -> str | None:
    """What the complete box that opens last holds, or None."""
    start, end, open_braces = -1, 0, []
    for brace in _BRACES.finditer(text):
        if brace[0] != "}":
            open_braces.append(brace.end() if brace[0] != "{" else -1)
        elif open_braces and (opened := open_braces.pop()) > start:
            start, end = opened, brace.start()
    return text[start:end].strip() if start >= 0 else None


def _plain(text: str) -> str:
    """`text` with one spelling for LaTeX, Unicode and thousands; its numbers are ASCII."""
    text = re.sub(r"(?<=[0-9])[\u00a0\u2009\u202f](?=[0-9]{3}(?![0-9]))", "", text)
    # NFKC would glue these to the digits before them: 10⁶ is not 106, and 1½ is not 11/2.
    text = re.sub(r"[⁰¹²³⁴-⁹]+", r"^\g<0>", text)
    text = re.sub(r"(?<=[0-9])(?=[¼-¾⅐-⅞])", " ", text)
    text = unicodedata.normalize("NFKC", text).translate(_DASHES)
    for pattern, new in _PLAIN:
        text = pattern.sub(new, text)
    return text


@lru_cache(maxsize=CACHED_TEXTS)
def _key(text: str) -> str:
    text = _strip(_plain(text))
    box = _WHOLE_BOX.fullmatch(text)
    if box:
        text = _strip(box[1])
    value = _value(text)
    if value is not None:
        return str(value)
    text = re.sub(r" ?([-+*/=^(){}]) ?", r"\1", re.sub(r"[\s$]+", " ", text.casefold()))
    return _strip(re.sub(r" ?, ?", ", ", text))  # `1, 234` are two numbers


def _strip(text: str) -> str:
    # A full stop goes at the end only: at the front it is a decimal point. An exclamation mark after a number or a
    # variable stays: it is a factorial.
    text = text.lstrip(" \t\r\n*`'\"_,;:")
    kept = text.rstrip(" \t\r\n*`'\"_.,;:!?")
    factorial = re.match(r"\s*(!+)", text[len(kept) :])
    return kept + factorial[1] if factorial and re.search(r"(?:[0-9)\]}]|\b[a-z])\Z", kept[-2:]) else kept


def _value(text: str) -> Fraction | None:
    """The exact number that `text`, as `_plain` left it, stands for, or None where it isn't one number."""
    if len(text) > MAX_NUMBER_LENGTH:
        return None
    text = re.sub(r"[$€£¥₹]", " ", _strip(text)).strip()
    inner = text.strip("()[]{} \t\r\n")
    if text[:1] in "([{" and "," in inner:
        return None  # (1,234) is a pair or an interval
    text = inner[_PREFIX.match(inner).end() :]  # type: ignore[union-attr]  # every part is optional: it always matches
    match = _VALUE.match(text)
    if match is None:
        return None
    scale, unit = _scale(text[match.end() :])
    if not _is_unit(unit):
        return None
    if match["whole"]:
        top, bottom, whole = Fraction(match["top"]), Fraction(match["bottom"]), Fraction(match["whole"])
    else:
        top, bottom = (Fraction((match[part] or "1").replace(",", "")) for part in ("number", "divisor"))
        whole, scale = Fraction(0), scale * Fraction(10) ** int(match["exponent"] or 0)
    if bottom == 0:
        return None
    return (-1 if match["sign"] == "-" else 1) * (whole + top / bottom) * scale


def _scale(rest: str) -> tuple[Fraction, str]:
    """The factor that a word such as "million" names, and the unit that follows."""
    first, _, unit = rest.strip().partition(" ")
    factor = SCALES.get(first.casefold())
    return (Fraction(1), rest) if factor is None else (Fraction(factor), unit and f" {unit}")


def _is_unit(rest: str) -> bool:
    """Whether what follows a number is nothing, or a unit: words, possibly after a percent or degree sign."""
    rest = re.sub(r"[.'’]", "", rest)
    rest = rest[_UNIT_MARK.match(rest).end() :]  # type: ignore[union-attr]  # it may be empty: it always matches
    if not _UNIT.fullmatch(rest):
        return False
    words = re.findall(_WORD, rest)
    if not words:
        return True
    if _NO_UNIT_FIRST.fullmatch(words[0].casefold()) or words[-1] == "a":
        return False
    return _is_unit_word(words[0], rest[0] == words[0][0]) and all(_is_unit_word(word) for word in words[1:])


def _is_unit_word(word: str, touches: bool = False) -> bool:
    """Whether `word` may be a part of a unit. `touches`: no space stands between the number and it."""
    if _SHORT_UNIT.fullmatch(word):
        return len(word) > 1 or not touches
    word = word.casefold()
    if not _VARIABLES.fullmatch(word):
        return True
    if len(word) > 3 or (len(word) == 3 and not touches):
        return not _NO_UNIT.fullmatch(word) and word not in string.ascii_lowercase
    return _LITTLE_WORD.fullmatch(word) is not None and not touches
