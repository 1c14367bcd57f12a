r"""Graders against each other, on pairs whose truth is known because they are made from real rows.

A pair is a gold answer and a response that states it in another form (right), or states something else (wrong). Three
graders judge each pair: ours (`problems.grading`), math-verify alone on the whole response, and plain string match (the
stated answer is the gold answer, character for character).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from .. import answers
from ..problems.grading import RULES, Verdict, normalize_words
from ..problems.math_verifier import Request, shared_verifier
from ..problems.source import source_of
from ..types import Task

GRADERS = ("ours", "math-verify", "string")


@dataclass(frozen=True, slots=True)
class Pair:
    """A response to grade. `right` is the truth."""

    form: str
    task: Task
    response: str
    right: bool


@dataclass(frozen=True, slots=True)
class JudgedPair:
    """A pair with each grader's opinion whether it is right, and our verdict."""

    pair: Pair
    opinions: tuple[bool, ...]
    verdict: Verdict

    @property
    def pattern(self) -> str:
        """A `+` for each grader that is right about the pair, in the order of GRADERS, else `-`."""
        return "".join("+" if opinion == self.pair.right else "-" for opinion in self.opinions)


Form = Callable[[str], str | None]  # a gold answer -> the answer in another form; None where it has no such form


def _hashes(answer: str) -> str:
    return f"First this, then that.\n#### {answer}"


def _boxed(answer: str) -> str:
    return rf"Putting this together, we find that it must be \boxed{{{answer}}}, as was asked."


def _sentence(answer: str) -> str:
    return f"First this, then that.\nThe answer is {answer}."


def _number(gold: str) -> Fraction | None:
    return answers.number(gold) if re.fullmatch(r"[-\d.,/!\\{}a-z]+", gold) else None


def _integer(gold: str) -> int | None:
    value = _number(gold)
    return int(value) if value is not None and value.denominator == 1 else None


def _for_integers(write: Callable[[int], str | None]) -> Form:
    return lambda gold: None if (value := _integer(gold)) is None else write(value)


def _for_values(write: Callable[[str], str | None]) -> Form:
    """For golds that are one value: no list, equation, set, matrix, text, unit or number in another base."""
    return lambda gold: None if re.search(r"[,=_^]|\\(?:in|pm|text|mbox|begin|cup|\$)|^0$", gold) else write(gold)


def _replaced(pattern: str, new: str) -> Form:
    return lambda gold: changed if (changed := re.sub(pattern, new, gold)) != gold else None


def _decimal(gold: str) -> str | None:
    """A fraction that ends as a decimal, so written."""
    value = _number(gold)
    if value is None or value.denominator == 1 or 10**6 % value.denominator:
        return None
    return f"{float(value):.6f}".rstrip("0")


def _as_fraction(gold: str) -> str | None:
    """A decimal as a fraction in lowest terms."""
    value = _number(gold)
    if value is None or value.denominator == 1 or "." not in gold:
        return None
    return rf"\frac{{{value.numerator}}}{{{value.denominator}}}"


