"""Prometheus metrics of the server."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import prometheus_client
from prometheus_client import CollectorRegistry, Gauge, Histogram, generate_latest

from posttrain.dataserver.data.samples import Target
from posttrain.dataserver.schemas import Component, GradeResult

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """The metrics of one server; each server has its own registry."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = self._counter("requests", "Requests", ["endpoint", "status"])
        self._request_seconds = self._histogram("request_seconds", "Time to answer a request", ["endpoint"], _SECONDS)
        self._completions = self._counter("completions", "Graded completions", ["dataset", "stage", "status"])
        self._rewards = self._histogram(
            "reward", "Rewards", ["dataset", "stage"], tuple(tenth / 10 for tenth in range(11))
        )
        self._scores = self._counter("grader_scores", "Answers of graders", ["grader", "status"])
        self._grader_seconds = self._histogram("grader_seconds", "Time in a grader", ["grader"], _SECONDS)

    def request(self, endpoint: str, status: int, seconds: float) -> None:
        """Count an answered request."""
        self._requests.labels(endpoint, str(status)).inc()
        self._request_seconds.labels(endpoint).observe(seconds)

    def graded(self, stage: str, targets: Sequence[Target | str], results: Sequence[GradeResult]) -> None:
        """Count graded completions; a target is the row answered, or the reason why that row is unknown."""
        datasets = [target.dataset if isinstance(target, Target) else "unknown" for target in targets]
        statuses = Counter((dataset, result.status) for dataset, result in zip(datasets, results, strict=True))
        for (dataset, status), count in statuses.items():
            self._completions.labels(dataset, stage, status).inc(count)
        rewards = {dataset: self._rewards.labels(dataset, stage) for dataset in set(datasets)}
        for dataset, result in zip(datasets, results, strict=True):
            if result.reward is not None:
                rewards[dataset].observe(result.reward)
        self._graders([result.components for result in results])

    def _graders(self, components: Sequence[Mapping[str, Component]]) -> None:
        answers = Counter((name, each.status) for scored in components for name, each in scored.items())
        for (name, status), count in answers.items():
            self._scores.labels(name, status).inc(count)
        seconds = {name: self._grader_seconds.labels(name) for name, _ in answers}
        for scored in components:
            for name, each in scored.items():
                seconds[name].observe(each.ms / 1000)

    def watch(self, name: str, description: str, read: Callable[[], float]) -> None:
        """Export a gauge whose value comes from `read`."""
        Gauge(f"dataserver_{name}", description, registry=self._registry).set_function(read)

    def sandboxes(self, sandboxes: Mapping[str, str]) -> None:
        """Export which sandbox each grader runs model-written programs in."""
        told = Gauge(
            "dataserver_sandbox", "What a grader's programs run in", ["grader", "sandbox"], registry=self._registry
        )
        for grader, sandbox in sandboxes.items():
            told.labels(grader, sandbox).set(1)

    def exposition(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    def _counter(self, name: str, description: str, labels: Sequence[str]) -> prometheus_client.Counter:
        return prometheus_client.Counter(f"dataserver_{name}", description, labels, registry=self._registry)

    def _histogram(self, name: str, description: str, labels: Sequence[str], buckets: Sequence[float]) -> Histogram:
        return Histogram(f"dataserver_{name}", description, labels, registry=self._registry, buckets=buckets)
