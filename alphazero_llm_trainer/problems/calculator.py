r"""Is the arithmetic that a text writes down true? A rule that needs no gold answer and no model.

An equation is an expression of numbers and `+ - * /` (also `x`, `×`, `÷` and brackets) with at
least one operation, an equals sign and a number or an expression: `16 - 3 = 13`, GSM8K's
`<<48/2=24>>`, `$1,200 / 4 = $300`, `20% of 50 = 10`, `2 * 3 + 4 = 6 + 4 = 10`, LaTeX's
`\frac{48}{2} \times 3 = 72`, with units that stand in `\text{}`. Everything is computed in exact
fractions. A result with decimals may be rounded (`10 / 3 = 3.33`), a whole one may not
(`10 / 3 = 3`).

What states a result in another way (`9 * 2 = `, `9 * 2 =  = 8`, `9 * 2 is 18`, `2x + 1 = 7`) can't
be read: it is neither true nor false. A name's meaning (`total = 12`, `cost of 3 = 3 * 2`) states
nothing that could be checked, and words don't either.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache

from ..grading.tables import rewrite_text

CACHED_LINES = 8192
LONGEST_EXPRESSION = 40  # tokens of an expression that are looked at
DIGITS = 30  # of one number

# of thousands in one number: without an end, a line of them would be read again from each comma on
MOST_GROUPS = 30

_NUMBER = rf"(?>\d{{1,3}}(?:,\d{{3}}){{1,{MOST_GROUPS}}}(?!\d)|\d+)(?:\.\d+)?|\.\d+"
_TOKENS = re.compile(
    rf"(?P<number>(?<![\w.^])\$?(?:{_NUMBER})(?![\w%])(?!\.\d))"
    r"|(?P<operator>[-+*/×÷−]|(?<=[\s\d)])[xX](?=\s*[\d($]))"
    r"|(?P<bracket>[()])|(?P<equals>=)|(?P<space>[ \t]+)|(?P<other>.)",
    re.DOTALL,
)
OPERATIONS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_CLAUSE_ENDS = frozenset("\n.,;:")  # of what an equals sign speaks of
_SIGN_OPERATORS = {"×": "*", "x": "*", "X": "*", "÷": "/", "−": "-"}

# `21 - 12 reads 9`: a spaced operation, unlike `1/2` or `2-3`, states something
_OPERATION = re.compile(r"\d[ \t]+[-+*/×÷][ \t]+\$?\d")
_CLAUSES = re.compile(r"[\n;]|[.,](?!\d)")

Lexeme = tuple[str, str]  # kind and text


@lru_cache(maxsize=CACHED_LINES)
def check_equations(text: str) -> tuple[bool | None, ...]:
    """For each equation in `text`, in order, whether it is true; None for one that can't be read,
    and then for each calculation without an equals sign. The time it takes grows as the text does.
    """
    text = plain_formulas(text)
    tokens = _lex_text(text)
    signs = [at for at, (kind, _) in enumerate(tokens) if kind == "equals"]
    verdicts: list[bool | None] = []
    for at in signs:
        left = _last_value(tokens[max(at - LONGEST_EXPRESSION, 0) : at])
        right = _right_number(tokens[at + 1 : at + 4])  # a sign, a number and what follows
        if left is not None and right is not None:
            verdicts.append(_says_value(right, left))
            continue
        after = tokens[at + 1 : at + 1 + LONGEST_EXPRESSION]
        if "".join(word for _, word in after[:3]).lstrip("$").startswith("<<"):
            continue  # GSM8K's notes say it again, and are read
        other = _first_value(after)
        clause = _clause_before(tokens, at)
        if left is None and _is_name(clause, other is not None):
            continue
        if left is None and len(clause) == 1 and _begins_side(tokens, at - 1):
            left = _read_number(clause[0][1])  # `= 18 = 18`, `18 = 9 * 2`
        if other is None and right is not None:
            other = _read_number(right)
        if left is not None and other is not None:
            verdicts.append(_sides_agree(left, other, [*clause, *after]))
        else:
            # `3 apples + 4 apples = 7 apples`: words may be units, so that it is never called
            # false.
            bare = _evaluate_tokens([token for token in clause if not token[1].isalpha()])
            verdicts.append(True if bare is not None and bare == (other, True) else None)
    clauses = _CLAUSES.split(text)
    verdicts += [None for clause in clauses if "=" not in clause and _OPERATION.search(clause)]
    return tuple(verdicts)


def evaluate_expression(text: str) -> Fraction | None:
    """The exact value of a text that is one expression, or None."""
    tokens = _lex_text(plain_formulas(text))
    if len(tokens) > LONGEST_EXPRESSION or any(kind in ("other", "equals") for kind, _ in tokens):
        return None
    evaluated = _evaluate_tokens(tokens)
    return None if evaluated is None else evaluated[0]


def _clause_before(tokens: list[Lexeme], at: int) -> list[Lexeme]:
    """What stands before the equals sign at `at`, back to another one or the end of a sentence."""
    start = at
    while start > max(at - LONGEST_EXPRESSION, 0):
        kind, word = tokens[start - 1]
        if kind == "equals" or word in _CLAUSE_ENDS:
            break
        start -= 1
    return tokens[start:at]


def _is_name(clause: list[Lexeme], explained: bool) -> bool:
    """Whether what stands before an equals sign names what follows: words without a digit, or where
    an expression follows (`explained`) words with some.
    """
    words = any(word.isalpha() for kind, word in clause if kind == "other")
    digits = any(word[-1].isdigit() for _, word in clause)
    return words and (explained or not digits)


def _read_number(written: str) -> Fraction | None:
    """The number that is written; None where it is none, or too long."""
    digits = written.lstrip("-").replace(".", "", 1)
    return Fraction(written) if digits.isdigit() and len(written) <= DIGITS else None


def is_calculation(text: str) -> bool:
    """Whether all of `text` is one equation or several joined, which are read, and nothing else."""
    verdicts, tokens = check_equations(text), _lex_text(plain_formulas(text).strip())
    return bool(verdicts) and None not in verdicts and all(kind != "other" for kind, _ in tokens)


def _sides_agree(left: Fraction, right: Fraction, tokens: list[Lexeme]) -> bool | None:
    """Whether two expressions of `tokens` are equal; None where a number with decimals may be a
    rounded one.
    """
    rounded = any(kind == "number" and "." in word for kind, word in tokens)
    return True if left == right else None if rounded else False


def plain_formulas(text: str) -> str:
    r"""`text` with LaTeX's fractions, signs and brackets as plain ones, and without what stands in
    its `\text{}`.
    """
    marked = "\\" in text or "**" in text or "%" in text
    return rewrite_text(text, "arithmetic") if marked else text


def _lex_text(text: str) -> list[Lexeme]:
    """Tokens without spaces. A minus that touches what follows and follows no operand is a sign (a
    lone one: a list mark).
    """
    tokens: list[Lexeme] = []
    for match in _TOKENS.finditer(text):
        kind, word = str(match.lastgroup), match[0]
        if kind == "space":
            continue
        if kind == "number":
            word = word.lstrip("$").replace(",", "")
        if kind == "operator":
            word = _SIGN_OPERATORS.get(word, word)
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


def _last_value(tokens: list[Lexeme]) -> Fraction | None:
    """The longest expression that `tokens` end with, or None where there is none with an
    operation.
    """
    start = len(tokens)
    while start > 0 and tokens[start - 1][0] in ("number", "operator", "bracket", "sign"):
        start -= 1
    start = max(start, len(tokens) - LONGEST_EXPRESSION)
    run = tokens[start:]
    for first in range(len(run)):
        if first and run[first - 1][0] == "number":
            continue  # `1 2 + 3`: a number before this one belongs to no operation
        if (
            first
            and run[first - 1][0] == "operator"
            and not _begins_side(tokens, start + first - 1)
        ):
            continue  # `x + 2 + 3`: there is more on its left than numbers
        evaluated = _evaluate_tokens(run[first:])
        if evaluated is not None:
            value, operates = evaluated
            return value if operates else None
    return None


def _first_value(tokens: list[Lexeme]) -> Fraction | None:
    """The expression that `tokens` begin with, up to a mark that is none of it, or None where
    there is none with an operation, or a word goes on with it.
    """
    end = 0
    while end < len(tokens) and tokens[end][0] in ("number", "operator", "bracket", "sign"):
        end += 1
    evaluated = _evaluate_tokens(tokens[:end])
    goes_on = end < len(tokens) and tokens[end][1].isalpha()
    if evaluated is None or not evaluated[1] or goes_on:
        return None  # `(5/2)x` is more than `5/2`
    return evaluated[0]


def _begins_side(tokens: list[Lexeme], at: int) -> bool:
    """Whether the token begins a line or the side of an equation: an operator there is a list's
    mark.
    """
    return at == 0 or tokens[at - 1][1] in ("\n", "=")


def _right_number(tokens: list[Lexeme]) -> str | None:
    """The number that `tokens` begin with, as text; None where it is the beginning of something
    longer.
    """
    sign = ""
    if tokens and tokens[0] == ("sign", "-"):
        sign, tokens = "-", tokens[1:]
    if not tokens or tokens[0][0] != "number":
        return None
    if len(tokens) > 1 and (tokens[1][0] in ("operator", "number") or tokens[1][1] == "("):
        return None
    return sign + tokens[0][1]


def _says_value(written: str, exact: Fraction) -> bool:
    """Whether `written` is `exact`, rounded to as many decimals as it shows where it shows any."""
    if len(written) > DIGITS:
        return False
    decimals = len(written.partition(".")[2])
    off = abs(Fraction(written) - exact)
    return off == 0 or (decimals > 0 and off <= Fraction(1, 2 * 10**decimals))


def _evaluate_tokens(tokens: list[Lexeme]) -> tuple[Fraction, bool] | None:
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
    value = _evaluate_node(tree, tokens)
    return (
        None
        if value is None
        else (value, any(isinstance(node, ast.BinOp) for node in ast.walk(tree)))
    )


def _evaluate_node(node: ast.expr, tokens: list[Lexeme]) -> Fraction | None:
    """The value of a node, None where it is no arithmetic or divides by zero."""
    match node:
        case ast.Name(id=name):
            return _read_number(tokens[int(name[1:])][1])
        case ast.UnaryOp(op=ast.Invert(), operand=operand):
            value = _evaluate_node(operand, tokens)
            return None if value is None else -value
        case ast.BinOp(op=op) if type(op) in OPERATIONS:
            left, right = _evaluate_node(node.left, tokens), _evaluate_node(node.right, tokens)
            if left is None or right is None or (isinstance(op, ast.Div) and right == 0):
                return None
            return OPERATIONS[type(op)](left, right)
    return None
