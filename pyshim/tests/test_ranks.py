"""Which rank stores what, for any parallel sizes: the in-tree connector's threads say what is right.

Every rank's in-tree sending and receiving thread runs over a store that only notes keys. Our shares must name the same
writers and readers, with one shard for each of the in-tree connector's key prefixes, and none that nobody writes.
"""

import random
import threading
from collections import defaultdict
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store import data, worker
from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store.coordinator import MooncakeStoreCoordinator
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    HiddenStateCacheSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheTensor,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)
from vllm.v1.kv_cache_layout import KVCacheLayout

from mooncake_sidecar import namespace

BLOCK = 16  # tokens of a block as the scheduler counts them
CHUNKS = 13
PAGE = 1 << 14
CASES = 120


def spec_of(kind, heads, dcp):
    """A group's spec as a rank has it; ``heads`` are the rank's own."""
    attention = {"num_kv_heads": heads, "head_size": 8, "dtype": torch.float32}
    sharded = {**attention, "block_size": BLOCK // dcp}
    whole = {**attention, "block_size": BLOCK, "dcp_sharded": False}
    match kind:
        case "full":
            return FullAttentionSpec(**sharded)
        case "mla":
            return MLAAttentionSpec(**{**sharded, "num_kv_heads": 1})
        case "hidden":
            return HiddenStateCacheSpec(**{**sharded, "num_kv_heads": 1})
        case "window":
            return SlidingWindowSpec(sliding_window=40, **whole)
        case "window_mla":
            return SlidingWindowMLASpec(sliding_window=40, **{**whole, "num_kv_heads": 1})
        case "chunked":
            return ChunkedLocalAttentionSpec(attention_chunk_size=64, **whole)
        case "mamba":
            return MambaSpec(block_size=BLOCK, shapes=((4, 4),), dtypes=(torch.float32,), mamba_cache_mode="align")
    raise AssertionError(kind)


class Case:
    """Parallel sizes and groups of an engine."""

    def __init__(self, seed):
        draw = random.Random(seed)
        self.seed = seed
        self.tp = draw.choice((1, 2, 3, 4, 6, 8))
        self.pp = draw.choice((1, 1, 2, 3))
        self.dcp = draw.choice([n for n in (1, 1, 1, 2, 4) if self.tp % n == 0])
        self.heads = draw.choice((1, 2, 4, 8, 24))
        most = draw.choice((1, 1, 2, 3))
        self.pcp = draw.choice((1, 2)) if most == 1 else 1
        kinds = ["full", "mla", "hidden", "window", "window_mla", "chunked", "mamba"]
        self.kinds = [draw.choice(kinds) for _ in range(most)]
        self.uniform = draw.random() < 0.2
        self.start = draw.choice((0, 0, BLOCK, 3 * BLOCK))

    def __str__(self):
        return str(vars(self))

    @property
    def sizes(self):
        return namespace.Ranks(self.tp, self.pp, self.pcp, self.dcp)

    def ranks(self):
        for pp in range(self.pp):
            for pcp in range(self.pcp):
                for tp in range(self.tp):
                    yield namespace.Ranks(self.tp, self.pp, self.pcp, self.dcp, tp, pp, pcp)

    def engine(self):
        return SimpleNamespace(
            parallel_config=SimpleNamespace(
                tensor_parallel_size=self.tp,
                pipeline_parallel_size=self.pp,
                prefill_context_parallel_size=self.pcp,
                decode_context_parallel_size=self.dcp,
            ),
            cache_config=SimpleNamespace(prefix_caching_hash_algo="sha256", cache_dtype="auto"),
            model_config=SimpleNamespace(model="/nowhere/m", revision=None, get_total_num_kv_heads=lambda: self.heads),
            speculative_config=None,
        )

    def kv_config(self):
        local = max(1, self.heads // self.tp)
        groups, tensors = [], []
        for index, kind in enumerate(self.kinds):
            spec = spec_of(kind, local, self.dcp)
            names = [f"layer.{index}.{i}" for i in range(2)]
            if self.uniform and kind != "mamba":
                spec = UniformTypeKVCacheSpecs(block_size=spec.block_size, kv_cache_specs=dict.fromkeys(names, spec))
            groups.append(KVCacheGroupSpec(names, spec))
            page = spec.page_size_bytes if self.kinds == ["full"] and not self.uniform else PAGE
            place = {"layer_stride": page * (CHUNKS + 1), "block_stride": page}
            tensors.append(KVCacheTensor(size=page * (CHUNKS + 1) * 2, layers=names, **place))
        config = KVCacheConfig(
            num_blocks=CHUNKS + 1, kv_cache_tensors=tensors, kv_cache_groups=groups, kv_cache_layout="LBHNC"
        )
        config.cache_hit_alignment_tokens = BLOCK
        return config


class Notes:
    """A store that has whatever is asked for and keeps nothing but the keys."""

    def __init__(self):
        self.written, self.read = [], []

    def batch_is_exist(self, keys):
        return [0] * len(keys)

    def batch_put_from_multi_buffers(self, keys, addrs, sizes, config):
        self.written += keys
        return [1] * len(keys)

    def batch_get_into_multi_buffers(self, keys, addrs, sizes):
        self.read += keys
        return [1] * len(keys)


HASHES = data.BlobBlockHashes(memoryview(b"".join(bytes([i]) * 8 for i in range(CHUNKS))), 8)


class InTree:
    """The in-tree worker of every rank of a case, one after the other."""

    def __init__(self, case, kv, **extra):
        self._case, self._extra = case, extra
        self._coordinator = MooncakeStoreCoordinator.from_kv_cache_config(kv, case.engine(), BLOCK, BLOCK)

    def rank(self, rank):
        """(written keys, read keys, the prefixes that a lookup asks for by group)."""
        case = self._case
        made = worker.MooncakeStoreWorker.__new__(worker.MooncakeStoreWorker)
        made._capacity_only = False
        made.coord, made._kv_cache_groups = self._coordinator, self._coordinator.kv_cache_groups
        made.block_size = made.hash_block_size = BLOCK
        made.tp_rank, made.tp_size, made.pp_size = rank.tp_rank, rank.tp, rank.pp
        made.pcp_size, made.dcp_size = rank.pcp, rank.dcp
        made.num_kv_head = case.heads
        made.cache_config = SimpleNamespace(get_resolved_kv_cache_layout=lambda: KVCacheLayout.LBHNC)
        made.store_tp_size, space, layout_cls = made._select_store_layout(self._extra)
        metadata = data.KeyMetadata(
            model_name="m",
            tp_rank=rank.tp_rank,
            pcp_rank=rank.pcp_rank,
            dcp_rank=rank.tp_rank % rank.dcp,
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
        written, read = self._run(made, steps)
        return written, read, made._lookup_key_prefixes

    def _run(self, made, steps):
        notes = Notes()
        common = (notes, self._coordinator, made.token_dbs, BLOCK, made.tp_rank)
        quiet = {"record_operation": lambda *_, **__: None}
        tables = tuple(list(range(1, CHUNKS + 1)) for _ in made.token_dbs)
        length = CHUNKS * BLOCK
        sender = worker.KVCacheStoreSendingThread(*common, steps, "kv_both", threading.Event(), **quiet)
        save = data.ReqMeta("r", length, tables, HASHES, can_save=True, store_job_id=1, prefill_end_tokens=length + 1)
        sender.add_request(save)
        sender._saved_offset["r"] = self._case.start
        sender._handle_request(sender.request_queue.get())
        receiver = worker.KVCacheStoreRecvingThread(*common, threading.Event(), **quiet)
        spec = data.LoadSpec(self._case.start, length, True, length)
        receiver.add_request(data.ReqMeta("r", 0, tables, HASHES, load_spec=spec))
        receiver._handle_request(receiver.request_queue.get())
        return {split(key) for key in notes.written}, {split(key) for key in notes.read}


def split(key):
    """(prefix, chunk) of a key."""
    prefix, _, digest = key.rpartition("@")
    return prefix, bytes.fromhex(digest)[0]


def by_shard(prefix):
    """Sorts a rank's prefixes of a group by the number of the shard."""
    return int(prefix.partition("@tp_rank:")[2].partition("@")[0])


def group_of(prefix):
    return int(prefix.rpartition("@group:")[2])


def check(case, store_tp=0):
    """Holds a case's shares against what the in-tree ranks do; returns its geometry."""
    kv = case.kv_config()
    geometry = namespace.build(case.engine(), kv, "", (BLOCK, BLOCK), store_tp)
    in_tree = InTree(case, kv, **({"store_tp_size": store_tp} if store_tp else {}))
    held = geometry.held_shards
    ranks = list(case.ranks())
    theirs = [in_tree.rank(rank) for rank in ranks]
    ours = [geometry.shares(rank) for rank in ranks]

    shard_of = {}  # of a prefix, by the ranks that read it
    for (_, read, _), (shards, _, _) in zip(theirs, ours, strict=True):
        for group, first in enumerate(shards):
            mine = sorted({prefix for prefix, _ in read if group_of(prefix) == group}, key=by_shard)
            assert len(mine) in (0, held), f"{mine} are read where a rank holds {held} shards"
            for shard, prefix in enumerate(mine, first):
                assert shard_of.setdefault(prefix, shard) == shard, f"{prefix} is shard {shard_of[prefix]} and {shard}"
    every = [(group_of(prefix), shard) for prefix, shard in shard_of.items()]
    assert len(set(every)) == len(every), f"one shard for two prefixes: {shard_of}"

    for group, prefixes in enumerate(theirs[0][2]):
        assert len(prefixes) == geometry.spec.groups[group].shards, f"a lookup asks for {prefixes}"
        assert {shard_of[prefix] for prefix in prefixes} == set(range(len(prefixes))), f"{prefixes} of {shard_of}"

    chunks = defaultdict(set)  # of a group, that somebody stores
    for written, _, _ in theirs:
        for prefix, chunk in written:
            chunks[group_of(prefix)].add(chunk)
    for rank, (written, _, _), (shards, strides, phases) in zip(ranks, theirs, ours, strict=True):
        mine = {
            (group, shards[group] + k, chunk)
            for k in range(held)
            for group in chunks
            for chunk in chunks[group]
            if chunk % strides[group] == phases[group]
        }
        assert mine == {(group_of(prefix), shard_of[prefix], chunk) for prefix, chunk in written}, rank
    return geometry


def test_every_key_that_a_rank_reads_is_written_by_the_rank_that_must():
    seen = defaultdict(int)
    for seed in range(CASES):
        case = Case(seed)
        try:
            geometry = check(case)
        except AssertionError as error:
            raise AssertionError(f"{case}: {error}") from error
        seen["replicas"] += max(geometry.replication) > 1
        seen["replicas that differ"] += len(set(geometry.replication)) > 1
        seen["groups"] += len(case.kinds) > 1
        for size in ("dcp", "pcp", "pp"):
            seen[size] += getattr(case, size) > 1
    assert len(seen) == 6 and min(seen.values()) >= 5, f"the cases are too alike: {dict(seen)}"


def test_every_shard_that_a_rank_reads_is_written_where_engines_share_them():
    seen = defaultdict(int)
    for seed in range(CASES):
        case = Case(seed)
        draw = random.Random(-seed)
        store_tp = draw.choice((1, 2, 4, 6, 8, 12, 24))
        if seed % 2:  # the one kind that the in-tree connector cuts
            case.kinds, case.uniform, case.pcp, case.dcp = ["full"], False, 1, 1
            case.tp, case.heads = draw.choice((1, 2, 3, 4)), draw.choice((8, 12, 24))
        elif {"window", "chunked"} & set(case.kinds) or len(case.kinds) > 1 or case.uniform:
            continue  # more of these are cut here than in-tree
        try:
            geometry = check(case, store_tp)
        except AssertionError as error:
            raise AssertionError(f"{store_tp} shards, {case}: {error}") from error
        seen["one a rank"] += geometry.cut == 1
        seen["several a rank"] += geometry.cut > 1
        seen["not cut"] += geometry.cut == 0
        seen["stages"] += geometry.cut > 1 and case.pp > 1
    assert len(seen) == 4 and min(seen.values()) >= 5, f"the cases are too alike: {dict(seen)}"
