r"""Is a response right? The one place where a response meets its gold answer, by the rule of the problem's source.

The answer is taken out of the response by `answers.extract`, in its order: a `####` line, the last `\boxed{}`, "the
answer is". After that:

* **embedded, gsm8k and every source not named below**: the last number, too; equal by `answers.equal`.
* **math**: where there is no such answer, math-verify looks for one in the response's end (LaTeX, then numbers). A number
  against a number is decided by its exact value, a decimal of six digits may be rounded. Two equations (`x = 5` and
  `y = 5`), percentages and whatever else `answers.equal` doesn't find equal are math-verify's, in a process of its own
  (see `math_verifier`).
* **hotpotqa**: where there is no such answer, a response of one line is the answer. EM and F1 over words after the
  official normalisation (`hotpot_evaluate_v1.py`, Yang et al. 2018); right means EM.

Answers to math and hotpotqa need not be numbers, so there `answers.extract` takes them as they stand.
"""

from __future__ import annotations

import asyncio
import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

from .. import answers
from .math_verifier import MathVerifier, Request, shared_verifier

MATH, HOTPOTQA = "math", "hotpotqa"
LONGEST_ANSWER = 1000  # characters; what is longer is no final answer

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_BASE = re.compile(r"\S*_\s*\{?(\d+)\}?")  # 52_8 and 52_{8}
_PERCENT = re.compile(r"%|per ?cent")
ROUNDED_DIGITS = 6  # that a decimal must show to stand for a number that it is not
MOST_PLACES = 30  # that are looked at
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_CLOSED = {"yes", "no", "noanswer"}  # no partial credit for, or by, these


class Verdict(StrEnum):
    """unparsed: no answer was found in the response, or it can't be read; timed-out: math-verify took too long."""

    CORRECT = "correct"
    WRONG = "wrong"
    UNPARSED = "unparsed"
    TIMED_OUT = "timed-out"


@dataclass(frozen=True, slots=True)
class Grade:
    """A verdict, the answer it is about (as written), and HotpotQA's EM and F1 in [0, 1]."""

    verdict: Verdict
    answer: str | None
    em: float | None = None
    f1: float | None = None

    @property
    def correct(self) -> bool:
        return self.verdict is Verdict.CORRECT

    @property
    def hre(self) -> float:
        """The hard reward estimate of docs/design.md, section 5: 1.0 for a correct answer, else 0.0."""
        return 1.0 if self.correct else 0.0


def final_answer(source: str, response: str, strict: bool = False) -> str | None:
    r"""The answer that `response` states, as written, or None.

    Args:
        source: the problem's source.
        response: a response, possibly cut off.
        strict: True counts a `####` line only, and for math a `\boxed{}` too: what a finished response is marked with.
    """
    if source not in (MATH, HOTPOTQA):
        return answers.extract(response, strict=strict)
    found = answers.extract(response, strict=strict, words=True)
    if found is None and strict and source == MATH and r"\boxed" in response:
        found = answers.extract(response, words=True)
    if found is None and not strict and source == HOTPOTQA and "\n" not in response.strip():
        found = response.strip() or None
    return found


def vote_key(source: str, response: str) -> str:
    """What responses with the same answer share, for majority votes; "" where there is no answer."""
    found = final_answer(source, response) or ""
    return normalize_words(found) if source == HOTPOTQA else answers.normalize(found)


def grade(source: str, response: str, gold: str, strict: bool = False) -> Grade:
    """The grade of one response (see the module's docstring; `strict` as in `final_answer`).

    It waits for math-verify, 5 CPU seconds at most and about a second more after an answer that took longer.
    """
    return grade_many(source, [(response, gold)], strict)[0]


async def grade_async(source: str, response: str, gold: str, strict: bool = False) -> Grade:
    """`grade` without holding up the event loop."""
    if source == MATH:
        return await asyncio.to_thread(grade, source, response, gold, strict)
    return grade(source, response, gold, strict)


