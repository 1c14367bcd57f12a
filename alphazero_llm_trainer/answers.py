r"""Reading a final answer out of text, and deciding when two answers are the same. The only place that does either.

`extract` looks for an answer by these rules, in this order:

1. `####`: what follows it on the last line that has one (Markdown headings such as `#### Step 1:` are not answers);
2. `\boxed{...}`: the last box, nested braces included;
3. "answer is" or "answer:": the rest of that sentence; the last one counts;
4. the last number anywhere in the text.

`strict=False` (the default) keeps all four, and where rule 1 or 3 finds words with exactly one number among them, that
number is the answer. `strict=True` keeps rule 1 alone and takes the line as it stands. `words=True` is for answers that
need not be numbers (LaTeX, names): rules 1 to 3, each as it stands.

`normalize` maps an answer to a key, and `equal` compares keys. Numbers are compared as exact fractions: thousands
separators, currency, units and trailing zeros don't matter; a percent sign is a unit (`50%` is 50, not 1/2).
"""

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction
from functools import lru_cache

from .errors import DataError

CACHED_TEXTS = 8192  # a search reads the same few lines again and again
MAX_NUMBER_LENGTH = 300  # a longer text is never a number: int() refuses more than 4,300 digits
SCALES = {"hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
NO_UNIT = {"and", "or", "to", "point", "x"}  # "5 and a half" is not 5

_DECIMAL = r"(?>(?>[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)"
_VALUE = re.compile(
    r"(?P<sign>[-+]?)\s*"
    r"(?:(?P<whole>[0-9]+)\s+(?P<top>[0-9]+)/(?P<bottom>[0-9]+)"
    rf"|(?P<number>{_DECIMAL})(?:\s*/\s*(?P<divisor>{_DECIMAL}))?(?:[eE](?P<exponent>[-+]?[0-9]{{1,2}})(?![0-9]))?)"
)
_UNIT_WORD = re.compile(r"(?:[^\W\d_]+(?:[-/'’.][^\W\d_]+)*[.'’]?|(?:m|[^\W\d_]{2,})\^[23]|/)")
_PREFIX = re.compile(
    r"(?:.*=|[a-z ]+:)?\s*(?:about|approximately|around|roughly|nearly|≈|\\approx)?\s*(?:usd|eur|gbp|us|rs\.?)?\s*",
    re.IGNORECASE | re.DOTALL,
)
# A number in running text. A minus after a digit, a letter or a closing bracket is an operator or a hyphen, and digits
# that touch a letter belong to a name or a term (`H2O`, `3x`) unless a unit of at least two letters follows.
_TOKEN = re.compile(
    r"(?:(?:(?<![\w)%\].])(?<![0-9)%\]]\s)[-+])?[$€£¥₹]?|[$€£¥₹]-)(?<![\w.])"
    rf"(?>[0-9]+ [0-9]+/[0-9]+|{_DECIMAL}(?:/{_DECIMAL})?(?:[eE][-+]?[0-9]{{1,2}}(?![0-9]))?)"
    r"(?:%|(?![\w\\^])|(?=[A-Za-z]{2}))"
)
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
        (r"(?<=[0-9])\\[,!](?=[0-9]{3}(?![0-9]))", ""),
        (r"\{,\}", ","),
        (r"\\[dtc]?frac\s*\{\s*(-?[0-9.,]+)\s*\}\s*\{\s*([0-9.,]+)\s*\}", r" \1/\2"),
        (r"\\[dtc]?frac\s*([0-9])\s*([0-9])", r" \1/\2"),
        (r"\\(?:text|textbf|mathrm|mathbf|mbox|operatorname)\s*\{([^{}]*)\}", r" \1"),
        (r"\\(?:left|right|displaystyle)(?![A-Za-z])|\\[()\[\]!]", ""),
        (r"\\[,;: ]|~", " "),
        (r"\\([$%#&])", r"\1"),
        (r"\^\{\\circ\}|\^?\\(?:circ|degree)(?![A-Za-z])", "°"),
        (r" ?(?:\\times|\\cdot|×|\*) ?10\^\{?([-+]?[0-9]{1,2})\}?(?![0-9])", r"e\1"),
    )
)


