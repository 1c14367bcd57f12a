"""`sample` or `train` on a disk of its own that is too small, then full, then large enough, then read-only.

    unshare --mount python tests/small_disk.py WORDS PLACE KEPT FULL LARGE

Runs with mounts that nobody else sees. WORDS are a command's as a JSON list of [first, again, plan], whose folder is PLACE/out;
FULL and LARGE are sizes for `mount`. Prints a JSON list of [exit code, standard error], and copies what came of it to KEPT.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence

from cut_runs import command

from alphazero_llm_trainer.files import check_space
from alphazero_llm_trainer.scale import sample_folder
from alphazero_llm_trainer.training import loop, start

CHECKED = (start, sample_folder, loop)


def main(words: str, place: str, kept: str, full: str, large: str) -> None:
    first, again, plan = json.loads(words)
    ends = []

    def mount(*options: str) -> None:
        subprocess.run(["mount", *options, place], check=True)

    def run(line: Sequence[str]) -> None:
        ends.append(command([*line, f"{place}/out"]))

    mount("-t", "tmpfs", "-o", f"size={full}", "none")
    run(plan)
    run(first)
    for module in CHECKED:
        module.check_space = lambda *given: None  # the disk fills up after it was looked at
    run(first)
    for module in CHECKED:
        module.check_space = check_space
    mount("-o", f"remount,size={large}")
    run(again)
    mount("-o", "remount,ro")
    run(again)
    shutil.copytree(f"{place}/out", kept)
    print(json.dumps(ends))


if __name__ == "__main__":
    main(*sys.argv[1:])
