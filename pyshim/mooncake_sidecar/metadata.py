"""What the two roles send each other through vLLM."""

from dataclasses import dataclass, field

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata, KVConnectorWorkerMetadata

from mooncake_sidecar.jobs import Report, StepCommands


@dataclass
class SidecarMetadata(KVConnectorMetadata):
    """Scheduler to workers, once a step."""

    commands: StepCommands = field(default_factory=StepCommands)


@dataclass
class SidecarWorkerMetadata(Report, KVConnectorWorkerMetadata):
    """Workers to scheduler; vLLM folds the ranks' objects with ``aggregate``."""

    def aggregate(self, other: KVConnectorWorkerMetadata) -> "SidecarWorkerMetadata":
        """Add another rank's report."""
        assert isinstance(other, SidecarWorkerMetadata)
        self.add(other)
        return self
