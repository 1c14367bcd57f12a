r"""Is a response right? The one place where a response meets its gold answer, by the rule of the
problem's source.

A source names one of `GRADERS`. Each takes the answer out of the response by `answers.extract`, in
its order: a `####` line, the last `\boxed{}`, "the answer is". Of a response that a limit cut
(`strict`) only the first two count, in training, search and evaluation alike. After that:

* **numbers**: the last number, too; what is no number is no answer. Equal by `answers.equal`.
* **any**: numbers, or what stands in their place: for questions of which nobody says how they are
  answered.
* **math**: where there is no such answer, math-verify looks for one in the response's end (LaTeX,
  then numbers). A number against a number is decided by its exact value, a decimal of six digits
  may be rounded. A set is no pair and no interval; an inequality in one variable is the interval
  that it describes. Values of several names are a tuple in the order of the names, three terms and
  a colon between them a ratio, and propositions are compared by logic. Primes, transposes and
  derivatives, which math-verify drops, must agree. Two equations (`x = 5` and `y = 5`), percentages
  and whatever else `answers.equal` doesn't find equal are math-verify's, in a process of its own
  (see `math_verifier`).
* **words**: where there is no such answer, a response of one line is the answer. EM and F1 over
  words after the official normalisation of HotpotQA (`hotpot_evaluate_v1.py`, Yang et al. 2018),
  but for marks that mean something (C++, p & q, Hepatitis A); right means EM, and F1 is the score.
  Where gold is yes, no, true or false, an answer may explain it behind a comma ("No, it isn't").
* **exact**: as words; right means the same text but for white space, and for tags that gold has
  not.
* **choice**: as words; the letter that the answer names counts (`answers.letter`). What names none
  is passed over (a box of a formula), of a response without one the last line that names one
  counts; options that are only listed are no choice.
* **mixed**: each by the rule of its gold answer's kind.

Answers other than numbers are taken as they stand. A gold answer that is a sentence ("The answer is
5.") is what it states, but where the rule is exact.
"""

from __future__ import annotations

import re
import string
import struct
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from functools import partial
from typing import ClassVar

from . import answers
from .math_verifier import Request, shared_verifier
from .tables import NUMBERS, PATTERNS, TABLES, load_translation, rewrite_text

LETTERS = string.ascii_uppercase  # of choices
LONGEST_ANSWER = 1000  # characters; what is longer is no final answer

KIND_NAMES = {
    "numbers": "numbers",
    "choice": "letters of choices",
    "math": "formulas",
    "units": "numbers with units",
    "words": "words",
}
NOTATIONS = TABLES["notations"]
FLOAT_DIGITS = 7  # of a decimal that is a float written out, at least
DOUBLE_DIGITS = 15  # of one of 64 bits
LARGEST_SINGLE = 3.4e38
ROUNDED_DIGITS = 6  # that a decimal must show to stand for a number that it is not
MOST_PLACES = 30  # that are looked at
_FOLDED = load_translation("folded") | load_translation("characters")
_CLOSED = {"yes", "no", "noanswer"}  # no partial credit for, or by, these


class Verdict(StrEnum):
    """unparsed: no answer was found in the response, or it can't be read; timed-out: math-verify or
    a task's own reward took too long; failed: a task's own reward raised an error."""

    CORRECT = "correct"
    WRONG = "wrong"
    UNPARSED = "unparsed"
    TIMED_OUT = "timed-out"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Grade:
    """A verdict, the answer it is about (as written), F1 in [0, 1] of words, and `partial`
    credit in [0, 1] where a rule gives more than right and wrong. `error` is one sentence where
    there is no grade: nothing is to be learnt from it."""

    verdict: Verdict
    answer: str | None
    f1: float | None = None
    partial: float | None = None
    error: str | None = None

    @property
    def correct(self) -> bool:
        return self.verdict is Verdict.CORRECT

    @property
    def score(self) -> float:
        """The correctness reward, in [0, 1]: the partial credit where there is some, else 1.0 for a
        correct answer and 0.0."""
        return float(self.correct) if self.partial is None else self.partial


