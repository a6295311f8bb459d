"""Which rank stores what, for any parallel sizes: the in-tree connector's threads say what is right.

Every rank's in-tree sending and receiving thread runs over a store that only notes keys. Our shares must name the same
writers and readers, with one shard for each of the in-tree connector's key prefixes, and none that nobody writes.
"""

import random
from collections import defaultdict
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")
pytest.importorskip("vllm")

from in_tree import PAGE, InTree
from in_tree_keys import BLOCK, spec_of
from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store import data
from vllm.v1.kv_cache_interface import (
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheTensor,
    UniformTypeKVCacheSpecs,
)

from mooncake_sidecar import namespace

CHUNKS = 13
CASES = 120


class Case:
    """Parallel sizes and groups of an engine."""

    def __init__(self, seed):
        draw = random.Random(seed)
        self.seed = seed
        self.tp = draw.choice((1, 2, 3, 4, 6, 8))
        self.pp = draw.choice((1, 1, 2, 3))
        self.heads = draw.choice((1, 2, 4, 8, 24))
        most = draw.choice((1, 1, 2, 3))
        self.pcp = draw.choice((1, 2)) if most == 1 else 1
        # As vLLM's ParallelConfig has it: decode-context ranks are some of the tensor-parallel ones, or else the
        # prefill-context ranks, or those and all tensor-parallel ones.
        whole = (1, 1, 1, 2, 4) if self.pcp == 1 else (1, 1, self.pcp, self.tp * self.pcp)
        self.dcp = draw.choice([n for n in whole if self.tp * self.pcp % n == 0 and BLOCK % n == 0])
        kinds = ["full", "mla", "hidden", "window", "window_mla", "chunked", "mamba"]
        self.kinds = [draw.choice(kinds) for _ in range(most)]
        self.uniform = draw.random() < 0.2
        self.start = draw.choice((0, 0, BLOCK, 3 * BLOCK))

    def __str__(self):
        return str(vars(self))

    @property
    def sizes(self):
        return namespace.Ranks(self.tp, self.pp, self.pcp, self.dcp)

    def dcp_rank(self, place):
        """As vLLM forms its groups (``initialize_model_parallel``)."""
        return (place.tp_rank * self.pcp + place.pcp_rank) % self.dcp

    def ranks(self):
        for pp in range(self.pp):
            for pcp in range(self.pcp):
                for tp in range(self.tp):
                    yield namespace.Ranks(self.tp, self.pp, self.pcp, self.dcp, tp, pp, pcp)

    def engine(self, data_parallel=(1, 0)):
        return SimpleNamespace(
            parallel_config=SimpleNamespace(
                data_parallel_size=data_parallel[0],
                data_parallel_index=data_parallel[1],
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


HASHES = data.BlobBlockHashes(memoryview(b"".join(bytes([i]) * 8 for i in range(CHUNKS))), 8)


def of_rank(in_tree, case, rank):
    """({prefix, chunk} written, the same read, the prefixes that a lookup asks for by group)."""
    worker, length = in_tree.rank(rank, case.dcp_rank(rank)), CHUNKS * BLOCK
    written, read = worker.written(length, HASHES, case.start), worker.read(length, HASHES, case.start)
    return {split(key) for key in written}, {split(key) for key in read}, worker.lookup_prefixes


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
    extra = {"store_tp_size": store_tp} if store_tp else {}
    in_tree = InTree(case.engine(), kv, case.heads, (BLOCK, BLOCK), **extra)
    # Whatever front end an engine is of, and whichever of its engines: they share.
    for index in range(2):
        assert namespace.build(case.engine((2, index)), kv, "", (BLOCK, BLOCK), store_tp) == geometry
    held = geometry.held_shards
    ranks = list(case.ranks())
    theirs = [of_rank(in_tree, case, rank) for rank in ranks]
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
        if min(case.pcp, case.dcp) > 1:
            # In-tree lookups take the decode-context rank for one of the tensor-parallel ranks alone, and ask for
            # keys that no rank writes: the in-tree connector never finds anything with both. Ours asks for shards.
            assert set(prefixes) - shard_of.keys(), "the in-tree connector finds what it stores: hold ours against it"
            assert {shard for found, shard in every if found == group} == set(range(len(prefixes)))
            continue
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
        seen["both contexts"] += min(case.pcp, case.dcp) > 1
    assert len(seen) == 7 and min(seen.values()) >= 5, f"the cases are too alike: {dict(seen)}"


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


def test_ranks_on_several_nodes_are_refused():
    case = Case(1)
    engine = case.engine()
    engine.parallel_config.nnodes_within_dp = 2
    with pytest.raises(ValueError, match='on 2 nodes.* store "mooncake" as little'):
        namespace.build(engine, case.kv_config(), "", (BLOCK, BLOCK), 0)
