"""What vLLM's log line and metrics get from the connector: what happened in an interval.

Operations on the store carry the names that vLLM's in-tree store connector
gives them, so that dashboards made for it go on working (``prom``):
``lookup_exists``, ``save_exists``, ``save_put`` and ``load_get``. What else
is worth a look is counted under ``counters`` and appears in the log alone.
"""

from collections.abc import Iterator
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorStats

LOOKUP, SAVE_EXISTS, SAVE_PUT, LOAD_GET = "lookup_exists", "save_exists", "save_put", "load_get"
OK, PARTIAL, ERROR = "ok", "partial_failure", "error"
_COUNTERS = "counters"

Operation = tuple[float, int, int, str, int]
"""(seconds, keys, bytes, status, failed keys) of one operation."""


def operations(data: dict[str, Any]) -> Iterator[tuple[str, list[Operation]]]:
    """The operations by name, sorted, of a stats object's data."""
    for name in sorted(data):
        if name != _COUNTERS:
            yield name, data[name]


class SidecarStats(KVConnectorStats):
    """Operations and counters of an interval; both roles' and all ranks' come together here."""

    def __init__(self, data: dict[str, Any] | None = None) -> None:
        super().__init__(data=data if data is not None else {})

    def record(
        self, operation: str, seconds: float, keys: int, moved_bytes: int = 0, status: str = OK, failed: int = 0
    ) -> None:
        """Note one operation."""
        self.data.setdefault(operation, []).append((seconds, keys, moved_bytes, status, failed))

    def add(self, name: str, value: float = 1) -> None:
        """Add to a counter."""
        counters = self.data.setdefault(_COUNTERS, {})
        counters[name] = counters.get(name, 0) + value

    def reset(self) -> None:
        """Start a new interval."""
        self.data = {}

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        """Take in another object's interval; returns self."""
        for name, value in other.data.get(_COUNTERS, {}).items():
            self.add(name, value)
        for name, found in operations(other.data):
            self.data.setdefault(name, []).extend(found)
        return self

    def reduce(self) -> dict[str, int | float]:
        """The interval in numbers, for the log."""
        reduced: dict[str, int | float] = {}
        for name, found in operations(self.data):
            if not found:
                continue
            seconds, keys, moved, statuses, failed = zip(*found, strict=True)
            reduced[f"{name}_count"] = len(found)
            reduced[f"{name}_avg_ms"] = round(sum(seconds) / len(seconds) * 1e3, 3)
            reduced[f"{name}_p90_ms"] = round(nearest_rank(sorted(seconds), 90) * 1e3, 3)
            reduced[f"{name}_total_keys"] = sum(keys)
            reduced[f"{name}_total_bytes"] = sum(moved)
            reduced[f"{name}_failed_keys"] = sum(failed)
            reduced[f"{name}_error_count"] = statuses.count(ERROR)
        for name, value in sorted(self.data.get(_COUNTERS, {}).items()):
            reduced[name] = round(value, 4)
        return reduced

    def is_empty(self) -> bool:
        """Whether nothing happened."""
        return not self.data

    def take(self) -> "SidecarStats | None":
        """The interval until now, None if nothing happened; starts a new one."""
        if not self.data:
            return None
        taken, self.data = SidecarStats(self.data), {}
        return taken


def nearest_rank(ordered: list[float], percent: int) -> float:
    """The smallest of ``ordered`` that ``percent`` of them do not exceed. REQUIRES: there is one."""
    return ordered[max(0, -(-percent * len(ordered) // 100) - 1)]