# Finds the answer in a response; True: one that is marked alone.
ReadAnswer = Callable[[str, bool], str | None]


class Grader:
    """How answers are found and compared: any as it stands; a subclass differs. `waits`: it asks
    another process. `find` finds the answer in a response."""

    waits = False
    find: ClassVar[Callable[..., str | None]] = staticmethod(answers.extract)

    def final_answer(self, response: str, strict: bool = False) -> str | None:
        r"""The answer that `response` states, as written, or None.

        strict: a `####` line or a `\boxed{}` alone counts, as of a response that a limit cut.
        """
        return self.find(response, strict=strict)

    def grade_many(
        self, pairs: Sequence[tuple[str, str]], strict: bool = False, read: ReadAnswer | None = None
    ) -> list[Grade]:
        """The grades of (response, gold) pairs. `strict` as in `final_answer`; `read` finds the
        answers in its place."""
        read = read or self.final_answer
        return [self.compare(read(response, strict), gold) for response, gold in pairs]

    def compare(self, answer: str | None, gold: str) -> Grade:
        """The grade of an answer."""
        if answer is None:
            return Grade(Verdict.UNPARSED, None)
        return Grade(Verdict.CORRECT if self.same(answer, gold) else Verdict.WRONG, answer)

    def same(self, answer: str, gold: str) -> bool:
        """Whether two answers are the same."""
        return answers.equal(answer, answers.bare(gold))

    def key(self, answer: str) -> str:
        """What equal answers share."""
        return answers.normalize(answer)


class NumberGrader(Grader):
    """Numbers. A decimal of seven digits or more, as floats have, is compared within its own
    precision. What is no number is no answer."""

    find = staticmethod(answers.extract_number)

    def same(self, answer: str, gold: str) -> bool:
        """Whether two answers are the same."""
        number, wanted = answers.number(answer), answers.gold_number(gold)
        if number is None or wanted is None:
            return super().same(answer, gold)
        return number == wanted or abs(number - wanted) < _gold_precision(gold)


class MathGrader(Grader):
    """LaTeX. It waits for math-verify, 5 CPU seconds at most and about a second more after an
    answer that took longer."""

    waits = True
    find = staticmethod(partial(answers.extract, words=True))

    def grade_many(
        self, pairs: Sequence[tuple[str, str]], strict: bool = False, read: ReadAnswer | None = None
    ) -> list[Grade]:
        """The grades of (response, gold) pairs. Math-verify gets all pairs in one batch."""
        read = read or self.final_answer
        grades: list[Grade] = []
        asked = dict[int, Request]()
        for i, (response, written) in enumerate(pairs):
            answer, gold = read(response, strict), written
            if answer is not None:
                stated, gold = map(_written_out, _same_kind(answer, answers.bare(written)))
                stated, gold = _in_order(stated, gold)
                if not PATTERNS.tuple.match(gold):
                    stated = PATTERNS.tuple.sub("", stated)
                verdict = _without_math_verify(stated, gold)
                text = answers.without_unit(stated.strip().rstrip(".,;:").strip("* "))
            else:
                said = answers.spoken(response)
                none = strict or not said.strip() or len(gold) > LONGEST_ANSWER
                verdict, text = Verdict.UNPARSED if none else None, said[-LONGEST_ANSWER:]
            if verdict is None:
                asked[i] = Request(answers.without_unit(gold), text, answer is not None)
            grades.append(Grade(verdict or Verdict.UNPARSED, answer))
        if asked:
            verdicts = shared_verifier()([*asked.values()])
            for i, name in zip(asked, verdicts, strict=True):
                grades[i] = Grade(Verdict(name), grades[i].answer)
        return grades


TRUTH: dict[str, str] = TABLES["truth"]
# An answer that begins with one of these and a comma: the words behind explain it.
OPPOSITE: dict[str, str] = TABLES["opposite"]


