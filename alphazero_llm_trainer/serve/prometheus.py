"""What Prometheus reads at /metrics."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from ..types import Cost

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


class Metrics:
    """Counters of one server, in a registry of its own. `live` and `waiting` tell how many requests are."""

    def __init__(self, live: Callable[[], float], waiting: Callable[[], float]) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter("alphazero_requests", "Answered requests.", ["model", "status"], registry=registry)
        self.seconds = Histogram(
            "alphazero_request_seconds", "From arrival to the answer.", ["model"], buckets=SECONDS, registry=registry
        )
        self.tokens = Counter("alphazero_tokens", "Tokens by kind (types.Cost).", ["kind"], registry=registry)
        Gauge("alphazero_live_requests", "Requests under way.", registry=registry).set_function(live)
        Gauge("alphazero_waiting_requests", "Requests that wait.", registry=registry).set_function(waiting)

    def spent(self, cost: Cost) -> None:
        """Count a choice's tokens."""
        for kind in ("prompt", "cached", "sampled", "scored"):
            self.tokens.labels(kind).inc(getattr(cost, f"{kind}_tokens"))

    def text(self) -> bytes:
        """The exposition format."""
        return generate_latest(self.registry)
