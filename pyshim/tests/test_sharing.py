"""Blocks cut into shards that engines of different tensor-parallel sizes share: the bytes of each, and who can."""

import ctypes
import logging
from types import SimpleNamespace

import msgspec
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store import data
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheTensor,
    MLAAttentionSpec,
    SlidingWindowSpec,
)

from mooncake_sidecar import messages as msg
from mooncake_sidecar import namespace, sharing
from mooncake_sidecar.layout import UnsupportedLayout, runs_from_config, runs_from_tensors
from mooncake_sidecar.registration import describe

HEADS, TOKENS, CONTENT, BLOCKS, LAYERS = 8, 16, 6, 5, 2
SHARDS = 4


def engine(tp, heads=HEADS, **parallel):
    sizes = {"tensor_parallel_size": tp, "pipeline_parallel_size": 1, "prefill_context_parallel_size": 1,
             "decode_context_parallel_size": 1, **parallel}  # fmt: skip
    return SimpleNamespace(
        parallel_config=SimpleNamespace(**sizes),
        cache_config=SimpleNamespace(prefix_caching_hash_algo="sha256", cache_dtype="auto"),
        model_config=SimpleNamespace(model="/nowhere/m", revision=None, get_total_num_kv_heads=lambda: heads),
        speculative_config=None,
    )


