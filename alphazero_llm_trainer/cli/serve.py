"""The `serve` command: a student with search behind the OpenAI API."""

from __future__ import annotations

import argparse
import os

from ..errors import ConfigError
from ..live import Progress
from .base import (
    EXIT_STOPPED,
    check_critics,
    check_out,
    load_guided,
    resolve_config,
    tell_loading,
)

KEY_VARIABLE = "ALPHAZERO_API_KEY"


def run_serve(args: argparse.Namespace) -> int:
    """Serve until a signal comes. 0 after SIGTERM, 130 after Ctrl-C."""
    from ..problems.registry import with_worlds
    from ..serve.listen import is_loopback, open_socket, serve_app

    config = resolve_config(args, load=load_guided(args))
    keys = [key.strip() for key in os.environ.get(KEY_VARIABLE, "").split(",") if key.strip()]
    if not 0 <= args.port <= 65535:
        raise ConfigError(f"--port is {args.port}: give one of 0 to 65535")
    if not is_loopback(args.host) and not keys and not args.insecure:
        raise ConfigError(
            f"--host is {args.host}, which other machines reach, and {KEY_VARIABLE} isn't set: set "
            "it, or add --insecure"
        )
    check_critics(args)
    with_worlds(config, "serve")
    check_out(args.keep_traces, flag="--keep-traces")
    # Before anything is loaded: a port in use is told at once.
    with open_socket(args.host, args.port) as bound, Progress(args.quiet) as progress:
        tell_loading(args, progress, config)
        from ..serve.app import LOCAL, make_app
        from ..serve.load_models import load_models
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
        return EXIT_STOPPED if serve_app(app, bound, student.engine, ready) else 0
