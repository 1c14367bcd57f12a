"""The console script `alphazero-llm-trainer`: its parser with every command in groups, and its entry."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from .base import Parser, run_command
from .critics import add_prm, add_value
from .eval import add_eval
from .export import add_export
from .fetch import add_fetch
from .info import add_info
from .merge import add_merge
from .report import add_compare, add_report
from .sample import add_sample
from .search import add_search
from .serve import add_serve
from .sft import add_sft
from .train import add_train
from .view import add_view

PROGRAM = "alphazero-llm-trainer"
GROUPS = {
    "look around": (add_info, add_search),
    "train": (add_train, add_sft, add_value, add_prm),
    "evaluate": (add_eval, add_compare),
    "look at results": (add_view, add_report),
    "data and models": (add_sample, add_export, add_fetch),
    "use the student": (add_serve, add_merge),
}
EPILOG = f"""\
{PROGRAM} COMMAND --help lists a command's options. The first line to try: {PROGRAM} search"""


class Version(argparse.Action):
    """--version: the version is looked up when it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *rest: Any) -> None:
        print(f"{PROGRAM} {metadata.version(PROGRAM)}")
        parser.exit()


class PrintCompletion(argparse.Action):
    """--print-completion SHELL: a script that completes commands, options and files."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, shell: Any, option: str | None = None) -> None:
        import shtab

        assert isinstance(parser, TopParser)
        for command in (parser, *parser.commands.choices.values()):
            for action in command._actions:
                if action.type is Path:
                    action.complete = shtab.DIRECTORY if action.metavar == "DIR" else shtab.FILE  # type: ignore[attr-defined]
        print(shtab.complete(parser, shell))
        parser.exit()


class TopParser(Parser):
    """The parser of the program itself, whose help lists the commands in groups."""

    def __init__(self) -> None:
        super().__init__(prog=PROGRAM, description="AlphaZero for language-model reasoning.", epilog=EPILOG)
        self.add_argument("--version", action=Version, nargs=0, help="print the version and end")
        self.add_argument(
            "--print-completion",
            action=PrintCompletion,
            choices=("bash", "zsh", "tcsh"),
            metavar="SHELL",
            help=f'completion for bash, zsh or tcsh: eval "$({PROGRAM} --print-completion bash)"',
        )
        self.commands = self.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
        self.groups: dict[str, list[argparse.Action]] = {}
        for group, adders in GROUPS.items():
            before = len(self.commands._choices_actions)
            for add in adders:
                add(self.commands)
            self.groups[group] = self.commands._choices_actions[before:]

    def format_help(self) -> str:
        formatter = self._get_formatter()
        formatter.add_text(self.description)
        formatter.add_usage("%(prog)s COMMAND [options]\n       %(prog)s COMMAND --help", (), ())
        for group, commands in self.groups.items():
            formatter.start_section(group)
            formatter.add_arguments(commands)
            formatter.end_section()
        formatter.start_section("options")
        formatter.add_arguments([action for action in self._actions if action is not self.commands])
        formatter.end_section()
        formatter.add_text(self.epilog)
        return formatter.format_help()


def build_parser() -> Parser:
    """The parser of `alphazero-llm-trainer` with all its commands; nothing runs."""
    return TopParser()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that `argv` names (None: the process's arguments) and return its exit code."""
    argv = sys.argv[1:] if argv is None else argv
    parser = build_parser()
    if not [word for word in argv if word not in ("-q", "-v", "--quiet", "--verbose")]:
        parser.print_help()
        return 0
    return run_command(parser, argv)
