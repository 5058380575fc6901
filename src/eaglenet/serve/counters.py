"""Prometheus metrics of a service. Each app has its own registry."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.25, 0.4, 0.6, 1.0, 2.5, 5.0, 10.0, 30.0)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class ServiceMetrics:
    """Counters, gauges and histograms of one service."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "eaglenet_requests",
            "Answered requests",
            ("method", "route", "status"),
            registry=self.registry,
        )
        self.seconds = Histogram(
            "eaglenet_request_seconds",
            "Seconds until the end of the response",
            ("route",),
            buckets=SECONDS,
            registry=self.registry,
        )
        self.batch_queries = Histogram(
            "eaglenet_batch_queries",
            "Queries answered in one call of the engine",
            buckets=(1, 2, 4, 8, 16, 32),
            registry=self.registry,
        )
        self.active = Gauge(
            "eaglenet_active_requests",
            "Requests being answered",
            ("kind",),
            registry=self.registry,
        )
        self.refused = Counter(
            "eaglenet_refused_requests",
            "Requests refused by a limit",
            ("reason",),
            registry=self.registry,
        )
        self.clips = Gauge("eaglenet_clips", "Clips in the store", registry=self.registry)

    def text(self) -> bytes:
        return bytes(generate_latest(self.registry))
