"""A Mooncake store that costs nothing, in the place of the real one: the in-tree connector's own unit tests replace it likewise.

Keys are remembered, bytes are not moved. So what is measured of the in-tree connector is its own work, at its best.
"""

from __future__ import annotations

import sys
import types
from unittest import mock

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store import worker as in_tree_worker
from vllm.distributed.mooncake_store import MooncakeStoreConfig


class Store:
    """In place of MooncakeDistributedStore."""

    def __init__(self):
        self._keys = set()

    def register_buffer(self, *_):
        return 0

    def batch_is_exist(self, keys):
        return [1 if key in self._keys else 0 for key in keys]

    def batch_put_from_multi_buffers(self, keys, *_):
        self._keys.update(keys)
        return [0] * len(keys)

    def batch_get_into_multi_buffers(self, keys, _, sizes, *__):
        return [sum(size) for size in sizes]

    def remove_all(self, **_):
        self._keys.clear()

    def close(self):
        pass


class ReplicateConfig:
    """In place of the real one: takes any attribute."""


class _Event:
    """As vLLM's CPU runner replaces torch.cuda.Event."""

    def record(self, *_):
        pass

    def synchronize(self):
        pass


def install() -> None:
    """Replaces the store for the rest of the process."""
    package, module = types.ModuleType("mooncake"), types.ModuleType("mooncake.store")
    module.MooncakeDistributedStore, module.ReplicateConfig = Store, ReplicateConfig
    sys.modules |= {"mooncake": package, "mooncake.store": module}
    config = MooncakeStoreConfig("", "", "tcp", "")
    mock.patch.object(MooncakeStoreConfig, "load_from_config", staticmethod(lambda: config)).start()
    mock.patch.object(in_tree_worker, "setup_mooncake_store", lambda *_: None).start()
    torch.cuda.Event = _Event