def grade_many(
    source: str, pairs: Sequence[tuple[str, str]], strict: bool = False, verifier: MathVerifier | None = None
) -> list[Grade]:
    """The grades of many (response, gold) pairs; math-verify gets them in one batch.

    Args:
        source: the problems' source.
        pairs: responses and gold answers.
        strict: as in `final_answer`.
        verifier: the math-verify process; None takes the one that this process shares.
    """
    if source == MATH:
        return _math(pairs, strict, verifier)
    rule = _hotpotqa if source == HOTPOTQA else _plain
    return [rule(final_answer(source, response, strict), gold) for response, gold in pairs]


def normalize_words(text: str) -> str:
    """HotpotQA's and SQuAD's normalisation: lower case, no punctuation, no articles, single spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def word_f1(answer: str, gold: str) -> float:
    """F1 of the normalised words, with multiplicity. Yes, no and noanswer match themselves only."""
    given, wanted = normalize_words(answer), normalize_words(gold)
    if given != wanted and (given in _CLOSED or wanted in _CLOSED):
        return 0.0
    words, gold_words = given.split(), wanted.split()
    common = (Counter(words) & Counter(gold_words)).total()
    return 0.0 if common == 0 else 2 * common / (len(words) + len(gold_words))


def _plain(answer: str | None, gold: str) -> Grade:
    if answer is None:
        return Grade(Verdict.UNPARSED, None)
    return Grade(Verdict.CORRECT if answers.equal(answer, gold) else Verdict.WRONG, answer)


def _hotpotqa(answer: str | None, gold: str) -> Grade:
    if answer is None:
        return Grade(Verdict.UNPARSED, None, 0.0, 0.0)
    right = normalize_words(answer) == normalize_words(gold)
    return Grade(Verdict.CORRECT if right else Verdict.WRONG, answer, float(right), word_f1(answer, gold))


def _math(pairs: Sequence[tuple[str, str]], strict: bool, verifier: MathVerifier | None) -> list[Grade]:
    grades: list[Grade] = []
    asked: list[tuple[int, Request]] = []
    for i, (response, gold) in enumerate(pairs):
        found = final_answer(MATH, response, strict)
        if found is not None:
            verdict = _without_math_verify(found, gold)
            text = answers.without_unit(found.strip().rstrip(".,;:").strip("* "))
        else:
            verdict = Verdict.UNPARSED if strict or not response.strip() or len(gold) > LONGEST_ANSWER else None
            text = response[-LONGEST_ANSWER:]
        if verdict is None:
            asked.append((i, Request(answers.without_unit(gold), text, found is not None)))
        grades.append(Grade(verdict or Verdict.UNPARSED, found))
    if asked:
        verdicts = (shared_verifier() if verifier is None else verifier)([request for _, request in asked])
        for (i, _), name in zip(asked, verdicts, strict=True):
            grades[i] = Grade(Verdict(name), grades[i].answer)
    return grades


def _without_math_verify(answer: str, gold: str) -> Verdict | None:
    """The verdict where it needs no algebra, else None."""
    if len(answer) > LONGEST_ANSWER:
        return Verdict.UNPARSED
    number, wanted = answers.number(answer), answers.number(gold)
    if number is not None and wanted is not None:
        if "=" in answer and "=" in gold:
            return None  # x = 5 is not y = 5
        if number == wanted or _rounded(number, wanted) or _rounded(wanted, number):
            return Verdict.CORRECT
        return None if _PERCENT.search(answer) or _PERCENT.search(gold) else Verdict.WRONG
    if answers.equal(answer, gold):
        return Verdict.CORRECT
    return Verdict.WRONG if _bases_differ(answer, gold) else None


def _rounded(decimal: Fraction, exact: Fraction) -> bool:
    """Whether `decimal` is `exact` rounded to six or more places, with as many digits that aren't leading zeros."""
    places = next((n for n in range(ROUNDED_DIGITS, MOST_PLACES) if 10**n % decimal.denominator == 0), MOST_PLACES)
    off = abs(decimal - exact) * 10**places
    return abs(decimal) * 10**places >= 10 ** (ROUNDED_DIGITS - 1) and off <= Fraction(1, 2)


def _bases_differ(answer: str, gold: str) -> bool:
    """Whether the answer is a number in a base that isn't the gold answer's: math-verify drops bases."""
    given, wanted = (_BASE.fullmatch(text.strip(" $*.")) for text in (answer, gold))
    return given is not None and given[1] != (wanted[1] if wanted else "10")