def extract_line(text: str, strict: bool = False) -> str | None:
    """The answer that a response states in words; a response of one line is an answer."""
    stated, said = answers.extract(text, strict, words=True), answers.spoken(text).strip()
    if stated is None and not strict and "\n" not in said:
        return said or None
    return stated


class ExactGrader(Grader):
    """Any text: the same but for white space, and for tags where the gold answer has none."""

    find = staticmethod(extract_line)

    def same(self, answer: str, gold: str) -> bool:
        """Whether two answers are the same."""
        return self.key(gold) in (self.key(answer), self.key(answers.untagged(answer)))

    def key(self, answer: str) -> str:
        """What equal answers share."""
        return " ".join(answer.split())


class WordsGrader(ExactGrader):
    """Words, as HotpotQA and SQuAD compare them."""

    def compare(self, answer: str | None, gold: str) -> Grade:
        """The grade of an answer. F1 is its partial credit."""
        if answer is None:
            return Grade(Verdict.UNPARSED, None, 0.0, 0.0)
        answer, gold = map(answers.bare, (answer, gold))
        opposite, begun = OPPOSITE.get(normalize_words(gold)), PATTERNS.begun.match(answer)
        if opposite and begun and opposite not in normalize_words(begun[2]).split():
            answer = begun[1]
        if TRUTH.get(normalize_words(gold)) == normalize_words(answer):
            gold = answer
        f1 = word_f1(answer, gold)
        return replace(super().compare(answer, gold), f1=f1, partial=f1)

    def same(self, answer: str, gold: str) -> bool:
        """Whether two answers are the same. Brackets around numbers or variables are one kind, or
        in one alone.
        """
        ends = {m[1] + m[2] for text in (answer, gold) if (m := PATTERNS.bracketed.fullmatch(text))}
        return super().same(answer, gold) and len(ends) < 2

    def key(self, answer: str) -> str:
        """The form of an answer by which equal ones are counted together in a vote."""
        return normalize_words(
            answer.replace(",", ", ") if PATTERNS.bracketed.fullmatch(answer) else answer
        )


class UnitsGrader(ExactGrader):
    """Numbers with a unit, among answers of other kinds: the number, with that unit or without."""

    def same(self, answer: str, gold: str) -> bool:
        """Whether two answers are the same."""
        if "\\" in answer or not re.search(r"[^\W\d_]", answer):
            return GRADERS["numbers"].same(answer, gold)
        return self.key(answer) == self.key(gold)

    def key(self, answer: str) -> str:
        """What equal answers share."""
        return rewrite_text(normalize_words(answer), "units").replace(" ", "")


class ChoiceGrader(ExactGrader):
    """One letter of several choices. What names no choice is no answer beside what names one."""

    find = staticmethod(answers.extract_choice)

    def key(self, answer: str) -> str:
        """The form of an answer by which equal ones are counted together in a vote."""
        return answers.letter(answer) or normalize_words(answer)


class MixedGrader(Grader):
    """Gold answers of several kinds: each is met by the rule of its own kind."""

    waits = True

    def grade_many(
        self, pairs: Sequence[tuple[str, str]], strict: bool = False, read: ReadAnswer | None = None
    ) -> list[Grade]:
        """The grades of (response, gold) pairs."""
        kinds = [kind_of(gold) for _, gold in pairs]
        graded = {}
        for kind in set(kinds):
            own = [pair for pair, other in zip(pairs, kinds, strict=True) if other == kind]
            graded[kind] = iter(GRADERS[kind].grade_many(own, strict, read))
        return [next(graded[kind]) for kind in kinds]


GRADERS: dict[str, Grader] = {
    "any": Grader(),
    "numbers": NumberGrader(),
    "math": MathGrader(),
    "words": WordsGrader(),
    "units": UnitsGrader(),
    "exact": ExactGrader(),
    "choice": ChoiceGrader(),
    "mixed": MixedGrader(),
}


def is_no_answer(gold: str) -> bool:
    """Whether a gold answer is what a failed computation or a missing value leaves: NaN or an
    infinity, as Python writes them, or N/A."""
    return re.fullmatch(r"[-+]?(?:nan|inf)|#?n/a", gold.strip(), re.IGNORECASE) is not None


