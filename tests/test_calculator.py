"""The calculator rule: which equations it finds, and which of them it calls true."""

import pytest
from growth import LINEAR, growth
from hypothesis import given
from hypothesis import strategies as st

from alphazero_llm_trainer.problems.calculator import equations


@pytest.mark.parametrize(
    "text, found",
    [
        ("16 - 3 = 13", (True,)),
        ("16 - 3 = 14", (False,)),
        ("48/2 = <<48/2=24>>24 clips", (True,)),
        ("She sold <<48/2=25>>25 clips.", (False,)),
        ("$1,200 / 4 = $300.", (True,)),
        ("0.5 * 3 = 1.50", (True,)),
        ("10 / 3 = 3.33", (True,)),
        ("10 / 3 = 3.3", (True,)),
        ("10 / 3 = 3.34", (False,)),
        ("10 / 3 = 3", (False,)),
        ("2 + 3 * 4 = 14", (True,)),
        ("(2 + 3) * 4 = 20", (True,)),
        ("3 x 4 = 12 and 5 × 2 = 11", (True, False)),
        ("2 * 3 = 6 = 6", (True,)),
        ("1. 3 + 4 = 7", (True,)),
        ("2) 3 + 4 = 7", (True,)),
        ("- 3 + 4 = 7", (True,)),
        ("-3 + 4 = 1", (True,)),
        ("4 - 7 = -3", (True,)),
        ("2 + 2 = 2 + 2", ()),
        ("5 / 0 = 3", ()),
        ("x = 5", ()),
        ("total = 12", ()),
        ("3 apples + 4 apples = 8 apples", ()),
        ("20% * 50 = 10", ()),
        ("2x + 3 = 7", ()),
        ("x + 2 + 3 = 10", ()),
        ("3 apples + 2 + 1 = 6", ()),
        ("2^3 + 1 = 9", ()),
        ("2 * 3 = 5(1 + 1)", ()),
        (r"\[ \frac{80}{5} + 1 = 17 \]", (True,)),
        (r"2 \text{ hours} \times 60 \text{ mph} = 110 \text{ miles}", (False,)),
        (r"\$90 - \$10 = \boxed{80}", (True,)),
        (r"\frac{120 \text{ miles}}{30} \div 2 = 2", (True,)),
        (r"\left(2 + 3\right) \cdot 4 = 21", (False,)),
        (r"1{,}000 \times 2 = 2{,}000", (True,)),
        (r"20\% \times 50 = 10", ()),
        (r"\sqrt{16} + 2 = 7", ()),
        ("so **16 - 3 = 12**", (False,)),
        ("#### 13", ()),
        ("", ()),
    ],
)
def test_equations_of_a_line(text, found):
    assert equations(text) == found


numbers = st.integers(0, 10**6)


@given(numbers, st.sampled_from("+-*/"), numbers, st.integers(-3, 3))
def test_a_random_equation_is_true_exactly_when_it_is(a, operator, b, off):
    if operator == "/":
        a, b = a * (b + 1), b + 1
    exact = {"+": a + b, "-": a - b, "*": a * b, "/": a // max(b, 1)}[operator]
    assert equations(f"{a} {operator} {b} = {exact + off}") == (off == 0,)


@pytest.mark.parametrize(
    "unit, end",
    [("16 - 3 = 13\n", ""), ("so 16 - 3 = 13 clips. ", ""), ("1=", ""), ("111,", "111x")],
)
def test_a_text_eight_times_as_long_takes_about_eight_times_as_long(unit, end):
    assert growth(equations.__wrapped__, unit, end) < LINEAR