@lru_cache(maxsize=CACHED_TEXTS)
def extract(text: str, strict: bool = False, words: bool = False) -> str | None:
    """The final answer in `text` as it was written, or None where there is none.

    Args:
        text: a response, possibly cut off.
        strict: True takes a `####` line only; False tries every rule of the module's docstring.
        words: True looks for no number where the text only states words.
    """
    lines = [m[1].strip() for m in _HASHES.finditer(text) if normalize(m[1]) and not _HEADING.match(m[1])]
    if strict:
        return lines[-1] if lines else None
    if lines:
        return lines[-1] if words else _one_number(lines[-1])
    box = _last_box(text)
    if box is not None and normalize(box):
        return box
    sentences = [sentence.strip() for sentence in _ANSWER_IS.findall(text) if normalize(sentence)]
    if sentences:
        return sentences[-1] if words else _one_number(sentences[-1])
    if words:
        return None
    numbers = _TOKEN.findall(_plain(text))
    return numbers[-1] if numbers else None


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
    return "####" in step and extract(step, strict=True) is not None


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


def gold(text: str) -> str:
    """The normalised gold number of a GSM8K `answer` column.

    Raises:
        DataError: there is no `####` line, or what follows it is not a number.
    """
    found = extract(text, strict=True)
    value = None if found is None else _value(_plain(found))
    if value is None:
        shown = text if len(text) <= 80 else "..." + text[-80:]
        raise DataError(f"gold answer {shown!r} has no number after '####': end it with a line such as `#### 72`")
    return str(value)


def _one_number(found: str) -> str:
    """`found`, or the number in it where it is a sentence with one number."""
    plain = _plain(found)
    if _value(plain) is not None:
        return found
    numbers = _TOKEN.findall(plain)
    return numbers[0] if len(numbers) == 1 else found


def _last_box(text: str) -> str | None:
    """What the complete box that opens last holds, or None."""
    last, open_braces = (-1, ""), []
    for brace in _BRACES.finditer(text):
        if brace[0] != "}":
            open_braces.append(brace.end() if brace[0] != "{" else -1)
        elif open_braces:
            start = open_braces.pop()
            last = max(last, (start, text[start : brace.start()].strip()) if start >= 0 else last)
    return last[1] if last[0] >= 0 else None


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
    text = re.sub(r"\s+", " ", text.casefold())
    return _strip(re.sub(r" ?([-+*/=^(),{}]) ?", r"\1", text))


def _strip(text: str) -> str:
    # A full stop goes at the end only: at the front it is a decimal point.
    return text.lstrip(" \t\r\n*`'\"_,;:").rstrip(" \t\r\n*`'\"_.,;:!?")


def _value(text: str) -> Fraction | None:
    """The exact number that `text`, as `_plain` left it, stands for, or None where it isn't one number."""
    if len(text) > MAX_NUMBER_LENGTH:
        return None
    text = re.sub(r"[$€£¥₹]", "", _strip(text)).strip("()[]{} \t\r\n")
    text = text[_PREFIX.match(text).end() :]  # type: ignore[union-attr]  # every part is optional: it always matches
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
    """Whether what follows a number is a unit: words, possibly after a percent or degree sign, or nothing."""
    attached = rest[:1].isalpha()
    if rest.strip()[:1] in ("%", "°"):
        rest = rest.strip()[1:]
    words = rest.replace(",", " ").split()
    if not words:
        return True
    # One letter that touches the number is a term (3x, 5i), not a unit.
    if words[0].casefold() in NO_UNIT or (attached and len(words[0]) == 1):
        return False
    return all(_UNIT_WORD.fullmatch(word) for word in words)