def kind_of(gold: str) -> str:
    """The rule that fits one gold answer: numbers, units (a number with words that are no name:
    `150 km`), choice (a letter), math (LaTeX or a formula) or words."""
    gold = answers.bare(gold)
    name = any(word.istitle() and len(word) > 2 for word in gold.split())  # 12 Angry Men
    if answers.gold_number(gold) is not None and "\\" not in gold and not name:
        return "units" if re.search(r"[^\W\d_]{2}", gold) else "numbers"
    if len(gold) == 1 and gold.upper() in LETTERS:
        return "choice"
    plain = PATTERNS.function.sub("π", gold.strip(" ."))
    signs = PATTERNS.signs.match(plain) and answers.gold_number(gold) is None
    if PATTERNS.latex.search(gold) or signs or PATTERNS.formula.fullmatch(plain):
        return "math"
    parts = re.split(r",\s*", gold)
    listed = len(parts) > 1 and all(kind_of(part) in ("numbers", "math") for part in parts)
    return "math" if listed else "words"


def guess_grader(golds: Sequence[str]) -> tuple[str, str]:
    """The rule that fits gold answers, and why in words: numbers where all are numbers, with units
    or without, or where there are none; math where all are numbers, formulas or letters; of other
    mixtures each by the rule of its kind."""
    known = [gold for gold in golds if gold.strip()]
    if all(answers.gold_number(gold) is not None for gold in known):
        return "numbers", "all gold answers are numbers" if known else "there are no gold answers"
    kinds = {kind_of(gold) for gold in known}
    if len(kinds) == 1:
        [kind] = kinds
        return kind, f"all gold answers are {KIND_NAMES[kind]}"
    why = f"the gold answers are {' and '.join(KIND_NAMES[kind] for kind in sorted(kinds))}"
    if "math" in kinds and kinds.isdisjoint(("units", "words")):
        return "math", why
    return "mixed", f"{why}, each met by the rule of its kind; problems.grade sets one rule for all"


def normalize_words(text: str) -> str:
    """HotpotQA's and SQuAD's normalisation: lower case, no punctuation, no articles, single spaces.

    Beyond it, accents and punctuation of any script go, and punctuation that means something stays:
    1.5 is not 15, C++ is not C.
    """
    text = rewrite_text(answers.unglued(PATTERNS.text.sub(r"\1", answers.untagged(text))), "twins")
    text = unicodedata.normalize("NFKD", text.casefold())
    text = re.sub("[\u0300-\u0337\u0339-\u036f]", "", text).translate(_FOLDED)
    text = unicodedata.normalize("NFC", text)
    text = re.sub(r"(?<=\b[a-z])\.\s*(?=[a-z]\b)", "", text)  # J. K. and J.K. are JK
    said = PATTERNS.joined.sub(r"\1\2", PATTERNS.marks.sub(_drop_mark, text))
    return " ".join(
        PATTERNS.articles.sub(_drop_mark, said if re.search(r"\w", said) else text).split()
    )


def _drop_mark(mark: re.Match[str]) -> str:
    """The mark, or nothing where it changes nothing that is meant."""
    category = unicodedata.category(mark[0][0])
    return mark[0] if mark["kept"] or category == "Sm" or category[0] not in "CPSL" else ""


def word_f1(answer: str, gold: str) -> float:
    """F1 of the normalised words, with multiplicity. Yes, no and noanswer match themselves only."""
    stated, wanted = normalize_words(answer), normalize_words(gold)
    if stated != wanted and (stated in _CLOSED or wanted in _CLOSED):
        return 0.0
    words, gold_words = stated.split(), wanted.split()
    common = (Counter(words) & Counter(gold_words)).total()
    return 0.0 if common == 0 else 2 * common / (len(words) + len(gold_words))


