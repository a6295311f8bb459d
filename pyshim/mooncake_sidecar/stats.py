"""What vLLM's log line and metrics get from the connector: sums over an interval."""

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorStats


class SidecarStats(KVConnectorStats):
    """Counters by name; both roles' and all ranks' are added up."""

    def __init__(self, data: dict[str, Any] | None = None) -> None:
        super().__init__(data=dict(data or {}))

    def add(self, name: str, value: float = 1) -> None:
        """Add to a counter."""
        self.data[name] = self.data.get(name, 0) + value

    def reset(self) -> None:
        """Start a new interval."""
        self.data = {}

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        """Add another object's counters; returns self."""
        for name, value in other.data.items():
            self.add(name, value)
        return self

    def reduce(self) -> dict[str, int | float]:
        """The counters, rounded for the log."""
        return {name: round(value, 4) for name, value in sorted(self.data.items())}

    def is_empty(self) -> bool:
        """Whether nothing happened."""
        return not self.data

    def take(self) -> "SidecarStats | None":
        """The interval's counters, None if there are none; starts a new interval."""
        if not self.data:
            return None
        taken, self.data = SidecarStats(self.data), {}
        return taken
