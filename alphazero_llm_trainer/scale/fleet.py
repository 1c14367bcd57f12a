"""Ray actors in lanes: started, connected, watched, swapped to new weights, and started again when they die.

A lane is one engine actor and its search actors. Nothing here decides what is searched; `ray_pool` does.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..config.load import Config
from ..errors import AlphaZeroError, ConfigError, EngineError
from ..types import Cost
from .cluster import Cluster
from .pool import MakeCollector, PoolStats, peak_bytes

POLL_SECONDS = 0.25
LEAVE_SECONDS = 10.0  # how long engines may take to unload their adapters
STATS_SECONDS = 5.0  # how long the processes may take to answer
CREATION = "error raised in its creation task"  # how Ray says that an actor's constructor failed
MOST_STARTS = 6  # of one actor in a row that died before it was ready

Lost = Callable[[list[str], str], None]  # told the questions that something had in flight when it died, and what


@dataclass(slots=True, eq=False)
class Searcher:
    """A search actor: `client` is its name at the engine once it is connected."""

    name: str
    lane: Lane
    handle: Any = None
    client: str | None = None
    starts: int = 0
    flying: dict[Any, str] = field(default_factory=dict)  # reference of the call -> question
    deadlines: dict[str, float] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    dead: str | None = None


@dataclass(slots=True, eq=False)
class Lane:
    """An engine actor and the search actors that use it. `card` is there once the engine is ready."""

    name: str
    searchers: list[Searcher] = field(default_factory=list)
    handle: Any = None
    card: dict[str, Any] | None = None
    version: int = 0
    swapping: bool = False
    starts: int = 0
    lost: list[str] = field(default_factory=list)
    dead: str | None = None
    alone: bool = False  # it runs a group under suspicion

    @property
    def flying(self) -> int:
        return sum(len(one.flying) for one in self.searchers)


class Fleet:
    """All lanes of a run. See `RayPool` for the arguments and errors."""

    def __init__(
        self,
        config: Config,
        student_path: Path | None,
        workers: int,
        address: str | None,
        make_collector: MakeCollector,
        say: Callable[[str], None],
    ) -> None:
        self.config, self.student_path, self.make_collector, self.say = config, student_path, make_collector, say
        # Search actors keep their own books, each of its share of the teachers' budget; one that is started again begins anew.
        teachers = config.teachers.model_copy(update={"budget": config.teachers.budget.share(workers)})
        self.search_config = config.model_copy(update={"teachers": teachers})
        self.cluster = Cluster(address, workers + (config.sample.engines or 1))
        # Ray is there: `Cluster` has imported it.
        from . import actors

        self.actors = actors
        engines = min(config.sample.engines or max(self.cluster.gpus, 1), workers)
        self.gpus = min(self.cluster.gpus / engines, 1.0)
        self.lanes = [Lane(f"engine {i}") for i in range(engines)]
        for i in range(workers):
            lane = self.lanes[i % engines]
            lane.searchers.append(Searcher(f"search actor {i}", lane))
        self.version = 0
        self.weights: Any = None  # reference to what was pushed last
        self.restarts = 0
        self._seen: dict[str, PoolStats] = {}
        # Reference -> what to do when it ends: an actor's start, its connection, its swap, its life.
        self._pending: dict[Any, Callable[[Any], None]] = {}
        self.policy: dict[str, Any] = {}
        self.head = False  # the value is a head of the policy
        with ExitStack() as undo:
            undo.callback(self.close)
            self._start_all()
            undo.pop_all()

    # -- starting ----------------------------------------------------------------------------------------------------

    def _start_all(self) -> None:
        for lane in self.lanes:
            self._start_engine(lane)
            for searcher in lane.searchers:
                self._start_searcher(searcher)
        end = time.monotonic() + self.config.sample.start_seconds
        while any(lane.card is None for lane in self.lanes):
            self.attend()
            if time.monotonic() > end:
                raise ConfigError(
                    f"no engine actor was ready after {self.config.sample.start_seconds:g} s (sample.start_seconds): the"
                    f" cluster needs a core for each of {len(self.lanes)} engines and {self._workers} search actors"
                )
            self.mend(lambda keys, reason: None)

    @property
    def _workers(self) -> int:
        return sum(len(lane.searchers) for lane in self.lanes)

    def _start_engine(self, lane: Lane) -> None:
        lane.starts += 1
        if lane.starts > MOST_STARTS:
            raise EngineError(f"{lane.name} died {MOST_STARTS} times before it was ready ({lane.dead}): see Ray's logs")
        lane.card, lane.dead, lane.swapping, lane.version = None, None, False, self.version
        lane.handle = handle = self.actors.start_engine(self.config, self.student_path, self.gpus)

        def ready(card: dict[str, Any] | AlphaZeroError) -> None:
            if isinstance(card, AlphaZeroError):
                raise card
            lane.card, lane.starts = card, 0
            self.policy, self.head = self.policy or card["policy"], card["head"]
            differ = [name for name, known in self.policy.items() if card["policy"][name] != known]
            if differ:
                raise ConfigError(
                    f"{lane.name} has another student or value than the others (different {', '.join(differ)}): give"
                    " every node the same files and the same settings"
                )
            for searcher in lane.searchers:
                self._connect(searcher)

        self._watch(lane, handle.begin.remote(self.weights, self.version), ready)
        self._watch(lane, handle.alive.remote(), lambda _: None)

    def _start_searcher(self, searcher: Searcher) -> None:
        searcher.starts += 1
        if searcher.starts > MOST_STARTS:
            raise EngineError(f"{searcher.name} died {MOST_STARTS} times in a row ({searcher.dead}): see Ray's logs")
        searcher.client, searcher.dead = None, None
        searcher.handle = self.actors.start_search(self.search_config, self.make_collector)
        self._watch(searcher, searcher.handle.alive.remote(), lambda _: None)
        if searcher.lane.card is not None:
            self._connect(searcher)

    def _connect(self, searcher: Searcher) -> None:
        lane, engine = searcher.lane, searcher.lane.handle
        searcher.client = None

        def connected(client: str | AlphaZeroError) -> None:
            if isinstance(client, AlphaZeroError):
                raise client
            if lane.handle is engine:
                searcher.client, searcher.starts = client, 0

        self._watch(searcher, searcher.handle.connect.remote(engine, lane.card), connected)

    def _watch(self, owner: Lane | Searcher, reference: Any, then: Callable[[Any], None]) -> None:
        """Call `then` with what a call to the owner's actor gives; nothing once another actor has taken its place."""
        import ray
        from ray.exceptions import RayError, RayTaskError

        handle = owner.handle

        def end(ended: Any) -> None:
            try:
                value = ray.get(ended)
            except RayTaskError:
                raise  # a bug over there, not a death
            except RayError as error:
                if CREATION in str(error):
                    reason = str(error).strip().splitlines()[-1]
                    raise EngineError(
                        f"an actor can't start ({reason[:200]}): is the same code on every node?"
                    ) from error
                if owner.handle is handle:
                    owner.dead = short(error)
            else:
                if owner.handle is handle:
                    then(value)

        self._pending[reference] = end

    def swap(self, lane: Lane) -> None:
        """Give an idle lane the weights that were pushed last."""
        lane.swapping, version = True, self.version

        def swapped(_: Any) -> None:
            lane.swapping, lane.version = False, version

        self._watch(lane, lane.handle.set_policy.remote(self.weights, version), swapped)

    # -- watching ----------------------------------------------------------------------------------------------------

    def attend(self) -> list[tuple[Searcher, Any]]:
        """Wait a moment for whatever ends; returns the (search actor, reference) of searches that did."""
        import ray

        flying = {ref: searcher for lane in self.lanes for searcher in lane.searchers for ref in searcher.flying}
        references = [*flying, *self._pending]
        ended, _ = ray.wait(references, num_returns=1, timeout=POLL_SECONDS)
        if ended:
            ended, _ = ray.wait(references, num_returns=len(references), timeout=0)
        for reference in ended:
            if reference not in flying:
                self._pending.pop(reference)(reference)
        return [(flying[reference], reference) for reference in ended if reference in flying]

    def mend(self, lost: Lost) -> None:
        """Start dead actors again, once all calls that they had in flight have come back."""
        import ray

        now = time.monotonic()
        for lane in self.lanes:
            for searcher in lane.searchers:
                if searcher.dead is None and any(now > end for end in searcher.deadlines.values()):
                    searcher.dead = "it hangs: a question is far over sample.timeout_seconds"
                    ray.kill(searcher.handle)
                if searcher.dead is not None and not searcher.flying:
                    self._lost(searcher.name, searcher.dead, searcher.lost, lost)
                    searcher.lost = []
                    if lane.dead is None and searcher.client is not None:
                        lane.handle.drop.remote(searcher.client)
                    ray.kill(searcher.handle)
                    self._start_searcher(searcher)
            if lane.dead is not None and not lane.flying:
                self._lost(lane.name, lane.dead, lane.lost, lost)
                lane.lost = []
                ray.kill(lane.handle)
                self._start_engine(lane)

    def _lost(self, name: str, reason: str, keys: list[str], lost: Lost) -> None:
        self.restarts += 1
        self.say(f"{name} is started again ({reason}); {len(keys)} questions were in flight")
        if keys:
            lost(keys, f"{name.rstrip(' 0123456789')} died")

    def stats(self) -> PoolStats:
        """Sums over all processes, as far as they answer within a moment; a dead one keeps what it last said."""
        import ray
        from ray.exceptions import RayError

        asked = {}
        for lane in self.lanes:
            if lane.card is not None and lane.dead is None:
                asked[lane.handle.stats.remote()] = (lane.name, lane.handle)
            for one in lane.searchers:
                if one.client is not None and one.dead is None:
                    asked[one.handle.stats.remote()] = (one.name, one.handle)
        ended, _ = ray.wait(list(asked), num_returns=len(asked), timeout=STATS_SECONDS) if asked else ([], [])
        for reference in ended:
            name, handle = asked[reference]
            try:
                # One entry a life: a restarted actor counts from 0 again.
                self._seen[f"{name}/{handle._actor_id.hex()}"] = ray.get(reference)
            except RayError:
                continue
        total = PoolStats(peak_bytes=peak_bytes(), restarts=self.restarts)
        peaks: dict[str, int] = {}
        for life, part in self._seen.items():
            name = life.partition("/")[0]
            peaks[name] = max(peaks.get(name, 0), part.peak_bytes)
            total.computed_tokens += part.computed_tokens
            for teacher, cost in part.teachers.items():
                total.teachers.setdefault(teacher, Cost()).add(cost)
        total.peak_bytes += sum(peaks.values())
        return total

    def close(self) -> None:
        """End all actors. Engines on a vLLM server unload their adapters first: a killed process can't."""
        import ray
        from ray.exceptions import RayError

        if self.config.engine.backend == "vllm-server" and ray.is_initialized():
            leaving = [lane.handle.leave.remote() for lane in getattr(self, "lanes", []) if lane.handle is not None]
            if leaving:
                ray.wait(leaving, num_returns=len(leaving), timeout=LEAVE_SECONDS)
        for lane in getattr(self, "lanes", []):
            for handle in [lane.handle, *(one.handle for one in lane.searchers)]:
                if handle is not None and ray.is_initialized():
                    try:
                        ray.kill(handle)
                    except RayError:
                        continue
        self.cluster.close()


def short(error: BaseException) -> str:
    """A Ray error's first words: the whole text is a page."""
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0][:120]}"