def _written_out(text: str) -> str:
    """`text` with LaTeX for its repeating decimals and for raised and lowered digits, one spelling
    for primes, transposes and derivatives, and a tuple for a ratio of three terms or more."""
    text = answers.untagged(text)
    text = PATTERNS.shifted.sub(
        lambda m: f"{'^' if m[1] else '_'}{{{unicodedata.normalize('NFKC', m[0])}}}", text
    )
    text = rewrite_text(text, "written")
    text = PATTERNS.transposed.sub(lambda m: "".join(f"{name}^T" for name in reversed(m[1])), text)
    terms = text.strip(" $.").split(":")
    if len(terms) > 2 and not re.search(r"\\\{|[|=<>]", text):
        numbers = [answers.number(term) for term in terms]
        shares = [number / sum(filter(None, numbers)) for number in numbers if number]
        text = f"({', '.join(map(str, shares) if len(shares) == len(terms) else terms)})"
    return answers.repeating(text)


def _same_kind(answer: str, gold: str) -> tuple[str, str]:
    r"""An answer and a gold answer without labels such as `\textbf{(A)}`, but where the other is a
    letter: then the label."""
    (label, value), (gold_label, gold_value) = _split_label(answer), _split_label(gold)
    if label and (re.fullmatch(r"\(?[A-Z]\)?", gold) or not value):
        return label, gold.strip("()")
    if gold_label and (re.fullmatch(r"\(?[A-Z]\)?", answer) or not gold_value):
        return answer.strip("()"), gold_label
    return value, gold_value


def _split_label(latex: str) -> tuple[str, str]:
    """A choice's label in front of `latex`, "" where there is none, and what remains."""
    parts = PATTERNS.choice_label.fullmatch(latex.strip())
    if parts is None:
        return "", latex
    return parts[1] or parts[3], f"{parts[2] or ''}{parts[4]}".strip().removesuffix("$")


def _gold_precision(gold: str) -> Fraction:
    """What an answer may be off from a gold answer that is a float: one unit of the last place of a
    decimal with seven digits or more, four of them behind the point, or the precision of the bits
    that a decimal of 15 digits or more was made of. 0 for any other."""
    parts = re.fullmatch(r"[-+]?(\d*)\.(\d{4,})", gold.strip())
    digits = 0 if parts is None else len((parts[1] + parts[2]).lstrip("0"))
    if parts is None or digits < FLOAT_DIGITS:
        return Fraction(0)
    value = abs(float(gold))
    bits = Fraction(0)
    if digits >= DOUBLE_DIGITS and value < LARGEST_SINGLE:
        [single] = struct.unpack("f", struct.pack("f", value))  # the nearest of 32 bits
        bits = Fraction(value) / 2 ** (24 if single == value else 47)
    return max(bits, Fraction(1, 10 ** len(parts[2])))


def _without_math_verify(answer: str, gold: str) -> Verdict | None:
    """The verdict where it needs no algebra, else None."""
    if len(answer) > LONGEST_ANSWER:
        return Verdict.UNPARSED
    if any(PATTERNS.date.fullmatch(text.strip(" $.")) for text in (answer, gold)):
        return Verdict.CORRECT if answers.equal(answer, gold) else Verdict.WRONG
    number, wanted = answers.number(answer), answers.number(gold)
    if number is not None and wanted is not None:
        if "=" in answer and "=" in gold:
            return None  # x = 5 is not y = 5
        if number == wanted or _is_rounded(number, wanted) or _is_rounded(wanted, number):
            return Verdict.CORRECT
        return None if PATTERNS.percent.search(f"{answer}\n{gold}") else Verdict.WRONG
    times = sorted((PATTERNS.no_clock.sub("", text).lower() for text in (answer, gold)), key=len)
    if all(map(PATTERNS.clock.fullmatch, times)):  # one may leave the half of the day unsaid
        return Verdict.CORRECT if times[0] in (times[1], times[1][:-2]) else Verdict.WRONG
    if _dropped_marks(answer, gold) != _dropped_marks(gold, answer):
        return Verdict.WRONG
    if answers.equal(answer, gold):
        return Verdict.CORRECT
    based, wanted_base = _in_base(answer), _in_base(gold)
    if based is not None and (wanted_base is not None or based[1] != "10"):
        return Verdict.CORRECT if based == wanted_base else Verdict.WRONG
    # math-verify reads a set as a pair, or as an interval.
    return (
        Verdict.WRONG if {_bracket_kind(answer), _bracket_kind(gold)} == {"set", "pair"} else None
    )


