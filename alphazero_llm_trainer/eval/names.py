"""The names of the ways of answering: what `eval.methods` has, which takes a second to load."""

METHOD_NAMES = (
    "greedy",
    "majority",
    "best-of-n",
    "adaptive-best-of-n",
    "step-rejection",
    "beam",
    "dvts",
    "mcts",
)
UNJUDGED = ("greedy", "majority")  # ask no verifier
