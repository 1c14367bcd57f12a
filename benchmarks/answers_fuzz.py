"""Reading and comparing answers, on generated pairs whose truth is known and on random text.

    python benchmarks/answers_fuzz.py --num 1000000 --seed 0

Of the `num` cases 6 in 10 are pairs of a response or an answer and a gold answer that `answers` decides alone: the same
number in two writings, another number, and what only contains the number (a term, a list, an inequality, an equation). 1 in
100 is a pair of formulas for the grader of MATH rows, with math-verify in a process of its own. The rest is text made of
pieces that answers are made of: nothing may crash, `normalize` applied again must change nothing, an answer must equal
itself, and `equal` must not depend on the order. It prints false positives and false negatives by kind and the slowest call
in CPU time, the best of three runs. Kinds named "limit:" are known to fail: they show what is not decided, or by convention.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from alphazero_llm_trainer import answers  # noqa: E402
from alphazero_llm_trainer.problems.grading import RULES  # noqa: E402
from benchmarks import provenance  # noqa: E402

RESULTS = Path(__file__).parent / "results" / "answers_fuzz.json"
SHARE_OF_PAIRS, SHARE_OF_FORMULAS = 0.6, 0.01
BATCH = 200  # formulas a call
KEPT = 20  # slowest calls that are timed again
EXAMPLES = 3  # a kind in the JSON file
LONGEST = 2000  # pieces of a random text
AIM_MS = 20.0

UNITS = ["apples", "dollars per day", "km", "cm^2", "square feet", "km/h", "kg", "eggs", "people", "miles an hour"]
WORDS = ["Paris", "New York", "Evelyn", "the blue car", "Chief of Protocol", "even", "Tuesday"]
PIECES = [
    *"0123456789 .,;:!?+-*/^_=<>()[]{}|$%#~'\"\\\n&°½²−×√πxyi", "  ", "12", "3.5", "1,234",
    r"\frac{1}{2}", r"\frac12", r"\dfrac", r"\sqrt{2}", r"\sqrt3", r"\pi", r"\text{ cm}", r"\text{", r"\boxed{", r"\boxed{5}",
    r"\left(", r"\right)", r"\times 10^{3}", r"\cdot", r"^\circ", r"\%", r"\$", r"\,", r"\!", r"{,}", r"\pm", r"\infty",
    r"\begin{pmatrix}", r"\end{pmatrix}", r"\ge", r"\in", r"\cup", r"\{", r"\}", "#### ", "The answer is ", "Answer: ",
    "because ", " and ", " or ", " apples", " (apples)", " km/h", " dozen", " million", " out of ", "x = ", "y = 2x + ",
    "Total = ", "about ", "5 - 3 = ", "half", "i", "not ", "e5", "USD ", "\u202f", "\u00a0", "\u2009", "１", "٣", "⅔", "⁰", "€",
    "元", "ß", "ﬁ", "İ",
]  # fmt: skip


class Pair(NamedTuple):
    """A response or an answer, a gold answer, and whether they are the same."""

    kind: str
    given: str
    gold: str
    same: bool
    response: bool = False


@dataclass
class Tally:
    """Counts and the first examples of one kind."""

    pairs: int = 0
    false_positives: int = 0
    false_negatives: int = 0
    examples: list[list[str]] = field(default_factory=list)

    def add(self, pair: Pair, said_same: bool) -> None:
        self.pairs += 1
        self.false_positives += said_same and not pair.same
        self.false_negatives += pair.same and not said_same
        if said_same != pair.same and len(self.examples) < EXAMPLES:
            self.examples.append([pair.given, pair.gold])


# -- numbers -----------------------------------------------------------------------------------------------------------


def number(rng: Random) -> Fraction:
    """Whole, decimal or fraction, of either sign; never 0 or 1."""
    size = 10 ** rng.randint(1, 9)
    value = rng.choice(
        [
            Fraction(rng.randint(2, 20)),
            Fraction(rng.randint(2, size)),
            Fraction(rng.randint(2, size), 10 ** rng.randint(1, 4)),
            Fraction(rng.randint(1, 60), rng.randint(2, 60)),
        ]
    )
    return (value if abs(value) != 1 else value + 1) * rng.choice([1, 1, 1, -1])


def decimal(value: Fraction) -> str | None:
    """`value` written out, or None where it has no end within 9 places."""
    places = next((n for n in range(10) if (value * 10**n).denominator == 1), None)
    if places is None:
        return None
    digits = str(abs(value.numerator) * 10**places // value.denominator).rjust(places + 1, "0")
    whole, part = (digits[:-places], "." + digits[-places:]) if places else (digits, "")
    return ("-" if value < 0 else "") + whole + part


def grouped(value: Fraction, comma: str = ",") -> str | None:
    text = decimal(value)
    if text is None or abs(value) < 1000:
        return None
    whole, dot, part = text.partition(".")
    return f"{int(whole):,}".replace(",", comma) + dot + part


def over(value: Fraction, rng: Random, form: str) -> str:
    """As a fraction, not always in lowest terms."""
    by = rng.choice([1, 1, 2, 3, 10])
    sign = "-" if value < 0 else ""
    return sign + form.format(abs(value.numerator) * by, value.denominator * by)


def mixed(value: Fraction, form: str) -> str | None:
    whole, rest = divmod(abs(value), 1)
    if not whole or not rest:
        return None
    return ("-" if value < 0 else "") + form.format(whole, rest.numerator, rest.denominator)


def scaled(value: Fraction, factor: int, form: str) -> str | None:
    text = decimal(value / factor)
    return None if text is None or len(text) > 8 else form.format(text)


def plain(value: Fraction) -> str:
    return decimal(value) or f"{value.numerator}/{value.denominator}"


def summed(value: Fraction, rng: Random) -> str | None:
    part = rng.randint(1, 99)
    first = decimal(value - part)
    return None if first is None else f"{first} + {part} = {decimal(value)}"


def wide(text: str) -> str:
    return "".join(chr(ord(c) + 0xFEE0) if c.isdigit() else c for c in text)


Write = Callable[[Fraction, Random], str | None]
WRITINGS: dict[str, Write] = {
    "plain": lambda v, r: plain(v),
    "1,234": lambda v, r: grouped(v),
    "1{,}234": lambda v, r: grouped(v, "{,}"),
    r"1\,234": lambda v, r: grouped(v, r"\,"),
    r"1,\!234": lambda v, r: grouped(v, r",\!"),
    "1 234 (thin space)": lambda v, r: grouped(v, "\u202f"),
    "5.00": lambda v, r: None if (t := decimal(v)) is None else (t if "." in t else t + ".") + "0" * r.randint(1, 3),
    "+5": lambda v, r: f"+{plain(v)}" if v > 0 else None,
    "$5": lambda v, r: f"${plain(v)}" if v > 0 else f"-${plain(-v)}",
    r"\$5": lambda v, r: rf"\${plain(v)}",
    "5 dollars": lambda v, r: f"{plain(v)} dollars",
    "€5": lambda v, r: f"€{plain(v)}",
    "USD 5": lambda v, r: f"USD {plain(v)}",
    "5%": lambda v, r: f"{plain(v)}%",
    "5 unit": lambda v, r: f"{plain(v)} {r.choice(UNITS)}",
    "5 (unit)": lambda v, r: f"{plain(v)} ({r.choice(UNITS)})",
    r"5\text{ unit}": lambda v, r: rf"{plain(v)}\text{{ {r.choice(UNITS)}}}",
    r"5^\circ": lambda v, r: rf"{plain(v)}^\circ",
    "x = 5": lambda v, r: f"{r.choice(['x', 'n', 'A', 'x_1', chr(92) + 'theta'])} = {plain(v)}",
    "Total cost = 5": lambda v, r: f"{r.choice(['Total', 'Total cost', 'Number of eggs'])} = {plain(v)}",
    "2 + 3 = 5": summed,
    "about 5": lambda v, r: f"about {plain(v)}",
    "(5)": lambda v, r: f"({plain(v)})",
    "**5**": lambda v, r: f"**{plain(v)}**",
    "$5$": lambda v, r: f"${plain(v)}$",
    "5.": lambda v, r: f"{plain(v)}.",
    r"\boxed{5}": lambda v, r: rf"\boxed{{{plain(v)}}}",
    "1/2": lambda v, r: over(v, r, "{}/{}"),
    r"\frac{1}{2}": lambda v, r: over(v, r, r"\frac{{{}}}{{{}}}"),
    r"\dfrac{1}{2}": lambda v, r: over(v, r, r"\dfrac{{{}}}{{{}}}"),
    "1 1/2": lambda v, r: mixed(v, "{} {}/{}"),
    r"1\frac{1}{2}": lambda v, r: mixed(v, r"{}\frac{{{}}}{{{}}}"),
    "1.5e3": lambda v, r: scaled(v, 10**3, "{}e3"),
    r"1.5 \times 10^{3}": lambda v, r: scaled(v, 10**3, r"{} \times 10^{{3}}"),
    "1.5 million": lambda v, r: scaled(v, 10**6, "{} million"),
    "2 dozen": lambda v, r: scaled(v, 12, "{} dozen eggs") if v.denominator == 1 else None,
    "-5 (other dashes)": lambda v, r: plain(v).replace("-", r.choice("−–")),
    "wide digits": lambda v, r: wide(plain(v)),
}
OTHERS: dict[str, Callable[[Fraction], Fraction]] = {
    "one more": lambda v: v + 1,
    "the other sign": lambda v: -v,
    "ten times": lambda v: 10 * v,
    "one over it": lambda v: 1 / v,
    "its square": lambda v: v * v,
    "a hundredth more": lambda v: v + Fraction(1, 100),
    "a millionth more": lambda v: v * (1 + Fraction(1, 10**6)),
}
# What holds the number n > 2 and isn't n.
TERMS = [
    "{n}i", "{n} i", "{n}x", "{n} x", "{n}xy", "{n} xy", "{n}ab", "{n} pi", "{n}π", r"{n}\pi", r"{n} \pi", "{n} abc", "2({n})",
    r"{n}\sqrt{{2}}", r"\sqrt{{{n}}}", "{n}!", "{n} !", "{n}!!", "{n}^2", "{n}²", "{n}^{{3}}", "{n} squared", "{n} factorial",
    "{n}_8", r"{n}\mathrm{{i}}", "x + {n}", "{n} + x", "{n} - y", "x/{n}", "{n}/x", "-x + {n}", "|x| + {n}", "{n} sin x",
    "{n}sinx",
]  # fmt: skip
FACTORS = [
    "{n} dozen", "{n} million", r"{n}\text{{ dozen}}", "{n} out of five", "{n} in ten", "{n} hundredths", "{n} and a half",
    "{n} plus two", "half of {n}", "not {n}", "at least {n}", "less than {n}", "{n} or more", "{n} to one", "{n} thirds",
    "minus {n}", "twice {n}", "50% of {n}",
]  # fmt: skip
RELATIONS = [
    "x >= {n}", "x > {n}", "x<{n}", r"x \ge {n}", r"x \neq {n}", "x + y = {n}", "2x = {n}", "x^2 = {n}", "xy = {n}", "1 = {n}",
    "x + y + z = {n}", "x=1 or x={n}", "x = 1, y = {n}", r"\sin x = {n}", "x != {n}", "|x| = {n}", r"x \not= {n}",
]  # fmt: skip
LISTS = [
    "1, {n}", "{n}, 1", "(1, {n})", "({n}, 1)", "[1, {n}]", "({n}, 1]", r"\{{1, {n}\}}", "1 and {n}", "{n} or 1", "{n}; 1",
    "1:{n}", "{n} - 1", "1-{n}", "{n} to 99", r"{n} \pm 1", r"(-\infty, {n})", "1 {n}", "{n} 1",
]  # fmt: skip


def same_number(rng: Random) -> Pair:
    value, texts = number(rng), []
    while len(texts) < 2:
        name = rng.choice(list(WRITINGS))
        text = WRITINGS[name](value, rng)
        if text is not None:
            texts.append((name, text))
    return Pair(f"same: {texts[0][0]}", texts[0][1], texts[1][1], True)


def other_number(rng: Random) -> Pair:
    pair, value = None, number(rng)
    name = rng.choice(list(OTHERS))
    while pair is None:
        first, second = (WRITINGS[rng.choice(list(WRITINGS))](v, rng) for v in (OTHERS[name](value), value))
        if first is not None and second is not None:
            pair = Pair(f"other number: {name}", first, second, OTHERS[name](value) == value)
    return pair


def holds(kind: str, forms: list[str]) -> Callable[[Random], Pair]:
    def make(rng: Random) -> Pair:
        n = rng.choice([rng.randint(3, 20), rng.randint(100, 99_999)])
        return Pair(kind, rng.choice(forms).format(n=n), str(n), False)

    return make


# -- lists, equations, words, responses --------------------------------------------------------------------------------


def lists(rng: Random) -> Pair:
    values = [plain(number(rng)) for _ in range(rng.randint(2, 4))]
    opened, closed = rng.choice([("(", ")"), ("[", "]"), ("[", ")"), ("", "")])
    gold = f"{opened}{', '.join(values)}{closed}"
    if rng.random() < 0.5:
        text = gold.replace(", ", rng.choice([" , ", ",  "]))
        if "[" not in text and rng.random() < 0.5:
            text = text.replace("(", r"\left(").replace(")", r"\right)")
        return Pair("same list", f"${text}$" if rng.random() < 0.3 else text, gold, True)
    changed = list(values)
    how = rng.choice(["drop", "swap", "change", "join", "bracket"])
    if how == "drop":
        changed.pop(rng.randrange(len(changed)))
    elif how == "swap":
        changed.reverse()
    elif how == "change":
        changed[rng.randrange(len(changed))] += "7" if "." in changed[0] else "1"
    text = f"{opened}{', '.join(changed)}{closed}"
    if how == "join":
        text = gold.replace(", ", "")
    elif how == "bracket" and opened:
        text = f"{'[' if opened == '(' else '('}{', '.join(changed)}{closed}"
    return Pair(f"other list: {how}", text, gold, text == gold)


def equations(rng: Random) -> Pair:
    a, b = rng.randint(2, 99), rng.randint(2, 99)
    x, y = rng.sample("abkmnpqrxyz", 2)
    gold = f"{y} = {a}{x} + {b}"
    if rng.random() < 0.5:
        return Pair(
            "same equation", rng.choice([gold.replace(" ", ""), f"${gold}$", f"{gold}.", f"({gold})"[1:-1]]), gold, True
        )
    wrong = [
        f"{y} = {b}{x} + {a + 1}",
        f"{y} = {a}{x} - {b}",
        str(b),
        f"{y} = {b}",
        f"{x} = {a}{y} + {b}",
        f"{y} > {a}{x} + {b}",
        "0",
    ]
    return Pair("other equation", rng.choice(wrong), gold, False)


def words(rng: Random) -> Pair:
    gold, other = rng.sample(WORDS, 2)
    if rng.random() < 0.5:
        text = rng.choice(
            [
                gold.lower(),
                gold.upper(),
                f"{gold}.",
                f"**{gold}**",
                rf"\text{{{gold}}}",
                f" {gold}  ",
                f'"{gold}"',
                f"{gold}!",
            ]
        )
        return Pair("same words", text, gold, True)
    return Pair(
        "other words", rng.choice([other, f"not {gold}", f"{gold} and {other}", gold[:-1], f"{gold} 5"]), gold, False
    )


STATED = {
    "#### 5": "First this, 2 + 3 = 5.\nThen that.\n#### {}",
    r"\boxed{5}": "We get 7 and then 12.\nSo it must be \\boxed{{{}}}, as was asked.",
    "The answer is 5.": "First 3 of them, then 4.\nThe answer is {}.",
    "**Answer:** 5": "3 + 4 = 7\n**Answer:** {}\n",
}
SENTENCES = [
    "Ann has {} {unit} left",
    "so she makes {} {unit}",
    "the total is {} {unit} in all",
    "that gives {} {unit}",
]


def responses(rng: Random) -> Pair:
    kind = rng.choice(list(STATED))
    gold = number(rng)
    sentence = kind != r"\boxed{5}" and rng.random() < 0.2
    stated = gold if rng.random() < 0.5 else rng.choice(list(OTHERS.values()))(gold)
    if sentence:
        text = rng.choice(SENTENCES).format(plain(stated), unit=rng.choice(UNITS))
    else:
        text = WRITINGS[rng.choice(["plain", "5 unit", "5 (unit)", "$5", "x = 5", "5%", r"\frac{1}{2}"])](
            stated, rng
        ) or plain(stated)
    name = f"response: {kind}{', a sentence' if sentence else ''}"
    return Pair(name, STATED[kind].format(text), str(gold), stated == gold, response=True)


def responses_that_only_hold_it(rng: Random) -> Pair:
    kind = rng.choice(list(STATED))
    n = rng.randint(3, 99_999)
    form = rng.choice(TERMS + FACTORS + RELATIONS + LISTS)
    if "answer" in kind.lower():
        form = form.replace("!", "i")  # a factorial at the end of a sentence is an exclamation
    stated = STATED[kind].format(form.format(n=n))
    return Pair(f"response: {kind}, not the number", stated, str(n), False, response=True)


def limits(rng: Random) -> Pair:
    n = rng.randint(3, 999)
    return rng.choice(
        [
            Pair("limit: a percentage is no fraction", f"{n}%", plain(Fraction(n, 100)), True),
            Pair("limit: numbers in words", "eleven", "11", True),
            Pair("limit: units of other sizes", f"{n} km", f"{n} m", False),
            Pair("limit: sums with units", f"{n} apples - 3 apples = {n - 3} apples", str(n - 3), True),
            Pair("limit: variables of four letters", f"{n} abxy", str(n), False),
            Pair("limit: variables named as units", f"{n} m", f"{n}m", True),
            Pair("limit: feet and inches", f"{n} feet 6 inches", f"{n}.5 feet", True),
        ]
    )


PAIRS: list[tuple[int, Callable[[Random], Pair]]] = [
    (10, same_number),
    (8, other_number),
    (3, holds("not the number: term", TERMS)),
    (2, holds("not the number: factor", FACTORS)),
    (2, holds("not the number: relation", RELATIONS)),
    (2, holds("not the number: list", LISTS)),
    (2, lists),
    (1, equations),
    (1, words),
    (4, responses),
    (2, responses_that_only_hold_it),
    (1, limits),
]


# -- formulas, for the grader of MATH rows -----------------------------------------------------------------------------


def formulas(rng: Random) -> Pair:
    """A pair of formulas that are equal by construction, or differ in one of their numbers."""
    a, b, c, k = (rng.randint(2, 9) for _ in range(4))
    root = rng.choice([2, 3, 5, 7, 11])
    off = rng.random() < 0.5
    d = c + 1 if off else c
    name, given, gold = rng.choice(
        [
            ("radical", rf"\sqrt{{{root * d * d}}}", rf"{c}\sqrt{{{root}}}"),
            ("fraction with radical", rf"\frac{{{d}}}{{\sqrt{{{root}}}}}", rf"\frac{{{c}\sqrt{{{root}}}}}{{{root}}}"),
            ("product and sum", f"(x+{a})(x+{d})", f"x^2 + {a + c}x + {a * c}"),
            ("equation times k", f"{k * a}x + {k * b}y = {k * d}", f"{a}x + {b}y = {c}"),
            ("equation with 0", f"{a}x + {b}y - {d} = 0", f"{a}x + {b}y = {c}"),
            ("complex number", f"{d}i + {a}", f"{a}+{c}i"),
            ("power", f"{a}^{{{d}}}", str(a**c)),
            ("factorial", f"{d}!", str(math.factorial(c))),
            ("set", rf"\{{{d + 20}, {a}\}}", rf"\{{{a}, {c + 20}\}}"),
            ("x = a or x = b", f"x = {d + 20} or x = {a}", f"{a}, {c + 20}"),
            ("interval", rf"\left[ {a}, {d + 20} \right)", f"[{a},{c + 20})"),
            ("inequality", rf"x \ge {d}", rf"{c} \le x"),
            ("vector", rf"\begin{{pmatrix}} {a} \\ {d} \end{{pmatrix}}", rf"\begin{{pmatrix}}{a}\\{c}\end{{pmatrix}}"),
            ("multiple of pi", rf"\frac{{{2 * d}\pi}}{{2}}", rf"{c}\pi"),
            ("with a unit", rf"{d}\sqrt{{{root}}}\text{{ cm}}^2", rf"{c}\sqrt{{{root}}}"),
            ("f(x) =", f"f(x) = {d}x + {a}", f"{c}x + {a}"),
            ("x =", f"x = {d}", str(c)),
            ("number", f"{d}.0", str(c)),
            ("rounded", f"{d / 7:.7f}", rf"\frac{{{c}}}{{7}}"),
        ]
    )
    return Pair(f"formula: {name}", given, gold, not off)


def no_formulas(rng: Random) -> Pair:
    """A number, and what only contains it."""
    kind, forms = rng.choice([("term", TERMS), ("factor", FACTORS), ("relation", RELATIONS), ("list", LISTS)])
    n = rng.randint(3, 99_999)
    return Pair(f"formula: not the number, {kind}", rng.choice(forms).format(n=n), str(n), False)


# -- the run -----------------------------------------------------------------------------------------------------------


class Watch:
    """Runs calls and keeps the slowest, by the CPU time of this thread."""

    def __init__(self) -> None:
        self.slow: list[tuple[float, str, str, Callable[[], object]]] = []

    def __call__(self, name: str, text: str, call: Callable[[], Any]) -> Any:
        began = time.thread_time()
        result = call()
        spent = time.thread_time() - began
        if len(self.slow) < KEPT or spent > self.slow[-1][0]:
            self.slow = sorted([*self.slow, (spent, name, text, call)], key=lambda entry: -entry[0])[:KEPT]
        return result

    def slowest(self) -> dict[str, Any]:
        """The slowest call, each timed twice more: another process may have been in the way."""

        def again(call: Callable[[], object]) -> float:
            for cached in (answers.extract, answers._key):
                cached.cache_clear()
            began = time.thread_time()
            call()
            return time.thread_time() - began

        timed = [(min(spent, again(call), again(call)), name, text) for spent, name, text, call in self.slow]
        spent, name, text = max(timed)
        return {"milliseconds": round(1000 * spent, 2), "call": name, "characters": len(text), "text": text[:80]}


def decided(pair: Pair, watch: Watch) -> bool:
    """Whether `answers` calls the two the same."""
    given: str | None = pair.given
    if pair.response:
        given = watch("extract", pair.given, lambda: answers.extract(pair.given))
        if pair.given.rpartition("\n")[2].startswith("####"):
            assert answers.extract(pair.given, strict=True) == given, f"two readings of {pair.given!r}"
    if given is None:
        return False
    text = given
    return watch("equal", text + pair.gold, lambda: answers.equal(text, pair.gold))


def soup(rng: Random) -> str:
    """Random pieces, or a real writing with pieces cut out and put in."""
    if rng.random() < 0.5:
        most = LONGEST if rng.random() < 0.002 else 30
        return "".join(rng.choices(PIECES, k=rng.randint(0, most)))
    text = list(rng.choice(PAIRS)[1](rng).given)
    for _ in range(rng.randint(1, 4)):
        at = rng.randint(0, len(text))
        text[at : at + rng.randint(0, 3)] = rng.choice(PIECES)
    return "".join(text)


def faults(a: str, b: str, watch: Watch) -> Iterator[str]:
    """The laws that two texts break."""
    key = watch("normalize", a, lambda: answers.normalize(a))
    if answers.normalize(key) != key:
        yield "normalize is not idempotent"
    if answers.equal(a, a) != (key != ""):
        yield "an answer does not equal itself"
    if answers.equal(a, b) != answers.equal(b, a):
        yield "equal depends on the order"
    for strict in (False, True):
        found = watch("extract", a, lambda: answers.extract(a, strict))
        if found is not None and not answers.normalize(found):
            yield "extract finds an empty answer"
    watch("without_unit", a, lambda: answers.without_unit(a))


def fuzz(num: int, seed: int) -> dict[str, Any]:
    """What `num` cases give: tallies by kind, broken laws, the slowest call."""
    rng, watch = Random(seed), Watch()
    kinds: dict[str, Tally] = {}
    formulas_left = round(num * SHARE_OF_FORMULAS)
    pairs_left = round(num * SHARE_OF_PAIRS)
    texts = num - formulas_left - pairs_left
    makers, weights = [make for _, make in PAIRS], [weight for weight, _ in PAIRS]
    for _ in range(pairs_left):
        pair = rng.choices(makers, weights)[0](rng)
        kinds.setdefault(pair.kind, Tally()).add(pair, decided(pair, watch))
    verdicts: Counter[str] = Counter()
    while formulas_left > 0:
        batch = [rng.choice([formulas, formulas, no_formulas])(rng) for _ in range(min(BATCH, formulas_left))]
        grades = RULES["math"].grade_many([(rf"\boxed{{{pair.given}}}", pair.gold) for pair in batch])
        for pair, grade in zip(batch, grades, strict=True):
            kinds.setdefault(pair.kind, Tally()).add(pair, grade.correct)
            verdicts[grade.verdict] += 1
        formulas_left -= len(batch)
    broken: dict[str, list[str]] = {}
    before = ""
    for _ in range(texts):
        text = soup(rng)
        for law in faults(text, before, watch):
            broken.setdefault(law, []).append(text)
        before = text
    return {
        "kinds": {name: vars(kinds[name]) for name in sorted(kinds)},
        "formula_verdicts": dict(verdicts),
        "random_texts": texts,
        "broken_laws": {law: {"count": len(found), "examples": found[:EXAMPLES]} for law, found in broken.items()},
        "slowest": watch.slowest(),
    }


def totals(kinds: dict[str, Any], limits: bool) -> dict[str, int]:
    """All kinds together: the known limits, or the others."""
    chosen = [tally for name, tally in kinds.items() if name.startswith("limit:") == limits]
    return {key: sum(tally[key] for tally in chosen) for key in ("pairs", "false_positives", "false_negatives")}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num", type=int, default=1_000_000, help="cases (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    parser.add_argument("--out", type=Path, default=RESULTS, help="the JSON file (default: %(default)s)")
    args = parser.parse_args(argv)
    began = time.perf_counter()
    found = fuzz(args.num, args.seed)
    print(f"{'kind':52} {'pairs':>9} {'false +':>8} {'false -':>8}")
    sums = {"all but limits": totals(found["kinds"], False), "limits": totals(found["kinds"], True)}
    for name, tally in [*found["kinds"].items(), *sums.items()]:
        print(f"{name:52} {tally['pairs']:9,} {tally['false_positives']:8,} {tally['false_negatives']:8,}")
    slowest = found["slowest"]
    print(f"random texts: {found['random_texts']:,}; laws broken: {found['broken_laws'] or 'none'}")
    print(
        f"slowest call: {slowest['call']}, {slowest['milliseconds']} ms for {slowest['characters']:,} characters"
        f" (aim: {AIM_MS:g} ms)"
    )
    result = {
        "command": f"uv run python benchmarks/answers_fuzz.py --num {args.num} --seed {args.seed}",
        "num": args.num,
        "seed": args.seed,
        "totals": sums,
        **found,
        "seconds": round(time.perf_counter() - began, 1),
    }
    provenance.write(args.out, "answers_fuzz", result)
    return 1 if found["broken_laws"] or slowest["milliseconds"] > AIM_MS else 0


if __name__ == "__main__":
    raise SystemExit(main())
