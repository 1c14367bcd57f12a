"""The site's generated reference pages: commands from their parsers, configuration from the
comments of the YAML files.

An MkDocs hook (`hooks` in mkdocs.yml): both are made at each build, in place of two short pages for
readers of the repository.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

ROOT = Path(__file__).resolve().parent.parent
CONFIG = ROOT / "config"
USAGE_WIDTH = 76  # columns of the usage lines
LINE = re.compile(
    r"^(?P<indent> *)(?P<key>[\w.-]+):(?: +(?P<value>[^#]*?))?(?: *# ?(?P<text>.*))?$"
)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """MkDocs calls this once it has listed docs/."""
    from mkdocs.structure.files import File

    for name, text in (("cli", commands()), ("configuration", configuration())):
        short = files.get_file_from_path(f"reference/{name}.md")
        if short is not None:
            files.remove(short)
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    return files


def cell(text: str) -> str:
    """Text for a table's cell."""
    return " ".join(text.split()).replace("|", "\\|")


def code(text: str) -> str:
    """Text as code in a table's cell."""
    return f"`{cell(text)}`"


# -- commands --------------------------------------------------------------------------------------


def commands() -> str:
    """Every command of `alphazero-llm-trainer`, and the front end of `vf-eval`."""
    os.environ["COLUMNS"] = str(USAGE_WIDTH)  # where argparse wraps a usage line
    from alphazero_llm_trainer.cli.main import build_parser
    from alphazero_llm_trainer.environment.front_end import USAGE

    parser = build_parser()
    children = next(
        action for action in parser._actions if isinstance(action, argparse._SubParsersAction)
    )
    about = {action.dest: action.help or "" for action in children._choices_actions}
    lines = [
        "# Commands",
        "",
        "Made from the parsers at each build. `COMMAND --help` prints the same.",
        "",
        "| Command | What it does |",
        "|---|---|",
        *(f"| [`{name}`](#{name}) | {cell(text)} |" for name, text in about.items()),
        "| [`vf-eval`](#vf-eval) | evaluate in verifiers' environment, or train |",
        "",
        "Run them as `uv run alphazero-llm-trainer COMMAND`, or without `uv run` in an active "
        "environment.",
        "`python train_vllm.py` and `vf-eval alphazero-llm-trainer -s --` take the options of "
        "`train`.",
        "",
    ]
    general = [
        action
        for action in parser._actions
        if action is not children and not isinstance(action, argparse._HelpAction)
    ]
    if general:
        lines += ["## Options before a command", "", *options(general)]
    for name, text in about.items():
        lines += ["", f"## {name}", "", *command(children.choices[name], text)]
    lines += ["", "## vf-eval", "", "```text", USAGE.rstrip(), "```", ""]
    return "\n".join(lines)


def command(parser: argparse.ArgumentParser, about: str) -> Iterator[str]:
    """One command: description, usage, options and notes."""
    text = parser.description or about
    yield f"{text[0].upper()}{text[1:]}" + ("" if text.endswith(".") else ".")
    yield from ("", "```text", parser.format_usage().removeprefix("usage: ").rstrip(), "```", "")
    yield from options([action for action in parser._actions if action.help != argparse.SUPPRESS])
    if parser.epilog:
        yield from ("", "```text", parser.epilog.strip("\n"), "```")


def options(actions: list[argparse.Action]) -> Iterator[str]:
    """A table of arguments; `--help` is left out, and a default is told where the help doesn't."""
    yield from ("| Option | Meaning |", "|---|---|")
    for action in actions:
        if isinstance(action, argparse._HelpAction):
            continue
        values = action.metavar or (
            "{" + ",".join(map(str, action.choices)) + "}" if action.choices else None
        )
        if isinstance(values, tuple):
            values = " ".join(values)
        values = None if action.nargs == 0 else values or action.dest.upper()
        name = ", ".join(
            f"{flag} {values}" if values else flag for flag in action.option_strings
        ) or str(values)
        text = cell(
            (action.help or "")
            % {"default": worded(action.default), "prog": "alphazero-llm-trainer"}
        )
        if (
            action.nargs != 0
            and action.default not in (None, argparse.SUPPRESS, [])
            and "default" not in text
        ):
            text += f" (default: {cell(worded(action.default))})"
        yield f"| {code(name)} | {text} |"


