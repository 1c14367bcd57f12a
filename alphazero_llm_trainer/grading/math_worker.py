r"""The process that runs math-verify: one JSON request a line on stdin, one verdict a line on
stdout.

A request is `{"gold": LaTeX, "answer": text, "extracted": bool}`. `extracted` says that `answer` is
a final answer that was taken out of its response; otherwise it is running text, and math-verify
looks for the answer itself. The verdict is `correct`, `wrong` or `unparsed`; the first line is
`ready`. A timer of the system's ends the process when one takes too long.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import signal
import sys
from dataclasses import replace
from typing import Any

from math_verify import LatexExtractionConfig, grader, parse, verify
from math_verify.grader import is_equation, take_first_relation
from sympy import (
    And,
    Derivative,
    Expr,
    FiniteSet,
    Float,
    I,
    Interval,
    Mul,
    Or,
    S,
    Symbol,
    SympifyError,
    Union,
    Xor,
    cos,
    exp,
    expand,
    simplify,
    sympify,
)
from sympy.core.function import AppliedUndef
from sympy.core.relational import Relational
from sympy.logic.inference import satisfiable

from .tables import WORDS, rewrite_text

WALL_FACTOR = 12  # for a process that hardly gets a turn
MEMORY_BYTES = 4 << 30  # a power tower asks for all there is
# A final answer is one formula: no number is looked for in what can't be read, and no letter is
# dropped as a unit (math-verify reads `2t` and `3ab` as 2 and 3; `answers.without_unit` has dropped
# what is one).
LATEX = LatexExtractionConfig()
FORMULA = [replace(LATEX, normalization_config=replace(LATEX.normalization_config, units=False))]


RELATIVE = 1e-5  # that two decimals may be apart
COMPLEX_DIGITS = 50  # that complex numbers are compared with
EVALUATED_DIGITS = 400  # that a difference is looked at with before it counts as none
# Functions and letters in plain text, but not in the words of a formula.
PLAIN = re.compile(
    r"(?P<kept>\\(?:text\w*|mathrm|mbox)\s*\{[^{}]*\})|(?:\\operatorname\s*\{)?(?<![\\a-zA-Z])"
    rf"(?P<name>{WORDS['functions']}|{WORDS['greek']})(?![a-zA-Z])\}}?"
)
# ]3, 5[ is (3, 5)
_END = r"[^\[\](){},]+"
TURNED = re.compile(
    rf"(?:\\left)?(?P<opens>[\[\]])(?P<ends>{_END},{_END})(?:\\right)?(?P<closes>[\[\]])"
)
# \{x \mid 3 < x\} is 3 < x
BUILDER = re.compile(
    r"\\(?:left\\)?\{\s*[a-zA-Z]\s*(?:\\in\s*\\mathbb\s*\{?R\}?\s*)?(?:\\mid|:|\||\\colon)"
    r"((?:(?!\\\}).)+?)(?:\\right)?\\\}"
)
MEMBER = re.compile(r"\A\s*[a-zA-Z]\s*\\in(?![a-zA-Z])\s*(?=\\left|[(\[])")

numerically_equal = grader.sympy_numeric_eq


def exactly_equal(a: Any, b: Any, float_rounding: int, numeric_precision: int) -> bool:
    """math-verify's numeric comparison without its absolute tolerance: numbers that differ by less
    than it are no equals.

    Exact numbers are compared exactly, decimals by their relative difference.
    """
    if not numerically_equal(a, b, float_rounding, numeric_precision):
        return False
    if not (isinstance(a, Expr) and isinstance(b, Expr)) or (a.is_Rational and b.is_Rational):
        return True
    try:
        apart = expand(a.doit() - b.doit())
        if apart.free_symbols:
            return apart.has(Float) or simplify(apart) == 0
        apart = apart.evalf(numeric_precision, maxn=EVALUATED_DIGITS)
        if a.has(Float) or b.has(Float):
            size = abs(b.evalf())
            return not size.is_number or bool(abs(apart) <= RELATIVE * size)
        # A difference without a significant digit is none that sympy can see.
        return not apart.is_comparable or bool(apart == 0)
    except (TypeError, ValueError, ArithmeticError):
        return True


grader.sympy_numeric_eq = exactly_equal


def write_latex(text: str) -> str:
    """`text` with LaTeX for the signs that math-verify doesn't read."""
    text = PLAIN.sub(lambda name: name["kept"] or f"\\{name['name']} ", text)
    text = TURNED.sub(_ordinary_interval, text)
    return rewrite_text(MEMBER.sub("", BUILDER.sub(r"\1", text)), "latex")


def _ordinary_interval(interval: re.Match[str]) -> str:
    opens, closes = interval["opens"], interval["closes"]
    return f"{'(' if opens == ']' else opens}{interval['ends']}{')' if closes == '[' else closes}"


