"""Which `vf-eval` command lines are this package's. Every such process asks before anything else is
imported.
"""

from __future__ import annotations

from collections.abc import Sequence

OUR_ID = "alphazero-llm-trainer"
ID_FLAG = "--env.taskset.id"


def is_our_id(text: str) -> bool:
    """Whether a taskset id names this package, in any spelling that verifiers accepts
    (`owner/name@version`).
    """
    return text.rsplit("/", 1)[-1].split("@", 1)[0].replace("_", "-").lower() == OUR_ID


def names_us(argv: Sequence[str]) -> bool:
    """Whether a `vf-eval` command line is for this package: by its first word, or by verifiers' own
    flag.
    """
    if argv and not argv[0].startswith(("-", "@")):
        return is_our_id(argv[0])
    own = argv[: argv.index("--")] if "--" in argv else argv
    joined = " ".join(own).replace(f"{ID_FLAG} ", f"{ID_FLAG}=").split()
    return any(
        is_our_id(word.partition("=")[2]) for word in joined if word.startswith(f"{ID_FLAG}=")
    )
