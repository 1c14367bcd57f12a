"""The names of the ways of answering: what `eval.methods` has, which takes a second to load."""

from typing import Literal, get_args

MethodName = Literal[
    "greedy",
    "majority",
    "best-of-n",
    "adaptive-best-of-n",
    "step-rejection",
    "beam",
    "mcts",
]
METHOD_NAMES: tuple[str, ...] = get_args(MethodName)
UNJUDGED_METHODS = ("greedy", "majority")  # ask no verifier
