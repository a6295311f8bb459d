"""A rank of the engine: our connector's worker role, a real worker daemon, and KV memory."""

import copy
import time
from types import SimpleNamespace
from unittest.mock import patch

from vllm.distributed import parallel_state
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.v1.outputs import KVConnectorOutput

from mooncake_sidecar.connector import MooncakeSidecarConnector
from mooncake_sidecar.link import wait_readable
from mooncake_sidecar.metadata import SidecarMetadata, SidecarWorkerMetadata

from .cache import Cache

PATIENCE_S = 60


class Rank:
    """``idle_from`` takes no store job from so many on, as if it had failed: shards of this rank are then missing."""

    def __init__(self, layout, place, number, config, kv_config, device):
        """Args:
        number: in the engine's world.
        device: on the node.
        """
        self.number = number
        self.stores, self.idle_from = 0, None
        self._connector = MooncakeSidecarConnector(config, KVConnectorRole.WORKER, kv_config)
        self.cache = Cache(layout, place, kv_config, self._connector.get_mem_pool_context())
        groups = {
            "get_tensor_model_parallel_rank": place.tp_rank,
            "get_pp_group": SimpleNamespace(rank_in_group=place.pp_rank),
            "get_pcp_group": SimpleNamespace(rank_in_group=place.pcp_rank),
            "get_world_group": SimpleNamespace(rank=number, local_rank=device),
        }
        with patch.multiple(parallel_state, **{name: lambda value=value: value for name, value in groups.items()}):
            self._connector.register_kv_caches(self.cache.views)
        deadline = time.monotonic() + PATIENCE_S
        while not self._connector._worker.ready:
            self._connector._worker.poll()
            assert time.monotonic() < deadline, f"rank {number} has no store"
            time.sleep(0.01)

    def work(self, output, work, loads, words):
        """The rank's part of a step; every job ends within it, so that all runs decide alike."""
        connector, role = self._connector, self._connector._worker
        commands, skipped = output.kv_connector_metadata.commands, []
        if commands.stores:
            self.stores += 1
            if self.idle_from is not None and self.stores > self.idle_from:
                commands, skipped = copy.copy(commands), [job.job for job in commands.stores]
                commands.stores = []
        connector.bind_connector_metadata(SidecarMetadata(commands))
        connector.start_load_kv(None)
        for name, (first, end, tables) in work.items():
            self.cache.compute(words[name], tables, first, end)
        connector.wait_for_save()
        received, failed, bad = self._drain()
        report = connector.build_connector_worker_meta()
        if skipped:
            report = report or SidecarWorkerMetadata()
            report.stores |= dict.fromkeys(skipped, 1)
        connector.clear_connector_metadata()
        assert received == loads.keys(), f"rank {self.number} has loaded {received}, not {loads.keys()}"
        assert not failed and not bad, f"rank {self.number}: loads of {failed} failed, blocks {bad}"
        for name, (local, end, tables) in loads.items():
            self.cache.load(words[name], tables, local, end)
        assert not (wrong := self.cache.wrong_blocks()), f"rank {self.number} has other bytes than it should: {wrong}"
        assert role.ready, f"rank {self.number} has lost its store"
        return KVConnectorOutput(finished_recving=received or None, kv_connector_worker_meta=report)

    def _drain(self):
        """Until the daemon has answered every job."""
        connector, received, failed, bad = self._connector, set(), set(), set()
        deadline = time.monotonic() + PATIENCE_S
        while True:
            found = connector.get_transfer_results(set())
            received |= found.finished_recving or set()
            failed |= found.failed_recving or set()
            bad |= connector.get_block_ids_with_load_errors()
            link = connector._worker._link
            if link.idle:
                return received, failed, bad
            assert time.monotonic() < deadline, f"rank {self.number}: jobs without an answer"
            wait_readable([link.descriptor()], 0.1)

    def close(self):
        self._connector.shutdown()
