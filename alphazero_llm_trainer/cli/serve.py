"""The `serve` command: a student with search behind the OpenAI API."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from ..config.load import Config
from ..errors import ConfigError
from ..live import Progress
from .base import (
    EXIT_STOPPED,
    add_base_url,
    add_config_arguments,
    add_critics,
    add_judge,
    add_model,
    add_source,
    check_critics,
    check_out,
    load_guided,
    resolve,
    tell_loading,
)

KEY_VARIABLE = "ALPHAZERO_API_KEY"
EPILOG = f"""\
Models: student (what --search says), student@sample, student@mcts, student@best-of-N, student@majority-N,
student@step-rejection, student@adaptive-best-of-n, student@beam.
The same by extra_body of the openai client: method, and budget_tokens, simulations, deadline_ms, return_tree.

    curl http://127.0.0.1:8000/v1/chat/completions --json '{{"model": "student@mcts", "messages":
      [{{"role": "user", "content": "..."}}], "deadline_ms": 2000}}'

/docs describes every request.
Set {KEY_VARIABLE} to ask clients for a key (several: separated by commas). Bounds: serve.* of config/training.yaml."""


def add_serve(commands: Any) -> None:
    parser = commands.add_parser(
        "serve", help="serve the student with search behind the OpenAI API", epilog=EPILOG
    )
    add_model(parser)
    add_base_url(parser)
    add_source(parser)
    parser.add_argument(
        "--search",
        metavar="METHOD",
        help="what the model `student` does (default: sample; with --base-url mcts)",
    )
    parser.add_argument(
        "--verifier",
        metavar="NAME",
        help="who judges searches, as of `eval` (default: calculator, with --prm or --value)",
    )
    add_critics(parser)
    add_judge(parser)
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="who may reach it: 0.0.0.0 is everybody",
    )
    parser.add_argument("--port", type=int, default=8000, help="0 for a free one")
    parser.add_argument(
        "--insecure", action="store_true", help=f"other machines may ask without {KEY_VARIABLE}"
    )
    parser.add_argument(
        "--keep-traces",
        type=Path,
        help="append every searched tree to DIR/journal.jsonl",
    )
    add_config_arguments(parser)
    parser.set_defaults(run=lambda args: run_serve(args, resolve(args, load=load_guided(args))))


def run_serve(args: argparse.Namespace, config: Config) -> int:
    """Serve until a signal comes. 0 after SIGTERM, 130 after Ctrl-C."""
    from ..serve.server import is_loopback, listen, serve

    keys = [key.strip() for key in os.environ.get(KEY_VARIABLE, "").split(",") if key.strip()]
    if not 0 <= args.port <= 65535:
        raise ConfigError(f"--port is {args.port}: give one of 0 to 65535")
    if not is_loopback(args.host) and not keys and not args.insecure:
        raise ConfigError(
            f"--host is {args.host}, which other machines reach, and {KEY_VARIABLE} isn't set: set "
            "it, or add --insecure"
        )
    check_critics(args)
    check_out(args.keep_traces, flag="--keep-traces")
    # Before anything is loaded: a port in use is told at once.
    with listen(args.host, args.port) as bound, Progress(args.quiet) as progress:
        tell_loading(args, progress, config)
        from ..serve.app import LOCAL, make_app
        from ..serve.load import load_models
        from ..serve.service import Service

        models, answerer = load_models(
            config, args.search, args.path, args.verifier, args.prm, args.value
        )
        student = answerer.student
        shown = f"[{args.host}]" if ":" in args.host else args.host

        def ready() -> None:
            progress.stop()
            print(
                f"student {student.title} answers at http://{shown}:{bound.getsockname()[1]}/v1 "
                f"(Ctrl-C ends)\nwhat a request doesn't say: {models.default.label}; a sample "
                'at temperature 1 (greedy: "temperature": 0)',
                flush=True,
            )

        service = Service(answerer, models, config.serve, args.keep_traces)
        app = make_app(service, keys, (*LOCAL, shown) if is_loopback(args.host) else ("*",))
        return EXIT_STOPPED if serve(app, bound, student.engine, ready) else 0
