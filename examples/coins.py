"""Problems of your own as a file: `--source examples/coins.py:tasks`. The embedded student learns
them in a minute.
"""

import itertools

import alphazero_llm_trainer as az

QUESTION = (
    "{0} has {1} coins. On the way home he gets {2} coins. Zoe has {3} more coins than {0}."
    " How many coins does Zoe have?"
)

NAMES = ("Ben", "Leo", "Max", "Sam", "Tom")
tasks = [
    az.Task(
        az.Problem(f"coins/{'-'.join(map(str, drawn))}", QUESTION.format(*drawn), "coins"),
        str(sum(drawn[1:])),
    )
    for drawn in itertools.product(NAMES, range(4, 24, 2), range(2, 8), (2, 5))
]
