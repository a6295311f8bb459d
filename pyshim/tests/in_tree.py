"""The in-tree store connector's worker without an engine: which keys a rank writes and reads, and what a lookup finds."""

import threading
from types import SimpleNamespace

from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store import data, worker
from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store.coordinator import MooncakeStoreCoordinator
from vllm.v1.kv_cache_layout import KVCacheLayout

PAGE = 1 << 14  # of the made-up memory, which nobody touches


class Notes:
    """A store that has the keys it is given (all, when it is given none) and keeps nothing but keys."""

    def __init__(self, keys=None):
        self._keys = keys
        self.written, self.read = [], []

    def batch_is_exist(self, keys):
        return [int(self._keys is not None and key in self._keys) for key in keys]

    def batch_put_from_multi_buffers(self, keys, addrs, sizes, config):
        self.written += keys
        return [1] * len(keys)

    def batch_get_into_multi_buffers(self, keys, addrs, sizes):
        self.read += keys
        return [1] * len(keys)


class InTree:
    """The worker of each rank of an engine, one after the other."""

    def __init__(self, config, kv, heads, block_sizes, **extra):
        """Args:
        heads: KV heads of the model.
        block_sizes: (scheduler block, hash block) in tokens.
        """
        self._config, self._heads, self._extra = config, heads, extra
        self._blocks = block_sizes
        self._coordinator = MooncakeStoreCoordinator.from_kv_cache_config(kv, config, *block_sizes)

    def rank(self, rank, dcp_rank):
        """The worker of one rank, with threads that were never started."""
        made = worker.MooncakeStoreWorker.__new__(worker.MooncakeStoreWorker)
        made._capacity_only = False
        made.coord, made._kv_cache_groups = self._coordinator, self._coordinator.kv_cache_groups
        made.block_size, made.hash_block_size = self._blocks
        made.tp_rank, made.tp_size, made.pp_size = rank.tp_rank, rank.tp, rank.pp
        made.pcp_size, made.dcp_size = rank.pcp, rank.dcp
        made.num_kv_head = self._heads
        made.cache_config = SimpleNamespace(get_resolved_kv_cache_layout=lambda: KVCacheLayout.LBHNC)
        made.store_tp_size, space, layout_cls = made._select_store_layout(self._extra)
        metadata = data.KeyMetadata(
            model_name="m",
            tp_rank=rank.tp_rank,
            pcp_rank=rank.pcp_rank,
            dcp_rank=dcp_rank,
            pp_rank=rank.pp_rank,
            store_namespace=space,
        )
        made._group_tp_replication_factors = made._compute_group_tp_replication_factors()
        made.token_dbs = made._build_token_databases(metadata, layout_cls)
        made._init_lookup_key_prefixes()
        for db in made.token_dbs:
            if layout_cls is None:
                db.set_kv_caches_base_addr([0])
                db.set_block_len([PAGE])
            else:
                db.store_layout._set_segment_templates([([0], [PAGE], [PAGE])] * len(db.store_layout.local_shard_ids))
        steps = made._group_tp_replication_factors if layout_cls is None else (1,) * len(made.token_dbs)
        return Rank(made, self._coordinator, self._blocks[0], steps)


class Rank:
    """One rank's worker."""

    def __init__(self, made, coordinator, block, steps):
        self._made, self._coordinator, self._block, self._steps = made, coordinator, block, steps

    @property
    def lookup_prefixes(self):
        """By group: the prefixes of all keys that a chunk must have."""
        return self._made._lookup_key_prefixes

    def written(self, length, hashes, start=0, prompt=None):
        """Keys that it writes of so many tokens, of which ``start`` have been written before.

        Args:
            prompt: tokens of the prompt, where it is not one more.
        """
        notes, tables = Notes(), self._tables(length)
        common, quiet = self._common(notes)
        sender = worker.KVCacheStoreSendingThread(*common, self._steps, "kv_both", threading.Event(), **quiet)
        end = length + 1 if prompt is None else prompt
        save = data.ReqMeta("r", length, tables, hashes, can_save=True, store_job_id=1, prefill_end_tokens=end)
        sender.add_request(save)
        sender._saved_offset["r"] = start
        sender._handle_request(sender.request_queue.get())
        return notes.written

    def read(self, length, hashes, start=0):
        """Keys that it reads for a hit of so many tokens, of which ``start`` are in the engine."""
        notes, tables = Notes(), self._tables(length)
        common, quiet = self._common(notes)
        receiver = worker.KVCacheStoreRecvingThread(*common, threading.Event(), **quiet)
        spec = data.LoadSpec(start, length, True, length)
        receiver.add_request(data.ReqMeta("r", 0, tables, hashes, load_spec=spec))
        receiver._handle_request(receiver.request_queue.get())
        return notes.read

    def found(self, keys, num_tokens, hashes):
        """Tokens that a lookup finds where a store has these keys."""
        self._made.store = Notes(set(keys))
        self._made._record_kv_connector_operation = lambda *_, **__: None
        return self._made.lookup(num_tokens, hashes).hit_length

    def _tables(self, length):
        return tuple(list(range(1, -(-length // db.block_size) + 1)) for db in self._made.token_dbs)

    def _common(self, notes):
        common = (notes, self._coordinator, self._made.token_dbs, self._block, self._made.tp_rank)
        return common, {"record_operation": lambda *_, **__: None}
