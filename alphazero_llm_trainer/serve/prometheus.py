"""What Prometheus reads at /metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

if TYPE_CHECKING:
    from ..types import Cost
    from .fair import FairQueue
    from .lag import Lag
    from .traces import TraceStore

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
NOBODY = "none"  # the model of a request that named none that there is


class Metrics:
    """Counters of one server, in a registry of its own."""

    def __init__(self, queue: FairQueue, traces: TraceStore, lag: Lag, engine: Any) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter("alphazero_requests", "Answered requests.", ["model", "status"], registry=registry)
        self.seconds = Histogram(
            "alphazero_request_seconds", "From arrival to the last byte.", ["model"], buckets=SECONDS, registry=registry
        )
        self.queued = Histogram("alphazero_queue_seconds", "Waiting for a turn.", buckets=SECONDS, registry=registry)
        self.tokens = Counter("alphazero_tokens", "Tokens by kind (types.Cost).", ["kind"], registry=registry)
        self.misses = Counter(
            "alphazero_deadline_misses", "Choices that the deadline cut short.", ["model"], registry=registry
        )
        self.gone = Counter("alphazero_clients_gone", "Requests whose client went away.", registry=registry)
        self.searches = Gauge("alphazero_live_searches", "Searches under way.", registry=registry)
        self._read("alphazero_queue_depth", "Requests that wait for their turn.", lambda: queue.waiting)
        self._read("alphazero_live_requests", "Requests under way.", lambda: queue.live)
        self._read("alphazero_traces", "Trees kept in memory.", lambda: len(traces))
        self._read("alphazero_trace_bytes", "Their size, about.", lambda: traces.bytes)
        self._read("alphazero_loop_lag_seconds", "The event loop's largest recent delay.", lambda: lag.seconds)
        stats, tree, rows = (getattr(engine, name, None) for name in ("stats", "tree", "queue"))
        if stats is not None and tree is not None and rows is not None:  # an engine of this process
            self._read("alphazero_engine_forwards", "Forwards so far.", lambda: stats.forwards)
            self._read(
                "alphazero_engine_rows", "Rows of all forwards; by forwards: the mean batch.", lambda: stats.rows
            )
            self._read("alphazero_engine_forward_seconds", "Inside the forward.", lambda: stats.forward_seconds)
            self._read("alphazero_engine_live_rows", "Rows of the batch.", lambda: len(rows.live))
            self._read("alphazero_engine_waiting_rows", "Rows that wait for one.", lambda: len(rows.waiting))
            self._read("alphazero_cache_tokens", "Tokens whose keys and values are kept.", tree.used)
            self._read("alphazero_cache_capacity_tokens", "As many fit.", lambda: tree.capacity)

    def _read(self, name: str, about: str, value: Any) -> None:
        Gauge(name, about, registry=self.registry).set_function(value)

    def spent(self, cost: Cost) -> None:
        """Count a choice's tokens."""
        for kind in ("prompt", "cached", "sampled", "scored"):
            self.tokens.labels(kind).inc(getattr(cost, f"{kind}_tokens"))

    def text(self) -> bytes:
        """The exposition format."""
        return generate_latest(self.registry)
