"""Metrics of several workers, aggregated as those of one server."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

Series = tuple[str, tuple[tuple[str, str], ...]]

_EARLIEST = ("process_start_time_seconds", "process_max_fds")  # aggregated by minimum, like `_created`

Snapshot = list[Any]
"""``[name, documentation, type, [[sample, labels, value], ...]]`` of each metric, serialisable as JSON."""


def snapshot(registry: CollectorRegistry) -> Snapshot:
    """Return all values of a registry."""
    return [
        [
            metric.name,
            metric.documentation,
            metric.type,
            [[one.name, one.labels, one.value] for one in metric.samples],
        ]
        for metric in registry.collect()
    ]


def sum_up(snapshots: Sequence[Snapshot]) -> bytes:
    """Add up the values of several workers, in Prometheus's text format."""
    registry = CollectorRegistry()
    registry.register(_Sums(snapshots))
    return generate_latest(registry)


class _Sums(Collector):
    def __init__(self, snapshots: Sequence[Snapshot]) -> None:
        self._snapshots = snapshots

    def collect(self) -> Iterator[Metric]:
        """Yield each metric once, with the samples of all workers."""
        by_name: dict[str, list[Any]] = {}
        for name, about, kind, samples in (metric for each in self._snapshots for metric in each):
            by_name.setdefault(name, [about, kind, []])[2].extend(samples)
        for name, (about, kind, samples) in by_name.items():
            metric = Metric(name, about, kind)
            for (sample, labels), value in _added(samples).items():
                metric.add_sample(sample, dict(labels), value)
            yield metric


def _added(samples: Iterable[tuple[str, dict[str, str], float]]) -> dict[Series, float]:
    found: dict[Series, float] = {}
    for name, labels, value in samples:
        key = name, tuple(labels.items())
        if key not in found:
            found[key] = value
        elif name in _EARLIEST or name.endswith("_created"):
            found[key] = min(found[key], value)
        else:
            found[key] += value
    return found
