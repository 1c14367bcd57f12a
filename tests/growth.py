"""How the time of a call grows with its text: tells linear work from quadratic work without naming
a time.
"""

import time

TIMES = 8
LINEAR = 3 * TIMES  # quadratic work on a text 8 times as long takes 64 times as long


def growth(call, unit, end="", size=5_000):
    """How many times as long `call` takes for a text of 8 * `size` characters as for one of `size`.

    The text repeats `unit` and ends with `end`. CPU time, the best of three runs each.
    """

    def seconds(length):
        text = unit * (length // len(unit)) + end
        spent = []
        for _ in range(3):
            began = time.process_time()
            call(text)
            spent.append(time.process_time() - began)
        return min(spent)

    # Below a millisecond the clock says little.
    return seconds(TIMES * size) / max(seconds(size), 1e-3)