def full(tp, kind=FullAttentionSpec, heads=HEADS, **more):
    return kind(block_size=TOKENS, num_kv_heads=heads // tp, head_size=CONTENT // 2, dtype=torch.float32, **more)


def kv_config(specs, layout="LBHNC"):
    groups = [KVCacheGroupSpec([f"{g}.{i}" for i in range(LAYERS)], spec) for g, spec in enumerate(specs)]
    page = max(spec.page_size_bytes for spec in specs)
    place = {"size": page * BLOCKS * LAYERS, "layer_stride": page * BLOCKS, "block_stride": page}
    tensors = [KVCacheTensor(layers=group.layer_names, **place) for group in groups]
    return KVCacheConfig(num_blocks=BLOCKS, kv_cache_tensors=tensors, kv_cache_groups=groups, kv_cache_layout=layout)


def build(config, kv, shards=SHARDS):
    return namespace.build(config, kv, "", (TOKENS, TOKENS), shards)


def whole_cache(seed=0):
    """[layers, blocks, heads, tokens, content] of the model."""
    torch.manual_seed(seed)
    return torch.randn(LAYERS, BLOCKS, HEADS, TOKENS, CONTENT)


def rank_caches(whole, tp, rank, layout, kernel=1):
    """What a rank registers: its heads of every layer, in one allocation laid out as vLLM does."""
    heads = HEADS // tp
    mine = whole[:, :, rank * heads : (rank + 1) * heads]
    kernel_blocks = mine.unflatten(3, (kernel, TOKENS // kernel)).movedim(3, 2)  # L, B, k, H, N, C
    order = (0, 1, 2, 3, 4, 5) if layout == "LBHNC" else (0, 1, 2, 4, 3, 5)
    flat = kernel_blocks.permute(order).contiguous()
    view = flat.permute(order)
    return {f"0.{i}": view[i].flatten(0, 1) for i in range(LAYERS)}


def read(segments, regions, block):
    """The shards of a block: by number, the bytes that the segments name."""
    shards = {}
    for s in segments:
        at = regions[s.region].address + s.offset + block * s.block_stride
        shards[s.shard] = shards.get(s.shard, b"") + ctypes.string_at(at, s.bytes)
    return shards


@pytest.mark.parametrize("kernel", [1, 2])
@pytest.mark.parametrize("layout", ["LBHNC", "LBNHC"])
def test_a_shard_has_the_same_bytes_on_engines_of_every_size(layout, kernel):
    whole, found = whole_cache(), {}
    for tp in (1, 2, 4):
        kv = kv_config([full(tp)], layout)
        geometry = build(engine(tp), kv)
        assert geometry.held_shards == SHARDS // tp and geometry.spec.groups[0].shards == SHARDS
        for rank in range(tp):
            caches = rank_caches(whole, tp, rank, layout, kernel)
            memory = describe(caches, kv, [], 1, geometry.cut)
            if kernel == 1:
                assert len(memory.segments) == LAYERS * sharing.piece_count(layout, TOKENS, geometry.cut)
            (first,), (stride,), (phase,) = geometry.shares(namespace.Ranks(tp, 1, 1, 1, tp_rank=rank))
            assert (stride, phase) == (1, 0)
            for block in range(BLOCKS):
                for number, content in read(memory.segments, memory.regions, block).items():
                    assert len(content) == geometry.spec.groups[0].shard_bytes
                    assert found.setdefault((block, first + number), content) == content, f"TP={tp}, rank {rank}"
    assert len(found) == len(set(found.values())) == BLOCKS * SHARDS
    heads = HEADS // SHARDS
    block, shard = 3, 2
    cells = whole[:, block, shard * heads : (shard + 1) * heads].unflatten(2, (kernel, TOKENS // kernel)).movedim(2, 1)
    cells = cells if layout == "LBHNC" else cells.transpose(2, 3)
    assert found[block, shard] == cells.contiguous().numpy().tobytes()


@pytest.mark.parametrize("tp", [1, 2, 4])
@pytest.mark.parametrize("layout", ["LBHNC", "LBNHC"])
def test_pieces_are_where_the_in_tree_connector_has_them(layout, tp):
    formats = {"LBHNC": data.LBHNCStoreLayout, "LBNHC": data.LBNHCStoreLayout}
    rank = tp - 1
    caches = rank_caches(whole_cache(), tp, rank, layout)
    metadata = data.KeyMetadata(model_name="m", tp_rank=rank, pcp_rank=0, dcp_rank=0, pp_rank=0)
    theirs = formats[layout](metadata, TOKENS, TOKENS, tp, SHARDS, rank, HEADS)
    theirs.register_kv_caches(list(caches.values()), BLOCKS)
    memory = describe(caches, kv_config([full(tp)], layout), [], 1, SHARDS // tp)
    for block in (1, 4):
        ours = read(memory.segments, memory.regions, block)
        for local in range(SHARDS // tp):
            at = theirs._shard_addr_bases[local] + block * theirs._shard_block_strides[local]
            lengths = theirs._shard_sizes[local]
            assert ours[local] == b"".join(ctypes.string_at(int(a), int(n)) for a, n in zip(at, lengths, strict=True))


def test_pieces_one_behind_the_other_are_one():
    caches = rank_caches(whole_cache(), 4, 0, "LBNHC", kernel=2)
    (view, *_) = (c.unflatten(0, (BLOCKS, -1)) for c in caches.values())
    assert [len(shard) for shard in sharing.pieces(view, 1)] == [1]
    assert [len(shard) for shard in sharing.pieces(view, 2)] == [TOKENS] * 2


def test_engines_that_share_are_in_one_namespace():
    specs = [build(engine(tp), kv_config([full(tp)])).spec for tp in (1, 2, 4)]
    assert specs[0] == specs[1] == specs[2]
    assert specs[0].layout == "LBHNC/tp_shared_lbhnc"
    others = [
        build(engine(2), kv_config([full(2)]), shards=2).spec,
        build(engine(2), kv_config([full(2)]), shards=0).spec,
        build(engine(2), kv_config([full(2)], "LBNHC")).spec,
        build(engine(2, heads=16), kv_config([full(2, heads=16)])).spec,
        build(engine(2, pipeline_parallel_size=2), kv_config([full(2)])).spec,
    ]
    every = [repr(spec) for spec in (specs[0], *others)]
    assert len(set(every)) == len(every)


def test_windows_are_cut_as_full_attention_is():
    for tp in (1, 2):
        kv = kv_config([full(tp), full(tp, SlidingWindowSpec, sliding_window=64)])
        geometry = build(engine(tp), kv)
        assert geometry.cut == SHARDS // tp
        assert [g.shards for g in geometry.spec.groups] == [SHARDS, SHARDS]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"tp": 8}, "4 shards can't be divided among 8"),
        ({"heads": 6, "tp": 2}, "6 KV heads can't be divided into 4"),
        ({"layout": "BLHNC"}, "layout is BLHNC"),
        ({"decode_context_parallel_size": 2, "tp": 2}, "context parallelism"),
        ({"more": {"page_size_padded": 8192}}, "padded"),
        ({"kind": "mixed"}, "kind MLAAttentionSpec"),
    ],
)
def test_what_is_in_the_way_is_said_and_the_shards_are_the_ranks_own(change, why, caplog):
    change = {"tp": 2, "heads": HEADS, "layout": "LBHNC", "more": {}, "kind": "", **change}
    tp, heads, name = change.pop("tp"), change.pop("heads"), change.pop("layout")
    more, kind = change.pop("more"), change.pop("kind")
    specs = [full(tp, heads=max(heads, tp), **more)]
    if kind:
        specs.append(MLAAttentionSpec(block_size=TOKENS, num_kv_heads=1, head_size=CONTENT * 4, dtype=torch.float32))
    with caplog.at_level(logging.WARNING):
        geometry = build(engine(tp, heads, **change), kv_config(specs, name))
    assert geometry.cut == 0 and geometry.spec.layout == f"{name}/rank_local"
    assert why in caplog.text


def test_more_pieces_than_a_registration_takes_are_not_cut(caplog, monkeypatch):
    monkeypatch.setattr(sharing, "MAX_SEGMENTS", LAYERS * TOKENS * SHARDS - 1)
    whole, cut = whole_cache(), {}
    for tp in (1, 2):
        kv = kv_config([full(tp)], "LBNHC")
        cut[tp] = build(engine(tp), kv).cut
        describe(rank_caches(whole, tp, 0, "LBNHC"), kv, [], 1, cut[tp])
    assert cut == {1: 0, 2: 2}
    assert f"in {LAYERS * TOKENS * SHARDS} pieces, at most {LAYERS * TOKENS * SHARDS - 1}" in caplog.text
    with pytest.raises(UnsupportedLayout, match="leave store_tp_size out"):
        describe(rank_caches(whole, 1, 0, "LBNHC"), kv_config([full(1)], "LBNHC"), [], 1, SHARDS)


def test_the_largest_registration_is_within_a_frames_limits():
    spec = build(engine(1), kv_config([full(1)])).spec
    spec.groups[:] = spec.groups * 64
    frame = msg.Register(
        fds=253,
        namespace=spec,
        device="host-0",
        num_blocks=BLOCKS,
        shard_by_group=[0] * 64,
        put_stride=[1] * 64,
        put_phase=[0] * 64,
        regions=[msg.KVRegion("memfd", i, 0, 1 << 40) for i in range(252)],
        segments=[msg.KVSegment(0, 0, i, 1, 1) for i in range(sharing.MAX_SEGMENTS)],
        job_board=252,
        job_slots=1024,
        lookup_engine="e",
        verify=True,
    )
    assert values(msgspec.msgpack.decode(msg.encode(frame))) <= 1 << 18  # connector/scan.go: maxValues


def values(content):
    """As a daemon counts them: containers, keys and what they hold."""
    if isinstance(content, dict):
        return 1 + len(content) + sum(map(values, content.values()))
    return 1 + sum(map(values, content)) if isinstance(content, list) else 1


def test_what_every_rank_has_alike_is_shared_without_being_asked():
    latent = MLAAttentionSpec(block_size=TOKENS, num_kv_heads=1, head_size=CONTENT, dtype=torch.float32)
    specs = [build(engine(tp), kv_config([latent]), shards).spec for tp in (1, 2, 8) for shards in (0, 4)]
    assert all(spec == specs[0] for spec in specs)
    # Two heads on four ranks and on eight: the same two shards.
    repeated = [build(engine(tp, 2), kv_config([full(2, heads=2)]), 0).spec for tp in (2, 4, 8)]
    assert all(spec == repeated[0] for spec in repeated) and repeated[0].groups[0].shards == 2


def test_a_cache_that_lies_otherwise_is_refused():
    kv = kv_config([full(1)])
    whole = whole_cache()
    scattered = whole.permute(0, 1, 4, 2, 3).contiguous().permute(0, 1, 3, 4, 2)  # content outermost in a block
    caches = {f"0.{i}": scattered[i] for i in range(LAYERS)}
    assert len(runs_from_tensors(caches, kv)) == len(runs_from_config(kv))
    with pytest.raises(UnsupportedLayout, match="leave store_tp_size out"):
        runs_from_tensors(caches, kv, 2)
