"""Prometheus metrics of a service. Each app has its own registry."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.25, 0.4, 0.6, 1.0, 2.5, 5.0, 10.0, 30.0)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class ServiceMetrics:
    """Counters, gauges and histograms of one service."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        labels = ("method", "route", "status")
        self.requests = Counter("eaglenet_requests", "Answered requests", labels, registry=registry)
        title = "Seconds until the end of the response"
        self.seconds = Histogram(
            "eaglenet_request_seconds", title, ("route",), buckets=SECONDS, registry=registry
        )
        title = "Queries answered in one call of the engine"
        self.batch_queries = Histogram(
            "eaglenet_batch_queries", title, buckets=(1, 2, 4, 8, 16, 32), registry=registry
        )
        self.active = Gauge(
            "eaglenet_active_requests", "Requests being answered", ("kind",), registry=registry
        )
        self.refused = Counter(
            "eaglenet_refused_requests",
            "Requests refused by a limit",
            ("reason",),
            registry=registry,
        )
        self.clips = Gauge("eaglenet_clips", "Clips in the store", registry=registry)

    def text(self) -> bytes:
        return bytes(generate_latest(self.registry))
