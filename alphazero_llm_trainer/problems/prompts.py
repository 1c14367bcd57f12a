"""What chat models are told before a problem."""

from __future__ import annotations

SYSTEM_PROMPT = (
    "Solve the word problem step by step. Write one short step a line, each with its calculation, for example "
    "`16 - 3 = 13`. Write no headings and no lists. End with one line that holds only `#### N`, where N is the final "
    "answer as a plain number without units."
)

MATH_PROMPT = (
    "Solve the problem step by step. Write one short step a line. Write no headings and no lists. End with one line that"
    " holds only `#### A`, where A is the final answer in LaTeX without dollar signs, in the form that was asked for."
)
HOTPOTQA_PROMPT = (
    "Answer the question from the paragraphs above it. Write one short step a line, each a fact and the title of its"
    " paragraph. Write no headings and no lists. End with one line that holds only `#### A`, where A is the answer in as"
    " few words as possible: a name, a date, a number, or yes or no."
)


def system_prompt(source: str) -> str:
    """The instructions for the problems of a source."""
    return {"math": MATH_PROMPT, "hotpotqa": HOTPOTQA_PROMPT}.get(source, SYSTEM_PROMPT)
