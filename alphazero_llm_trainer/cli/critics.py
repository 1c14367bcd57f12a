"""The `value` and `prm` commands: train a critic from trees, its own or others', and say whether it
earns its place.
"""

from __future__ import annotations

import argparse

from ..config.load import check_read
from ..errors import ConfigError
from ..files import Folder, command_line
from ..live import Progress, Stop, StoppedError
from .base import (
    EXIT_STOPPED,
    check_out,
    print_json,
    resolve_config,
    tell_loading,
)


def run_critic(args: argparse.Namespace) -> int:
    """Search where no data is given, train, print the held-out table and write the folder. 130 when
    the user stopped it.
    """
    config, kind = resolve_config(args, recipe="critic.yaml"), args.command
    for path in args.data or ():
        if not path.exists():
            raise ConfigError(
                f"--data {path} is not there: "
                "name a journal, a folder of train or sample, or step preferences"
            )
    folder = Folder(args.out, "critic.json")
    folder.check_free(fix="remove it")
    check_out(args.out)
    from ..runs.start import check_searches

    check_read(config, command=kind, searches="no" if args.data else "yes")
    if not args.data:
        config = check_searches(config, kind)
    with Progress(args.quiet) as progress, Stop(progress) as stop:
        tell_loading(args, progress, config)
        from ..learning.critic_network import save_critic
        from ..learning.size import fresh_questions
        from ..policy.student import load_student
        from ..problems.load import opening, with_context
        from ..report.folder_page import write_report
        from ..runs.critic_run import train_critic
        from ..runs.sample import SampleJob, run_sample
        from ..tree.journal import JOURNAL, read

        student = load_student(with_context(config), path=args.path, opening=opening(config))
        spent = 0
        if not args.data:
            job = SampleJob(config, fresh_questions(config), student=student)
            summary = run_sample(job, args.out, resume=True, stop=stop, progress=progress)
            progress.say(summary.text(args.out))
            if summary.status == "stopped":
                progress.say("stopped while searching; the same command goes on from here")
                return EXIT_STOPPED
            records = read(args.out / JOURNAL)  # of a command that was stopped, too
            spent = sum(record["cost"]["sampled_tokens"] for record in records)
        with folder.lock():
            data = args.data or [args.out]
            try:
                critic, card = train_critic(kind, student, config, data, args.out, progress, stop)
            except StoppedError:
                progress.say(
                    "stopped while training, nothing was kept of it; "
                    "the same command trains on the same trees"
                )
                return EXIT_STOPPED
            card |= {"command": command_line(), "sampled_tokens": spent}
            card = save_critic(args.out, critic, card, student, config)
            write_report(args.out)
    if args.json:
        print_json(card)
    else:
        from ..report.critics import critic_text

        print(f"{critic_text(card)}\ncritic.json, metrics.jsonl and report.html are in {args.out}")
    return 0