def _in_order(answer: str, gold: str) -> tuple[str, str]:
    """An answer and a gold answer; where one gives values to several names, both as tuples in the
    order of the names."""
    given = [_read_assigned(answer), _read_assigned(gold)]
    if not any(given) or (all(given) and given[0].keys() != given[1].keys()):
        return answer, gold
    answer, gold = (
        f"({', '.join(value for _, value in sorted(values.items()))})"
        if values
        else text
        if _bracket_kind(text) == "pair"
        else f"({text})"
        for text, values in zip((answer, gold), given, strict=True)
    )
    return answer, gold


def _read_assigned(text: str) -> dict[str, str]:
    """The values that `x = 1, y = 2` or `(x, y) = (1, 2)` give to two names or more, else none."""
    text = re.sub(r"\\(?:left|right)(?![a-zA-Z])|[$\s]|(?<=[)\w]),?\\q?quad", " ", text).strip(" .")
    pair = PATTERNS.tuple.match(text)
    if pair:
        parts = text[pair.end() :].strip(" ()").split(",")
        values = dict(zip(re.findall("[a-zA-Z]", pair[0]), parts, strict=False))
    else:
        parts = PATTERNS.apart.split(text)
        values = dict(given for part in parts for given in PATTERNS.given.findall(part))
    return values if 1 < len(values) == len(parts) else {}


def _dropped_marks(text: str, other: str) -> list[str]:
    """What `text` has of the marks that math-verify drops: primes, transposes with the product that
    they stand in, derivatives; of the right side alone where `other` has no left one."""
    text = re.sub(r"[\s{}$]|\\(?:left|right|cdot|,)", "", text)
    return sorted(PATTERNS.dropped.findall(text if "=" in other else text.rpartition("=")[2]))


def _is_rounded(decimal: Fraction, exact: Fraction) -> bool:
    """Whether `decimal` is `exact` rounded to six or more places, with as many digits that aren't
    leading zeros."""
    if 10 ** (ROUNDED_DIGITS - 1) % decimal.denominator == 0:
        return False
    places = ROUNDED_DIGITS
    while places < MOST_PLACES and 10**places % decimal.denominator:
        places += 1
    off = abs(decimal - exact) * 10**places
    return abs(decimal) * 10**places >= 10 ** (ROUNDED_DIGITS - 1) and off <= Fraction(1, 2)


def _in_base(text: str) -> tuple[str, str] | None:
    """The digits and the base of a number in a base (`52_8`), None for any other text. The base is
    what is written, where it is none (`52_a`)."""
    number = PATTERNS.base.fullmatch(PATTERNS.no_base.sub("", text))
    if number is None:
        return None
    digits, named = number[1].upper().lstrip("0"), (number[2] or number[3]).lower()
    base = str((NUMBERS | NOTATIONS).get(named, named))
    largest = int(base) if base.isdigit() else 10
    if any(letter.isalpha() and int(letter, 36) >= largest for letter in digits):
        return None  # a_1 is a term
    return digits, base


def _bracket_kind(text: str) -> str | None:
    """`set` or `pair` for `\\{a, b\\}` or `(a, b)` and its like, intervals too; None for any other
    text."""
    text = rewrite_text(text, "brackets")
    names = PATTERNS.names.match(text)
    text = text[names.end() if names else 0 :]
    depth, commas = 0, 0
    for place, sign in enumerate(text):
        depth += (sign in "([{") - (sign in ")]}")
        commas += sign == "," and depth == 1
        if depth == 0 and place < len(text) - 1:
            return None
    if not commas or depth:
        return None
    return "set" if text[0] == "{" else "pair"
