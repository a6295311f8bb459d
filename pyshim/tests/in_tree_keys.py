"""The in-tree store connector's worker, really constructed, for the keys that it makes of an engine's configuration."""

import random
from contextlib import ExitStack
from types import SimpleNamespace
from unittest import mock

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store import worker
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

BLOCK = 16
BLOCKS = 4
KINDS = ("full", "mla", "hidden", "window", "window_mla", "chunked", "mamba")
MODELS = ("org/Model-7B", "/models/run-a/checkpoint-500", "/models/run-b/checkpoint-500/", "m", "ORG/ünïcode x")


def spec_of(kind, heads, dcp, block=BLOCK, dtype=torch.float32):
    attention = {"num_kv_heads": heads, "head_size": 8, "dtype": dtype}
    sharded, whole = {**attention, "block_size": block // dcp}, {**attention, "block_size": block, "dcp_sharded": False}
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
            return MambaSpec(block_size=block, shapes=((4, 4),), dtypes=(dtype,), mamba_cache_mode="align")
    raise AssertionError(kind)


class Case:
    """An engine."""

    def __init__(self, **values):
        self.model, self.revision, self.prefix, self.layout = "m", None, "", "LBHNC"
        self.tp = self.pp = self.pcp = self.dcp = 1
        self.heads, self.kinds, self.uniform, self.store_tp, self.block = 4, ["full"], False, 0, BLOCK
        self.dtype, self.cache_dtype, self.quantization, self.hf_overrides = torch.float32, "auto", None, None
        self.speculative, self.attention, self.lora = None, None, None
        self.settings, self.load, self.skip_layers = {}, {}, []
        vars(self).update(values)

    @classmethod
    def random(cls, seed):
        draw = random.Random(seed)
        made = cls(model=draw.choice(MODELS), prefix=draw.choice(("", "", "tenant-1")), tp=draw.choice((1, 2, 4, 8)),
                   pp=draw.choice((1, 1, 2, 3)), heads=draw.choice((1, 2, 8, 24)),
                   kinds=[draw.choice(KINDS) for _ in range(draw.choice((1, 1, 2, 3)))], uniform=draw.random() < 0.2,
                   layout=draw.choice(("LBHNC", "LBNHC")))  # fmt: skip
        if draw.random() < 0.4:
            made.kinds, made.uniform = ["full"], False
            made.store_tp = draw.choice((2, 4, 8, 3))
        elif len(made.kinds) == 1:
            made.pcp = draw.choice((1, 2))
        if made.pcp == 1:
            made.dcp = draw.choice([n for n in (1, 1, 2, 4) if made.tp % n == 0])
        return made

    @property
    def config(self):
        extra = {"cache_prefix": self.prefix, **({"store_tp_size": self.store_tp} if self.store_tp else {})}
        return SimpleNamespace(
            parallel_config=SimpleNamespace(
                tensor_parallel_size=self.tp, pipeline_parallel_size=self.pp, prefill_context_parallel_size=self.pcp,
                decode_context_parallel_size=self.dcp, data_parallel_index=0, rank=1,
            ),
            cache_config=SimpleNamespace(
                prefix_caching_hash_algo="sha256", cache_dtype=self.cache_dtype,
                get_resolved_kv_cache_layout=lambda: KVCacheLayout[self.layout], kv_cache_dtype_skip_layers=self.skip_layers,
            ),
            model_config=SimpleNamespace(
                model=self.model, revision=self.revision, quantization=self.quantization, hf_overrides=self.hf_overrides,
                get_total_num_kv_heads=lambda: self.heads, get_num_layers=lambda parallel: 2, **self.settings,
            ),
            load_config=SimpleNamespace(**{"load_format": "auto", **self.load}),
            speculative_config=self.speculative, kv_events_config=None, attention_config=self.attention,
            lora_config=self.lora,
            kv_transfer_config=SimpleNamespace(kv_role="kv_both", kv_connector_extra_config=extra),
        )  # fmt: skip

    @property
    def kv_config(self):
        local, groups, tensors = max(1, self.heads // self.tp), [], []
        for index, kind in enumerate(self.kinds):
            spec, names = spec_of(kind, local, self.dcp, self.block, self.dtype), [f"layer.{index}.{i}" for i in range(2)]
            if self.uniform and kind != "mamba":
                spec = UniformTypeKVCacheSpecs(block_size=spec.block_size, kv_cache_specs=dict.fromkeys(names, spec))
            groups.append(KVCacheGroupSpec(names, spec))
            exact = self.store_tp or (self.kinds == ["full"] and not self.uniform)
            page = spec.page_size_bytes if exact else 1 << 14
            place = {"layer_stride": page * BLOCKS, "block_stride": page}
            tensors.append(KVCacheTensor(size=page * BLOCKS * 2, layers=names, **place))
        made = KVCacheConfig(
            num_blocks=BLOCKS, kv_cache_tensors=tensors, kv_cache_groups=groups, kv_cache_layout=self.layout
        )
        made.cache_hit_alignment_tokens = self.block
        return made

    def geometry(self, compat_keys=True):
        return namespace.build(
            self.config, self.kv_config, self.prefix, (self.block, self.block), self.store_tp, compat_keys=compat_keys
        )

    def ranks(self):
        for pp in range(self.pp):
            for pcp in range(self.pcp):
                for tp in range(self.tp):
                    yield namespace.Ranks(self.tp, self.pp, self.pcp, self.dcp, tp, pp, pcp)


def worker_of(case, rank):
    """The in-tree worker of a rank; nothing of it is run but its constructor."""
    config = case.config
    # pp_rank is (rank // tp) % pp there.
    config.parallel_config.rank = rank.pp_rank * rank.tp + rank.tp_rank
    group = lambda size, number: SimpleNamespace(world_size=size, rank_in_group=number)  # noqa: E731
    with ExitStack() as stack:

        def put(name, value):
            stack.enter_context(mock.patch.object(worker, name, value))

        put("get_tensor_model_parallel_rank", lambda: rank.tp_rank)
        put("get_tensor_model_parallel_world_size", lambda: rank.tp)
        put("get_pcp_group", lambda: group(rank.pcp, rank.pcp_rank))
        put("get_dcp_group", lambda: group(rank.dcp, rank.tp_rank % rank.dcp))
        put("resolve_kv_cache_block_sizes", lambda *_: (case.block, case.block))
        put("MooncakeStoreConfig", mock.MagicMock())
        put("setup_mooncake_store", mock.MagicMock())
        put("LookupKeyServer", mock.MagicMock())
        put("rdma_utils", mock.MagicMock())
        store = SimpleNamespace(MooncakeDistributedStore=mock.MagicMock(), ReplicateConfig=mock.MagicMock())
        stack.enter_context(mock.patch.dict("sys.modules", {"mooncake": mock.MagicMock(store=store), "mooncake.store": store}))
        return worker.MooncakeStoreWorker(config, case.kv_config)


def keys_of(case, digest):
    """By group and shard, as ours are counted: the in-tree key of a chunk, from the rank that holds the shard."""
    geometry = case.geometry()
    keys = [[None] * group.shards for group in geometry.spec.groups]
    for rank in case.ranks():
        made = worker_of(case, rank)
        firsts, _, _ = geometry.shares(rank)
        for group, (first, db) in enumerate(zip(firsts, made.token_dbs, strict=True)):
            for local, shard in enumerate(db.store_layout.local_shard_ids):
                key = db.store_layout.key_for(shard, digest)
                assert keys[group][first + local] in (None, key), f"shard {first + local} has two keys"
                keys[group][first + local] = key
            asked = made._lookup_key_prefixes[group]
            assert len(asked) == len(keys[group]), f"a lookup asks for {asked}"
    for group, prefixes in enumerate(made._lookup_key_prefixes):
        assert {f"{prefix}@{digest.hex()}" for prefix in prefixes} == set(keys[group]), "a lookup asks for other keys"
    return geometry, keys
