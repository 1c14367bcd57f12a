r"""Is the arithmetic that a text writes down true? A rule that needs no gold answer and no model.

An equation is an expression of numbers and `+ - * /` (also `x`, `×`, `÷` and brackets) with at
least one operation, an equals sign and a number: `16 - 3 = 13`, GSM8K's `<<48/2=24>>`,
`$1,200 / 4 = $300`, LaTeX's `\frac{48}{2} \times 3 = 72`, with units that stand in `\text{}`.
Everything is computed in exact fractions. A result with decimals may be rounded (`10 / 3 = 3.33`), a whole one
may not (`10 / 3 = 3`). What isn't plain arithmetic (words, percentages, letters, powers) is no
equation and is not judged.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache

CACHED_LINES = 8192
LONGEST = 40  # tokens of an expression that are looked at
DIGITS = 30  # of one number

# of thousands in one number: without an end, a line of them would be read again from each comma on
GROUPS = 30

_NUMBER = rf"(?>\d{{1,3}}(?:,\d{{3}}){{1,{GROUPS}}}(?!\d)|\d+)(?:\.\d+)?|\.\d+"
_TOKENS = re.compile(
    rf"(?P<number>(?<![\w.^])\$?(?:{_NUMBER})(?![\w%])(?!\.\d))"
    r"|(?P<operator>[-+*/×÷−]|(?<=[\s\d)])[xX](?=\s*[\d($]))"
    r"|(?P<bracket>[()])|(?P<equals>=)|(?P<space>[ \t]+)|(?P<other>.)",
    re.DOTALL,
)
OPERATORS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_SIGNS = {"×": "*", "x": "*", "X": "*", "÷": "/", "−": "-"}

# What LaTeX and markdown write, as plain arithmetic: what is left, a `\sqrt` say, is no part of an
# equation.
_MARKS = (
    (re.compile(r"\\(?:text|mathrm|mbox)\s*\{[^{}]*\}"), " "),
    (re.compile(r"\\boxed\s*\{([^{}]*)\}"), r"\1"),
    (re.compile(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}"), r"((\1)/(\2))"),
    (re.compile(r"\\(?:times|cdot)(?![a-zA-Z])"), "*"),
    (re.compile(r"\\div(?![a-zA-Z])"), "/"),
    (re.compile(r"\\(?:left|right)(?=[()])|\\[ ,;!]|\\(?=[$%])|\{(?=,)|(?<=,)\}|\*\*"), ""),
)

Lexeme = tuple[str, str]  # kind and text


@lru_cache(maxsize=CACHED_LINES)
def equations(text: str) -> tuple[bool, ...]:
    """For each equation in `text`, in order, whether it is true. The time it takes grows as the
    text does.
    """
    tokens = _tokens(plain(text))
    verdicts = []
    for at, (kind, _) in enumerate(tokens):
        if kind != "equals":
            continue
        left = _value(tokens[max(at - LONGEST, 0) : at])
        right = _right(tokens[at + 1 : at + 4])  # a sign, a number and what follows
        if left is not None and right is not None:
            verdicts.append(_says(right, left))
    return tuple(verdicts)


def plain(text: str) -> str:
    r"""`text` with LaTeX's fractions, signs and brackets as plain ones, and without what stands in
    its `\text{}`.
    """
    for pattern, instead in _MARKS if "\\" in text or "**" in text else ():
        text = pattern.sub(instead, text)
    return text


def _tokens(text: str) -> list[Lexeme]:
    """Tokens without spaces. A minus that touches what follows and follows no operand is a sign (a
    lone one: a list mark).
    """
    tokens: list[Lexeme] = []
    for match in _TOKENS.finditer(text):
        kind, word = str(match.lastgroup), _SIGNS.get(match[0], match[0])
        if kind == "space":
            continue
        if kind == "number":
            word = word.lstrip("$").replace(",", "")
        after_operand = bool(tokens) and (tokens[-1][0] == "number" or tokens[-1][1] == ")")
        if (
            kind == "operator"
            and word == "-"
            and not after_operand
            and text[match.end() : match.end() + 1].strip()
        ):
            kind = "sign"
        tokens.append((kind, word))
    return tokens


def _value(tokens: list[Lexeme]) -> Fraction | None:
    """The longest expression that `tokens` end with, or None where there is none with an
    operation.
    """
    start = len(tokens)
    while start > 0 and tokens[start - 1][0] in ("number", "operator", "bracket", "sign"):
        start -= 1
    start = max(start, len(tokens) - LONGEST)
    run = tokens[start:]
    for first in range(len(run)):
        if first and run[first - 1][0] == "number":
            continue  # `1 2 + 3`: a number before this one belongs to no operation
        if first and run[first - 1][0] == "operator" and not _begins(tokens, start + first - 1):
            continue  # `x + 2 + 3`: there is more on its left than numbers
        evaluated = _evaluated(run[first:])
        if evaluated is not None:
            value, operates = evaluated
            return value if operates else None
    return None


def _begins(tokens: list[Lexeme], at: int) -> bool:
    """Whether the token begins a line: an operator there is a list's mark."""
    return at == 0 or tokens[at - 1][1] == "\n"


def _right(tokens: list[Lexeme]) -> str | None:
    """The number that `tokens` begin with, as text; None where it is the beginning of something
    longer.
    """
    sign = ""
    if tokens and tokens[0] == ("sign", "-"):
        sign, tokens = "-", tokens[1:]
    if not tokens or tokens[0][0] != "number":
        return None
    if len(tokens) > 1 and (tokens[1][0] == "operator" or tokens[1][1] == "("):
        return None
    return sign + tokens[0][1]


def _says(written: str, exact: Fraction) -> bool:
    """Whether `written` is `exact`, rounded to as many decimals as it shows where it shows any."""
    if len(written) > DIGITS:
        return False
    decimals = len(written.partition(".")[2])
    off = abs(Fraction(written) - exact)
    return off == 0 or (decimals > 0 and off <= Fraction(1, 2 * 10**decimals))


def _evaluated(tokens: list[Lexeme]) -> tuple[Fraction, bool] | None:
    """The value of `tokens` that are one expression, and whether it has an operation; None where
    they are none.

    Python's own grammar reads it: numbers are the names n0, n1 and so on, and a sign is `~`, which
    an operator can't be.
    """
    words = [
        f"n{at}" if kind == "number" else "~" if kind == "sign" else word
        for at, (kind, word) in enumerate(tokens)
    ]
    try:
        tree = ast.parse(" ".join(words), mode="eval").body
    except SyntaxError:
        return None
    value = _computed(tree, tokens)
    return (
        None
        if value is None
        else (value, any(isinstance(node, ast.BinOp) for node in ast.walk(tree)))
    )


def _computed(node: ast.expr, tokens: list[Lexeme]) -> Fraction | None:
    """The value of a node, None where it is no arithmetic or divides by zero."""
    match node:
        case ast.Name(id=name):
            number = tokens[int(name[1:])][1]
            return Fraction(number) if len(number) <= DIGITS else None
        case ast.UnaryOp(op=ast.Invert(), operand=operand):
            value = _computed(operand, tokens)
            return None if value is None else -value
        case ast.BinOp(op=op) if type(op) in OPERATORS:
            left, right = _computed(node.left, tokens), _computed(node.right, tokens)
            if left is None or right is None or (isinstance(op, ast.Div) and right == 0):
                return None
            return OPERATORS[type(op)](left, right)
    return None
