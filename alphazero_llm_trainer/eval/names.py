"""The names of the ways of answering: what `eval.methods` has, which takes a second to load."""

METHOD_NAMES = (
    "greedy",
    "majority",
    "best-of-n",
    "adaptive-best-of-n",
    "weighted-majority",
    "early-abort",
    "step-rejection",
    "beam",
    "dvts",
    "mcts",
    "calculator-tool",
)
UNJUDGED = ("greedy", "majority", "calculator-tool")  # ask no verifier