def judge_answer(gold: str, answer: str, extracted: bool) -> str:
    """The verdict of one request."""
    stated = [_parse_logic(text) for text in (gold, answer) if extracted]
    if any(part is not None for part in stated):
        return "wrong" if None in stated or satisfiable(Xor(*stated)) else "correct"
    # `5i` reads as a variable, `5 i` doesn't
    gold, answer = (re.sub(r"(?<=\d)i\b", " i", write_latex(text)) for text in (gold, answer))
    if len({re.sub(r"\s|\\(?:left|right)\b", "", text) for text in (gold, answer)}) == 1:
        return "correct"
    wanted = parse(rf"\boxed{{{gold}}}", FORMULA, parsing_timeout=None)
    # Mathematics that is marked inside words stays marked; anything else is an expression as it
    # stands.
    text = answer.replace(r"\$", "")  # a dollar sign is no mark
    marked = not extracted or any(sign in text for sign in ("$", r"\(", r"\[", r"\boxed"))
    text = answer if marked else rf"\boxed{{{answer}}}"
    read = (
        parse(text, FORMULA, parsing_timeout=None)
        if extracted
        else parse(text, parsing_timeout=None)
    )
    if wanted and read:
        same = _same_set((wanted[0], gold), (read[0], answer))
        if same or _same_complex(wanted[0], read[0]):
            return "correct"
    if verify(wanted, read, timeout_seconds=None):
        # Formulas come before the text that they were read from.
        if is_equation(wanted[0]) and is_equation(read[0]):
            return "correct"
        named = _names_a_value(wanted[0], gold) and _names_a_value(read[0], answer)
        return "correct" if named else "wrong"
    # What math-verify can't read comes back as text alone, and text equals text only.
    return "wrong" if any(not isinstance(part, str) for part in read) else "unparsed"


def _parse_logic(text: str) -> Any:
    """The proposition that `text` states by "and", "or" and "not" over letters, else None."""
    text = rewrite_text(text, "logic")
    if not re.fullmatch(r"(?!.*[a-zA-Z]\s*[a-zA-Z(])(?=.*[&|~])[a-zA-Z&|~()\s]+", text):
        return None
    try:
        return sympify(text, locals={letter: Symbol(letter) for letter in re.findall(r"\w", text)})
    except (SympifyError, TypeError):
        return None


def _same_set(*sides: tuple[Any, str]) -> bool:
    """Whether two sides, one of them an inequality in one variable, describe one set of numbers."""
    first, second = (_solution_set(*side) for side in sides)
    if None in (first, second):
        return False
    names = {str(name) for read, _ in sides for name in read.free_symbols}
    # pi/2 as it was read is another object than pi/2 as it is computed
    return len(names) == 1 and bool(simplify(first) == simplify(second))


def _solution_set(read: Any, text: str) -> Any:
    """The interval or union of them that was read from `text`, or that an inequality in one
    variable describes; None for anything else. Several are all meant, where nothing says "or" and
    all can be true."""
    if isinstance(read, Interval | Union):
        return read
    parts = read.args if isinstance(read, FiniteSet) else (read,)
    if not parts or not all(isinstance(part, And | Or | Relational) for part in parts):
        return None
    if len(read.free_symbols) != 1 or any(map(is_equation, parts)):
        return None
    real = {symbol: Symbol(symbol.name, real=True) for symbol in read.free_symbols}
    parts = [part.subs(real) for part in parts]
    try:
        together = And(*parts).as_set()
        if re.search(r"\bor\b", text) or together is S.EmptySet:
            together = Or(*parts).as_set()
    except (NotImplementedError, TypeError, ValueError):
        return None
    return together


def _same_complex(wanted: Any, read: Any) -> bool:
    """Whether two numbers are equal, one of which has the imaginary unit in a power of e: there
    math-verify reads it as a variable."""
    numbers = [part for part in (wanted, read) if isinstance(part, Expr)]
    powers = [power for number in numbers for power in number.atoms(exp)]
    if len(numbers) < 2 or not any(s.name == "i" for power in powers for s in power.free_symbols):
        return False
    wanted, read = (n.subs({s: I for s in n.free_symbols if s.name == "i"}) for n in numbers)
    apart = wanted - read
    if apart.free_symbols:
        return bool(simplify(apart.rewrite(cos)) == 0)
    apart = abs(apart.evalf(COMPLEX_DIGITS))
    return bool(apart.is_Number and apart < 10 ** (2 - COMPLEX_DIGITS))


def _names_a_value(read: Any, answer: str) -> bool:
    """Whether `read` is no equation, or one that only says what has the value: math-verify takes
    the right side of any.

    `x = 5`, `f(2) = 5`, `AB = 5` and `2 + 3 = 5` do; `x + y = 5`, `xy = 5` and `x^2 = 5` state
    more.
    """
    if not is_equation(read):
        return True
    left = take_first_relation(read).lhs
    # math-verify writes every variable in lower case.
    points = answer.partition("=")[0].replace(r"\angle", "").isupper()
    segment = (
        points and isinstance(left, Mul) and all(isinstance(part, Symbol) for part in left.args)
    )
    return (
        isinstance(left, Symbol | AppliedUndef | Derivative)
        or segment
        or not (left.free_symbols or left.is_Number)
    )


def main(seconds: float) -> None:
    """Serve until stdin ends. A request that takes so many seconds of CPU time ends the process, by
    SIGPROF; by SIGALRM one that takes PATIENCE times as long by the wall clock."""
    # Ctrl-C is for the parent, which ends this process
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    if sys.platform == "linux":
        import resource

        with contextlib.suppress(ValueError):  # a lower limit is in force already
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    verdicts = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints doesn't reach the verdicts
    # The first takes about a second, which is no answer's fault.
    judge_answer(r"\frac{\sqrt{2}}{2}", "x + 1", True)
    print("ready", file=verdicts, flush=True)
    for line in sys.stdin:
        # Nothing handles these signals: the system ends the process, in the middle of whatever it
        # computes.
        signal.setitimer(signal.ITIMER_PROF, seconds)
        signal.setitimer(signal.ITIMER_REAL, WALL_FACTOR * seconds)
        try:
            verdict = judge_answer(**json.loads(line))
        except MemoryError:
            raise
        except Exception:  # noqa: BLE001 - what a library stumbles over is read by nobody
            verdict = "unparsed"
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(verdict, file=verdicts, flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]))
