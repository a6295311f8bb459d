"""Prometheus series of the operations on the store, named and labelled as those of vLLM's in-tree store connector."""

import logging
from typing import Any

from prometheus_client import Counter, Histogram
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics

from mooncake_sidecar.stats import operations

logger = logging.getLogger("vllm.mooncake_sidecar.prom")

PREFIX = "vllm:mooncake_store_operation"
BUCKETS_S = (0.001, 0.005, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0)
_COUNTERS = {
    "total": "Operations on the KV store.",
    "keys_total": "Keys that operations on the KV store named.",
    "bytes_total": "Bytes that operations on the KV store moved.",
    "failed_keys_total": "Keys for which an operation on the KV store failed.",
}


class SidecarPromMetrics(KVConnectorPromMetrics):
    """Made once in each front-end process, for all of its engines."""

    def __init__(
        self,
        vllm_config: Any,
        metric_types: dict[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._metric_types = metric_types
        self._labels = [*labelnames, "operation", "status"]
        self._children: dict[tuple[int, str, str], tuple[Any, ...]] = {}
        self._series: tuple[Any, ...] | None = None

    def observe(self, transfer_stats_data: dict[str, Any] | None, engine_idx: int = 0) -> None:
        """Take in one interval's data."""
        if not transfer_stats_data:
            return
        if self._series is None:
            self._series = self._register()
        if not self._series:
            return
        for operation, found in operations(transfer_stats_data):
            for seconds, keys, moved, status, failed in found:
                time, *counters = self._labelled(engine_idx, operation, status)
                time.observe(seconds)
                for counter, value in zip(counters, (1, keys, moved, failed), strict=True):
                    counter.inc(value)

    def _register(self) -> tuple[Any, ...]:
        """The series; empty if the in-tree connector beside this one, under MultiConnector, has them.

        That one takes it ill to find them there, and either may be made first:
        therefore they are registered with the first data, when both are made.
        """
        try:
            return (
                self._metric_types[Histogram](
                    name=f"{PREFIX}_time_seconds",
                    documentation="Time of operations on the KV store, in seconds.",
                    buckets=list(BUCKETS_S),
                    labelnames=self._labels,
                ),
                *(
                    self._metric_types[Counter](name=f"{PREFIX}_{name}", documentation=text, labelnames=self._labels)
                    for name, text in _COUNTERS.items()
                ),
            )
        except ValueError as error:
            logger.warning("the connector's operations are in the log only: %s", error)
            return ()

    def _labelled(self, engine: int, operation: str, status: str) -> tuple[Any, ...]:
        key = (engine, operation, status)
        if key not in self._children:
            values = [*self.per_engine_labelvalues[engine], operation, status]
            self._children[key] = tuple(series.labels(*values) for series in self._series)
        return self._children[key]
