"""What a server counts, as text in the format of Prometheus.

Metrics whose names begin with `:tensorflow:` have the names, labels and units of TensorFlow Serving. Others begin with
`:tfdpg:`.
"""

import bisect
import contextlib
import itertools
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from tfdpg.serve.errors import RequestError

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
LIMITS = tuple(10 * 1.8**power for power in range(33))
"""The upper ends of the buckets of latencies, in microseconds."""
OTHER_MODEL = "(other)"
"""The label of requests for a model that is not served, so that clients cannot add labels."""
REQUESTS = ":tensorflow:serving:request_count"
LATENCY = ":tensorflow:serving:request_latency"
LOADS = ":tensorflow:cc:saved_model:load_attempt_count"
LOAD_LATENCY = ":tensorflow:cc:saved_model:load_latency"
ANSWERS = ":tfdpg:serving:answer_count"
NOT_FINITE = ":tfdpg:serving:nonfinite_answer_count"
HELP = {
    REQUESTS: "Predict requests by their gRPC status.",
    LATENCY: "Microseconds from the arrival of a Predict request to its response, of requests with the status OK.",
    LOADS: "Attempts to load a version, by their outcome: success or fail.",
    LOAD_LATENCY: "Microseconds that loading a version took, summed over attempts.",
    ANSWERS: "Predict requests with the status OK, by the version and the signature that answered.",
    NOT_FINITE: "Those answers that contain NaN or infinity.",
}
"""The metrics and what they count. `LATENCY` is a histogram, the others are counters."""
Labels = tuple[tuple[str, str], ...]


class Metrics:
    """Counts requests and loaded versions. Each method can be called from any thread.

    Args:
        model_name: the name of the served model.
    """

    def __init__(self, model_name: str):
        self._model_name = model_name
        self._lock = threading.Lock()
        self._counts: dict[str, dict[Labels, int]] = {name: {} for name in HELP if name != LATENCY}
        self._buckets: dict[Labels, list[int]] = {}
        self._sums: dict[Labels, float] = {}

    @contextlib.contextmanager
    def request(self, model_name: str, api: str, entrypoint: str, began: float) -> Iterator[None]:
        """Count a Predict request, whose status is OK unless the block raises an exception.

        Args:
            model_name: the name in the request.
            api: the name of the method: "predict" for REST, "Predict" for gRPC.
            entrypoint: "REST" or "GRPC".
            began: when the request arrived, by `time.perf_counter`.
        """
        status = "CANCELLED"
        try:
            yield
            status = "OK"
        except RequestError as error:
            status = error.code
            raise
        except Exception:
            status = "INTERNAL"
            raise
        finally:
            name = self._model_name if model_name == self._model_name else OTHER_MODEL
            self._add(REQUESTS, model_name=name, status=status)
            if status == "OK":
                self._add_latency(1e6 * (time.perf_counter() - began), name, api, entrypoint)

    def refused(self, status: str) -> None:
        """Count a Predict request that is refused with this status before it is read."""
        self._add(REQUESTS, model_name=self._model_name, status=status)

    def answered(self, version: int, signature: str, outputs: Mapping[str, np.ndarray]) -> None:
        """Count the outputs of a version."""
        labels = {"model_name": self._model_name, "version": version, "signature": signature}
        self._add(ANSWERS, **labels)
        if any(values.dtype.kind == "f" and not np.isfinite(values).all() for values in outputs.values()):
            self._add(NOT_FINITE, **labels)

    def loaded(self, path: str, is_success: bool, seconds: float) -> None:
        """Count an attempt to load a version."""
        self._add(LOADS, model_path=path, status="success" if is_success else "fail")
        self._add(LOAD_LATENCY, round(1e6 * seconds), model_path=path)

    def _add(self, metric: str, amount: int = 1, **labels: Any) -> None:
        key = tuple((name, str(value)) for name, value in labels.items())
        with self._lock:
            counts = self._counts[metric]
            counts[key] = counts.get(key, 0) + amount

    def _add_latency(self, microseconds: float, model_name: str, api: str, entrypoint: str) -> None:
        key = ("model_name", model_name), ("API", api), ("entrypoint", entrypoint)
        place = bisect.bisect_left(LIMITS, microseconds)
        with self._lock:
            self._buckets.setdefault(key, [0] * (len(LIMITS) + 1))[place] += 1
            self._sums[key] = self._sums.get(key, 0.0) + microseconds

    def text(self) -> str:
        """Return all metrics in Prometheus' text format, version 0.0.4."""
        with self._lock:
            counts = {name: dict(values) for name, values in self._counts.items()}
            buckets = {key: list(values) for key, values in self._buckets.items()}
            sums = dict(self._sums)
        lines = []
        for name, text in HELP.items():
            lines += [f"# HELP {name} {text}", f"# TYPE {name} {'histogram' if name == LATENCY else 'counter'}"]
            if name != LATENCY:
                lines += [_sample(name, key, value) for key, value in counts[name].items()]
                continue
            for key, values in buckets.items():
                totals = itertools.accumulate(values)
                for limit, total in zip([*(f"{limit:g}" for limit in LIMITS), "+Inf"], totals, strict=True):
                    lines.append(_sample(f"{name}_bucket", (*key, ("le", limit)), total))
                lines += [_sample(f"{name}_sum", key, sums[key]), _sample(f"{name}_count", key, sum(values))]
        return "\n".join([*lines, ""])


def _sample(name: str, labels: Iterable[tuple[str, str]], value: float) -> str:
    shown = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels)
    return f"{name}{{{shown}}} {value!r}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