MATH_FORMS: dict[str, Form] = {
    "$gold$": lambda gold: f"${gold}$" if "$" not in gold else None,
    "gold.": lambda gold: f"{gold}.",
    "**gold**": lambda gold: f"**{gold}**",
    "x = gold": lambda gold: f"x = {gold}" if _number(gold) is not None else None,
    "no spaces": lambda gold: changed if (changed := gold.replace(" ", "")) != gold and "\\" not in gold else None,
    "1,234": _for_integers(lambda n: f"{n:,}" if abs(n) > 999 else None),
    "1{,}234": _for_integers(lambda n: f"{n:,}".replace(",", "{,}") if abs(n) > 999 else None),
    "5.0": _for_integers(lambda n: f"{n}.0"),
    "10/2": _for_integers(lambda n: rf"\frac{{{2 * n}}}{{2}}"),
    "5 (apples)": _for_integers(lambda n: f"{n} (apples)"),
    "dozen": _for_integers(lambda n: f"{n // 12} dozen" if n % 12 == 0 else None),
    "gold cm": _for_values(lambda gold: rf"{gold}\text{{ cm}}" if re.search(r"(?:[\d}]|pi)$", gold) else None),
    "5 apples": _for_integers(lambda n: f"{n} apples"),
    r"5\text{ cm}": _for_integers(lambda n: rf"{n}\text{{ cm}}"),
    r"\$5": _for_integers(lambda n: rf"\${n}"),
    "0.5 for 1/2": _decimal,
    "1/2 for 0.5": _as_fraction,
    r"\dfrac": _replaced(r"\\frac", r"\\dfrac"),
    r"\left(": lambda gold: (
        gold.replace("(", r"\left(").replace(")", r"\right)") if "(" in gold and r"\left" not in gold else None
    ),
    r"no \left": _replaced(r"\\left|\\right", ""),
    r"no \text": _replaced(r"\\text\{\(?([^()]*)\)?\}", r"\1"),
}
MATH_WRONG: dict[str, Form] = {
    "gold + 1": _for_integers(lambda n: str(n + 1)),
    "-gold": lambda gold: f"-{gold}" if (value := _number(gold)) is not None and value > 0 else None,
    "1/gold": _for_integers(lambda n: rf"\frac{{1}}{{{n}}}" if abs(n) > 1 else None),
    "another digit": lambda gold: re.sub(r"\d(?=\D*$)", lambda digit: str((int(digit[0]) + 1) % 10), gold),
    "another bracket": _replaced(r"\((.*)\]$|\[(.*)\)$|\[(.*)\]$", r"(\1\2\3)"),
    "(b, a)": _replaced(r"^(\(|\\left\()([^,()]+), ?([^,()]+)(\)|\\right\))$", r"\1\3,\2\4"),
    "gold!": _for_integers(lambda n: f"{n}!" if n > 2 else None),
    "gold^2": _for_integers(lambda n: f"{n}^2" if n > 1 else None),
    "gold_8": _for_integers(lambda n: f"{n}_8" if n > 7 else None),
    "gold i": _for_values(lambda gold: f"{gold} i"),
    "goldi": _for_values(lambda gold: f"{gold}i"),
    "goldx": _for_values(lambda gold: f"{gold}x"),
    "gold t": _for_values(lambda gold: f"{gold} t"),
    "goldab": _for_values(lambda gold: f"{gold}ab"),
    r"gold \pi": _for_values(lambda gold: rf"{gold} \pi"),
    "gold pi": _for_values(lambda gold: f"{gold} pi"),
    "gold dozen": _for_values(lambda gold: f"{gold} dozen"),
    r"gold\text{ dozen}": _for_values(lambda gold: rf"{gold}\text{{ dozen}}"),
    "gold out of five": _for_values(lambda gold: f"{gold} out of five"),
    "x + gold": _for_values(lambda gold: f"x + {gold}"),
    "2(gold)": _for_values(lambda gold: f"2({gold})"),
    "2x = gold": _for_values(lambda gold: f"2x = {gold}"),
    "x^2 = gold": _for_values(lambda gold: f"x^2 = {gold}" if gold != "1" else None),
    "x = 19 or x = gold": _for_values(lambda gold: f"x = 19 or x = {gold}" if gold != "19" else None),
    "x = 19, y = gold": _for_values(lambda gold: f"x = 19, y = {gold}"),
    "x >= gold": _for_values(lambda gold: f"x >= {gold}"),
    r"x \ge gold": _for_values(lambda gold: rf"x \ge {gold}"),
    "gold, 19": lambda gold: f"{gold}, 19" if gold != "19" else None,
    "x + y + z =": _replaced(r"^[^=]*=", "x + y + z ="),
    "right side": _replaced(r"^.*[^xy =].*=\s*", ""),
    "less than the list": _replaced(r",[^,]*?((?:\\right)?[\])}]?)$", r"\1"),
    "1000 gold": _for_integers(lambda n: str(1000 * n) if n else None),
}
WORD_FORMS: dict[str, Form] = {
    "gold.": lambda gold: f"{gold}.",
    "lower case": lambda gold: gold.lower() if gold.lower() != gold else None,
    "upper case": lambda gold: gold.upper() if gold.upper() != gold else None,
    "the gold": lambda gold: f"the {gold}",
    '"gold"': lambda gold: f'"{gold}"',
    "**gold**": lambda gold: f"**{gold}**",
    "no commas": _replaced(",", ""),
}
WORD_WRONG: dict[str, Form] = {
    "gold and more": lambda gold: f"{gold} and others besides",
    "half of gold": lambda gold: gold.rpartition(" ")[0] or None,
    "not gold": lambda gold: {"yes": "no", "no": "yes"}.get(gold, f"not {gold}"),
}


