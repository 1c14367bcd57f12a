"""A server as the `serve` command runs it: load, join the methods of `eval` to it, listen."""

from __future__ import annotations

import argparse
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config.load import Config
from ..engine.inprocess import InProcessEngine
from ..errors import ConfigError
from ..eval.attempt import Attempt, Chain, MethodContext
from ..eval.methods import METHODS
from ..eval.verifiers import check_name, load_verifier
from ..live import Progress
from ..mcts.tree import REJECTED, ROOT
from ..policy.adapters import fingerprint
from ..policy.critic import load_value
from ..policy.student import load_student
from ..problems.load import opening
from ..serve.answering import Answerer, Stepwise
from ..serve.app import make_app
from ..serve.guard import is_loopback
from ..serve.names import Names
from ..serve.server import serve
from ..serve.service import Service
from ..serve.traces import KeptJournal
from ..types import RewardParts, Step
from .base import EXIT_STOPPED

if TYPE_CHECKING:
    from ..engine.protocol import Drawn

STEPWISE = ("step-rejection", "early-abort", "adaptive-best-of-n", "beam")  # of eval.methods


def run(args: argparse.Namespace, config: Config, keys: Sequence[str], bound: socket.socket, progress: Progress) -> int:
    """Load, and serve at the socket `bound`. 0 after SIGTERM, 130 after Ctrl-C."""
    named = args.verifier if args.verifier is not None else default_verifier(args)
    check_name(named, args.prm, args.value)
    judged = named != "none"
    for network in ("prm", "value"):
        guides = network == "value" and not judged
        if getattr(args, network) is not None and network not in named.split("+") and not guides:
            raise ConfigError(
                f"--{network} is given and --verifier is {named!r}, which doesn't ask it: name it there or leave it out"
            )
    stepwise = {name: partial(by_eval, name) for name in STEPWISE if judged}
    names = Names(args.search, stepwise, config.serve.max_samples, judged)
    alone = (args.prm or args.value or config.search.value) is None
    student = load_student(config, path=args.path, opening=opening(config), inference=alone)
    verifier = load_verifier(named, student, config, args.prm, args.value) if judged else None
    value, guided = None, args.value or config.search.value
    if not judged and guided is not None:
        value = load_value(Path(guided), student, config)
        if args.value is not None:
            search = config.search.model_copy(update={"rollout": "none", "select": "puct"})
            config = config.model_copy(update={"search": search})
    if isinstance(student.engine, InProcessEngine):
        student.engine.worker = ThreadPoolExecutor(1, "forward")
    answerer = Answerer(student, config, verifier, value, stepwise)
    journal = None if args.keep_traces is None else KeptJournal(args.keep_traces)
    service = Service(answerer, names, config.serve, fingerprint(student.model), journal)
    app = make_app(service, keys, is_loopback(args.host))
    port = bound.getsockname()[1]
    shown = f"[{args.host}]" if ":" in args.host else args.host

    def ready() -> None:
        progress.stop()
        print(f"student {student.title} answers at http://{shown}:{port}/v1 (Ctrl-C ends)", flush=True)

    try:
        interrupted = serve(app, bound, student.engine, config.serve, ready, partial(setattr, service, "ending", True))
    finally:
        if journal is not None:
            journal.close()
    return EXIT_STOPPED if interrupted else 0


def default_verifier(args: argparse.Namespace) -> str:
    """The calculator, and the network that is named."""
    networks = [name for name in ("prm", "value") if getattr(args, name) is not None]
    return "+".join(["calculator", *networks[:1]])


class Recorded(Attempt):
    """An attempt that a client waits for: its chains make a tree, and the best so far is at hand when the time is over."""

    def __init__(self, sampler: MethodContext, given: Stepwise) -> None:
        super().__init__(sampler, given.problem, given.seed, given.budget)
        self.given = given
        self.found: list[Chain] = []  # the best one alone

    async def draw(
        self,
        steps: Sequence[Step] = (),
        *,
        greedy: bool = False,
        line: bool = False,
        kept: int = 0,
        judged: bool = True,
        counts: bool = False,
        taken: Drawn | None = None,
    ) -> Chain:
        """See `Attempt.draw`."""
        chain = await super().draw(
            steps, greedy=greedy, line=line, kept=kept, judged=judged, counts=counts, taken=taken
        )
        node = self.record(chain)
        if self.usable(chain):
            best = self.best([*self.found, chain])
            if best is chain:
                self.found = [chain]
                self.given.response, self.given.node = chain.text, node
        return chain

    def record(self, chain: Chain) -> int:
        """Add a chain to the tree: a visit of its total, terminal where it ended or its last step was rejected. Its node."""
        tree, node = self.given.tree, ROOT
        for at, step in enumerate(chain.steps):
            node = tree.attach(node, step)
            if chain.judged is not None and at not in chain.judged.unchecked:
                tree.prm[node] = chain.judged.steps[at]
        rejected = chain.judged is not None and self.rejects(chain, last=True)
        total = 0.0 if rejected else chain.total
        if node != ROOT and (chain.whole or rejected):
            verdict = REJECTED if rejected else "answer" if self.states(chain) else "ended"
            tree.samples[node] += chain.whole
            tree.finish(node, verdict, RewardParts(total=total))
        tree.backup(node, total)
        tree.simulated(node)
        return node


async def by_eval(name: str, given: Stepwise) -> tuple[str | None, str]:
    """A method of `eval` as the server asks for it."""
    student: Any = given.student
    attempt = Recorded(MethodContext(student, given.verifier, given.config), given)
    return await METHODS[name](attempt)
