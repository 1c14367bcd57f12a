r"""The process that runs math-verify: one JSON request a line on stdin, one verdict a line on stdout.

A request is `{"gold": LaTeX, "answer": text, "found": bool}`. `found` tells that `answer` is a final answer that was
taken out of its response; otherwise it is running text, and math-verify looks for the answer itself. The verdict is
`correct`, `wrong` or `unparsed`; the first line is `ready`. Its parent (`math_verifier`) ends it when it takes too long.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import sys

from math_verify import parse, verify

MEMORY_BYTES = 4 << 30  # a power tower asks for all there is


def judge(gold: str, answer: str, found: bool) -> str:
    """The verdict of one request."""
    wanted = parse(rf"\boxed{{{gold}}}", parsing_timeout=None)
    # Mathematics that is marked inside words stays marked; anything else is an expression as it stands.
    text = answer.replace(r"\$", "")  # a dollar sign is no mark
    marked = not found or any(sign in text for sign in ("$", r"\(", r"\[", r"\boxed"))
    given = parse(answer if marked else rf"\boxed{{{answer}}}", parsing_timeout=None)
    if verify(wanted, given, timeout_seconds=None):
        return "correct"
    # What math-verify can't read comes back as text alone, and text equals text only.
    return "wrong" if any(not isinstance(one, str) for one in given) else "unparsed"


def main(alarm_seconds: int) -> None:
    """Serve until stdin ends. A request that takes `alarm_seconds` ends the process: its parent must be gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends this process
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    if sys.platform == "linux":
        import resource

        with contextlib.suppress(ValueError):  # a lower limit is in force already
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    verdicts = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints doesn't reach the verdicts
    print("ready", file=verdicts, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        if hasattr(signal, "alarm"):
            signal.alarm(alarm_seconds)
        print(judge(request["gold"], request["answer"], request["found"]), file=verdicts, flush=True)
        if hasattr(signal, "alarm"):
            signal.alarm(0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
