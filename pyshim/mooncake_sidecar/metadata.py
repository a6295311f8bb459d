"""What the two roles send each other through vLLM."""

from dataclasses import dataclass, field

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata, KVConnectorWorkerMetadata

from mooncake_sidecar.jobs import StepCommands


@dataclass
class SidecarMetadata(KVConnectorMetadata):
    """Scheduler to workers, once a step."""

    commands: StepCommands = field(default_factory=StepCommands)


@dataclass
class SidecarWorkerMetadata(KVConnectorWorkerMetadata):
    """Workers to scheduler; vLLM folds the ranks' objects with ``aggregate``."""

    stores: dict[int, int] = field(default_factory=dict)
    """Store job -> ranks that are through with it."""
    failed: set[str] = field(default_factory=set)
    """Requests of which a load failed on some rank."""
    ready: dict[int, bool] = field(default_factory=dict)
    """Rank -> whether its jobs are taken; ranks without a change are left out."""

    def aggregate(self, other: KVConnectorWorkerMetadata) -> "SidecarWorkerMetadata":
        """Add another rank's report."""
        assert isinstance(other, SidecarWorkerMetadata)
        for job, ranks in other.stores.items():
            self.stores[job] = self.stores.get(job, 0) + ranks
        self.failed |= other.failed
        self.ready.update(other.ready)
        return self
