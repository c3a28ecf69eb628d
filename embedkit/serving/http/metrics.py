"""Monitoring of a server: Prometheus metrics, summed over its workers, and log records as lines."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import orjson
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from embedkit.serving.http.batcher import BatchReport

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
_TOKENS = tuple(16 * 2**power for power in range(12))


class Metrics:
    """Metrics of one server, in a registry of its own; ``in_flight`` counts the requests not answered yet."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self._requests = Counter("embedkit_requests", "Requests answered", ["route", "status"], registry=registry)
        self._seconds = Histogram(
            "embedkit_request_seconds",
            "Time from a request's first byte to its answer's last",
            ["route"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._of_route: dict[tuple[str, int], tuple[Counter, Histogram]] = {}  # faster than looking up labels
        self.in_flight = 0
        Gauge("embedkit_requests_in_flight", "Requests not answered yet", registry=registry).set_function(
            lambda: float(self.in_flight)
        )
        self._tokens = Counter(
            "embedkit_tokens", "Tokens run, special ones included", ["model"], registry=registry
        )
        self._truncated = Counter(
            "embedkit_truncated_texts", "Texts cut to the model's length", ["model"], registry=registry
        )
        self._batch_texts = self._histogram("embedkit_batch_texts", "Texts of a batch", _COUNTS)
        self._batch_tokens = self._histogram("embedkit_batch_tokens", "Tokens of a batch", _TOKENS)
        self._batch_requests = self._histogram("embedkit_batch_requests", "Requests in a batch", _COUNTS)
        self._batch_seconds = self._histogram("embedkit_batch_seconds", "Time of a batch in the network", _SECONDS)
        self._queues = _Queues()
        registry.register(self._queues)
        self._reloads = Counter(
            "embedkit_reloads", "Reloads of models and collection", ["result"], registry=registry
        )

    def _histogram(self, name: str, about: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, about, ["model"], buckets=buckets, registry=self._registry)

    def watch_admission(self, reserved_s: Callable[[], float]) -> None:
        """Report the admitted work whenever the metrics are read."""
        Gauge(
            "embedkit_admitted_work_seconds", "Work that was let in and is not done", registry=self._registry
        ).set_function(reserved_s)

    def watch_queues(self, queues: Mapping[str, Callable[[], int]]) -> None:
        """Report the tokens waiting for each model whenever the metrics are read; replaces earlier queues."""
        self._queues.waiting = queues

    def count_reload(self, result: str) -> None:
        """Count a reload with the result ``done`` or ``failed``."""
        self._reloads.labels(result).inc()

    def count_request(self, route: str, status: int, seconds: float) -> None:
        """Count an answered request."""
        children = self._of_route.get((route, status))
        if children is None:
            children = self._requests.labels(route, str(status)), self._seconds.labels(route)
            self._of_route[route, status] = children
        children[0].inc()
        children[1].observe(seconds)

    def count_truncated(self, model: str, texts: int) -> None:
        """Count texts that were truncated to the maximum length of a model."""
        if texts:
            self._truncated.labels(model).inc(texts)

    def batch_reporter(self, model: str) -> Callable[[BatchReport], None]:
        """Return a function to call with every batch of a model."""
        texts, tokens = self._batch_texts.labels(model), self._batch_tokens.labels(model)
        requests, seconds = self._batch_requests.labels(model), self._batch_seconds.labels(model)
        total = self._tokens.labels(model)

        def report(batch: BatchReport) -> None:
            texts.observe(batch.texts)
            tokens.observe(batch.tokens)
            requests.observe(batch.requests)
            seconds.observe(batch.seconds)
            total.inc(batch.tokens)

        return report

    def snapshot(self) -> Snapshot:
        """Return all values, for another worker."""
        return [
            [
                metric.name,
                metric.documentation,
                metric.type,
                [[sample.name, sample.labels, sample.value] for sample in metric.samples],
            ]
            for metric in self._registry.collect()
        ]

    def text(self, others: Sequence[Snapshot] = ()) -> bytes:
        """Return all values in Prometheus's text format, including those of other workers."""
        if not others:
            return generate_latest(self._registry)
        registry = CollectorRegistry()
        registry.register(_Sums([self.snapshot(), *others]))
        return generate_latest(registry)


class _Queues(Collector):
    """Tokens that wait for each model; a Gauge's functions, in a cycle, would keep replaced models in memory."""

    def __init__(self) -> None:
        self.waiting: Mapping[str, Callable[[], int]] = {}

    def collect(self) -> Iterator[Metric]:
        metric = GaugeMetricFamily("embedkit_queue_tokens", "Tokens that wait for a batch", labels=["model"])
        for model, waiting in self.waiting.items():
            metric.add_metric([model], waiting())
        yield metric


_EARLIEST = ("process_start_time_seconds", "process_max_fds")  # aggregated by minimum, like `_created`

Snapshot = list[Any]
"""``[name, documentation, type, [[sample, labels, value], ...]]`` of each metric, serialisable as JSON."""


class _Sums(Collector):
    def __init__(self, snapshots: Sequence[Snapshot]) -> None:
        self._snapshots = snapshots

    def collect(self) -> Iterator[Metric]:
        """Yield each metric once, with the samples of all workers."""
        by_name: dict[str, list[Any]] = {}
        for name, about, kind, samples in (metric for snapshot in self._snapshots for metric in snapshot):
            by_name.setdefault(name, [about, kind, []])[2].extend(samples)
        for name, (about, kind, samples) in by_name.items():
            metric = Metric(name, about, kind)
            for (sample, labels), value in _added(samples).items():
                metric.add_sample(sample, dict(labels), value)
            yield metric


def _added(
    samples: Iterable[tuple[str, dict[str, str], float]],
) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    totals: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    for name, labels, value in samples:
        key = name, tuple(labels.items())
        if key not in totals:
            totals[key] = value
        elif name in _EARLIEST or name.endswith("_created"):
            totals[key] = min(totals[key], value)
        else:
            totals[key] += value
    return totals


_PLAIN = ("url", "method", "route", "status")  # fields whose values need no names
_CONTROLS = {code: f"\\u{code:04x}" for code in (*range(0x20), *range(0x7F, 0xA0))}


class JsonFormatter(logging.Formatter):
    """Formats ``{"time", "level", "message"}`` and the record's ``fields`` on one line."""

    _second, _moment = -1, ""  # formatted last

    def format(self, record: logging.LogRecord) -> str:
        """Format one record as one line."""
        second = int(record.created)
        if second != self._second:
            self._moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
            self._second = second
        line: dict[str, Any] = {
            "time": f"{self._moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str).decode()


class TerminalFormatter(logging.Formatter):
    """Formats the local time, the level unless it is INFO, the message, and the fields as words on one line."""

    def format(self, record: logging.LogRecord) -> str:
        """Format one record as one line, and below it a traceback."""
        level = "" if record.levelno == logging.INFO else f"{record.levelname.lower()}: "
        fields: dict[str, Any] = dict(getattr(record, "fields", {}))
        words = [str(fields.pop(name)) for name in _PLAIN if name in fields]
        if "ms" in fields:
            words.append(f"{fields.pop('ms')} ms")
        words += [f"{name}={_word(value)}" for name, value in fields.items() if name != "request_id"]
        moment = time.strftime("%H:%M:%S", time.localtime(record.created))
        line = " ".join([moment, level + record.getMessage(), *words]).translate(_CONTROLS)
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _word(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def log_in_lines(logger: logging.Logger) -> None:
    """Make the handlers of a logger write JSON from now on, or words if they write to a terminal."""
    # Skip unused information about the caller, see "Optimization" in Python's logging HOWTO.
    logging._srcfile = None  # noqa: SLF001 - documented there
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    for handler in logger.handlers:
        stream = getattr(handler, "stream", None)
        on_terminal = stream is not None and stream.isatty()
        handler.setFormatter(TerminalFormatter() if on_terminal else JsonFormatter())