def worded(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


# -- configuration ---------------------------------------------------------------------------------


def configuration() -> str:
    """Every key of config/training.yaml with its default and its comment, the students, teachers
    and variables.
    """
    source = (CONFIG / "training.yaml").read_text(encoding="utf-8")
    lines = [
        "# Configuration",
        "",
        "Made from the comments of `config/*.yaml` at each build. A run reads the shipped files, "
        "then `--config FILE` (YAML"
        " with some of these keys), then `--set KEY=VALUE`, then the command's own flags. An "
        "unknown key is an error.",
        "",
        "```sh",
        "uv run alphazero-llm-trainer train --config my.yaml --set "
        "train.optimizer.learning_rate=1e-4",
        "```",
        "",
        "`--set` takes text, such as `problems.system_prompt`, as it is written, `#` and `:` too; "
        "`null` and nothing are"
        " none. Other values are YAML, and what a comment would cut off is an error. In a file "
        "quote text with a `#` or a"
        " `:` in it.",
    ]
    keys = set()
    for section, text, rows in sections(source):
        keys |= {f"{section}.{name}" if section else name for name, _, _ in rows}
        lines += ["", f"## {section or 'Top level'}", ""]
        lines += [f"{text[0].upper()}{text[1:]}.", ""] if text else []
        lines += ["| Key | Default | Meaning |", "|---|---|---|"]
        lines += [
            f"| {code(name)} | {code(value)} | {cell(meaning)} |" for name, value, meaning in rows
        ]
    expected = set(flat(yaml.safe_load(source)))
    if keys != expected:
        raise ValueError(
            f"config/training.yaml has keys that its lines don't show: {sorted(keys ^ expected)}"
        )
    return "\n".join([*lines, "", *students(), "", *tiers(), "", *variables(), ""])


def flat(tree: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key


def sections(source: str) -> Iterator[tuple[str, str, list[tuple[str, str, str]]]]:
    """(section, its comment, [(key, default, comment)]) in the file's order; a section has a dotted
    name.
    """
    found: dict[str, tuple[str, list[tuple[str, str, str]]]] = {"": ("", [])}
    path: list[str] = []
    for line in source.splitlines():
        match = LINE.match(line)
        if match is None or line.lstrip().startswith("#"):
            continue
        path = path[: len(match["indent"]) // 2]
        section, text = ".".join(path), match["text"] or ""
        if match["value"]:
            found[section][1].append((match["key"], match["value"], text))
        else:
            path.append(match["key"])
            found[".".join(path)] = (text, [])
    for section, (text, rows) in found.items():
        if rows:
            yield section, text, rows


def students() -> Iterator[str]:
    models = yaml.safe_load((CONFIG / "models.yaml").read_text(encoding="utf-8"))
    yield from (
        "## Students",
        "",
        "From `config/models.yaml`; `--model NAME` picks one, `auto` picks by device.",
        "",
    )
    yield from (
        "| Name | Weights | Adapter | Quantization | Gated | Download, GB |",
        "|---|---|---|---|---|---:|",
    )
    for name, model in models.items():
        size = model.get("download_gb", "")
        gated = f"yes; mirror {code(model['mirror'])}" if model.get("gated") else "no"
        yield (
            f"| {code(name)} | {code(model['path'])} | {model['adapter']} "
            f"| {model['quantization']} | {gated} | {size} |"
        )


def tiers() -> Iterator[str]:
    found = yaml.safe_load((CONFIG / "teacher_models.yaml").read_text(encoding="utf-8"))
    yield from (
        "## Teacher tiers",
        "",
        "From `config/teacher_models.yaml`. Prices are dollars a million tokens.",
        "",
    )
    yield from (
        "| Tier | Endpoint | Key | Models (prompt, completion price) |",
        "|---|---|---|---|",
    )
    for name, tier in found.items():
        models = "<br>".join(
            code(one["model"])
            + (
                f" ({one['prompt_cost']}, {one['completion_cost']})"
                if one.get("prompt_cost") is not None
                else ""
            )
            for one in tier["teachers"]
        )
        key = code(tier["key_variable"]) if tier["key_variable"] else "none"
        yield f"| `{name}` | {tier['base_url'] or 'in this process'} | {key} | {models} |"


def variables() -> Iterator[str]:
    yield from (
        "## Environment variables",
        "",
        "From `.env.example`. Nothing here is required.",
        "",
    )
    yield from ("| Variable | Meaning |", "|---|---|")
    comment: list[str] = []
    for line in (ROOT / ".env.example").read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            comment.append(line.removeprefix("#").strip())
        elif "=" in line:
            yield f"| {code(line.partition('=')[0])} | {cell(' '.join(comment))} |"
            comment = []
        else:
            comment = []
