"""What the server counts, for Prometheus."""

from collections.abc import Callable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from toolkit.dataserver.samples import Target
from toolkit.dataserver.schemas import GradeResult

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """The counters of one server; each server has its own."""

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
        """Count graded completions, each with what it answers or the reason why that is unknown."""
        for target, result in zip(targets, results, strict=True):
            dataset = target.dataset if isinstance(target, Target) else "unknown"
            self._completions.labels(dataset, stage, result.status).inc()
            if result.reward is not None:
                self._rewards.labels(dataset, stage).observe(result.reward)
            for name, component in result.components.items():
                self._scores.labels(name, component.status).inc()
                self._grader_seconds.labels(name).observe(component.ms / 1000)

    def watch(self, name: str, description: str, read: Callable[[], float]) -> None:
        """Report a number that something else keeps."""
        Gauge(f"dataserver_{name}", description, registry=self._registry).set_function(read)

    def exposition(self) -> bytes:
        """Everything, in Prometheus' text format."""
        return generate_latest(self._registry)

    def _counter(self, name: str, description: str, labels: Sequence[str]) -> Counter:
        return Counter(f"dataserver_{name}", description, labels, registry=self._registry)

    def _histogram(self, name: str, description: str, labels: Sequence[str], buckets: Sequence[float]) -> Histogram:
        return Histogram(f"dataserver_{name}", description, labels, registry=self._registry, buckets=buckets)