def same(rule: str, a: str, b: str) -> bool:
    """Whether two rows' gold answers are so alike that neither is a wrong answer to the other's question."""
    return normalize_words(a) == normalize_words(b) if rule == "words" else answers.equal(a, b)


def pairs(tasks: Sequence[Task]) -> Iterator[Pair]:
    """The pairs of the rows of one source: each way to state an answer, each form, and wrong answers."""
    rule = source_of(tasks[0].problem).rule
    forms, wrong = (WORD_FORMS, WORD_WRONG) if rule == "words" else (MATH_FORMS, MATH_WRONG)
    for i, task in enumerate(tasks):
        gold = task.gold
        for name, state in (("#### gold", _hashes), ("\\boxed{gold}", _boxed), ("the answer is gold", _sentence)):
            yield Pair(name, task, state(gold), True)
        if task.solution is not None:
            yield Pair("the row's solution", task, task.solution, True)
        for some, right in ((forms, True), (wrong, False)):
            for name, form in some.items():
                text = form(gold)
                if text is not None and (right or not same(rule, text, gold)):
                    yield Pair(name, task, _hashes(text), right)
        others = (tasks[(i + 1 + k) % len(tasks)].gold for k in range(len(tasks) - 1))
        other = next((one for one in others if not same(rule, one, gold)), None)
        if other is not None:
            yield Pair("another row's gold", task, _hashes(other), False)


def judge(all_pairs: Sequence[Pair]) -> list[JudgedPair]:
    """What the graders think of the pairs of one source."""
    source = source_of(all_pairs[0].task.problem)
    grades = source.grade_many([(pair.response, pair.task) for pair in all_pairs])
    alone = shared_verifier()([Request(pair.task.gold, pair.response, False) for pair in all_pairs])
    judged = []
    for pair, grade, verdict in zip(all_pairs, grades, alone, strict=True):
        stated = RULES["math"].final_answer(pair.response)
        opinions = (grade.correct, verdict == Verdict.CORRECT, stated == pair.task.gold)
        judged.append(JudgedPair(pair, opinions, grade.verdict))
    return judged


def tally(judged: Sequence[JudgedPair]) -> dict[str, Counter[str]]:
    """For each form the number of pairs with each pattern of right graders."""
    table: dict[str, Counter[str]] = {}
    for one in judged:
        table.setdefault(one.pair.form, Counter())[one.pattern] += 1
    return table


def failures(tasks: Sequence[Task]) -> list[tuple[str, str, Verdict]]:
    """(problem id, gold, verdict) of each gold answer that isn't correct against itself, stated as `#### gold`."""
    grades = source_of(tasks[0].problem).grade_many([(f"#### {task.gold}", task) for task in tasks])
    return [
        (task.problem.id, task.gold, grade.verdict)
        for task, grade in zip(tasks, grades, strict=True)
        if not grade.correct
    ]
