"""The calculator rule: which equations it finds, and which of them it calls true."""

import pytest
from growth import LINEAR, growth
from hypothesis import given
from hypothesis import strategies as st
from tables import table

from alphazero_llm_trainer.problems.calculator import check_equations


@pytest.mark.parametrize("text, found", table("answers")["equations"])
def test_equations_of_a_line(text, found):
    assert [*check_equations(text)] == found


numbers = st.integers(0, 10**6)


@given(numbers, st.sampled_from("+-*/"), numbers, st.integers(-3, 3))
def test_a_random_equation_is_true_exactly_when_it_is(a, operator, b, off):
    if operator == "/":
        a, b = a * (b + 1), b + 1
    exact = {"+": a + b, "-": a - b, "*": a * b, "/": a // max(b, 1)}[operator]
    assert check_equations(f"{a} {operator} {b} = {exact + off}") == (off == 0,)


@pytest.mark.parametrize(
    "unit, end",
    [("16 - 3 = 13\n", ""), ("so 16 - 3 = 13 clips. ", ""), ("1=", ""), ("111,", "111x")],
)
def test_a_text_eight_times_as_long_takes_about_eight_times_as_long(unit, end):
    assert growth(check_equations.__wrapped__, unit, end) < LINEAR
