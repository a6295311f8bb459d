"""Namespace, layout and shared host memory, on vLLM's own types."""

import ctypes
import errno
import mmap
import os
import pathlib
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

from engine import kv_config
from vllm.v1.kv_cache_interface import (
    CrossAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheLayout,
    KVCacheTensor,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
    compute_layout_strides,
)
from vllm.v1.worker.utils import allocate_kv_cache

from mooncake_sidecar import hostmem, layout, namespace, resident
from mooncake_sidecar.hostmem import MemfdAllocation
from mooncake_sidecar.registration import describe

FULL = FullAttentionSpec(block_size=16, num_kv_heads=2, head_size=8, dtype=torch.float32)
WINDOW = SlidingWindowSpec(block_size=16, num_kv_heads=2, head_size=8, dtype=torch.float32, sliding_window=64)
BLOCKS = 10


def engine_config(model="/nowhere/m", tp=1, heads=2, cache_dtype="auto", **parallel):
    sizes = {"tensor_parallel_size": tp, "pipeline_parallel_size": 1, "prefill_context_parallel_size": 1,
             "decode_context_parallel_size": 1, **parallel}  # fmt: skip
    return SimpleNamespace(
        parallel_config=SimpleNamespace(**sizes),
        cache_config=SimpleNamespace(prefix_caching_hash_algo="sha256", cache_dtype=cache_dtype),
        model_config=SimpleNamespace(model=model, revision=None, get_total_num_kv_heads=lambda: heads),
        speculative_config=None,
    )


def cache_config(groups, tensors, num_blocks=BLOCKS, layout_name="LBHNC"):
    return KVCacheConfig(
        num_blocks=num_blocks,
        kv_cache_tensors=tensors,
        kv_cache_groups=[KVCacheGroupSpec(names, spec) for names, spec in groups],
        kv_cache_layout=layout_name,
    )


def hybrid():
    """Two groups of two layers that overlay each other, layers outermost."""
    page = FULL.page_size_bytes
    size = page * BLOCKS * 2
    place = {"size": size, "layer_stride": page * BLOCKS, "block_stride": page}
    return cache_config(
        [(["a0", "a1"], FULL), (["w0", "w1"], WINDOW)],
        [KVCacheTensor(layers=["a0", "a1"], **place), KVCacheTensor(layers=["w0", "w1"], **place)],
    )


def build(config, kv):
    return namespace.build(config, kv, "", (16, 16))


# ---- layout ----


def test_one_run_a_layer_where_layers_are_outermost():
    kv = kv_config(BLOCKS, layers=3)
    page = kv.kv_cache_groups[0].kv_cache_spec.page_size_bytes
    assert layout.runs_from_config(kv) == [layout.Run(i * page * BLOCKS, page, page) for i in range(3)]


def test_overlaid_groups_share_their_runs():
    assert layout.shard_bytes(hybrid()) == 2 * FULL.page_size_bytes


def test_one_run_of_the_whole_block_where_blocks_are_outermost():
    page = FULL.page_size_bytes
    tensor = KVCacheTensor(size=3 * page * BLOCKS, layers=["a", "b", "c"], layer_stride=page, block_stride=3 * page)
    kv = cache_config([(["a", "b", "c"], FULL)], [tensor], layout_name="BLHNC")
    assert layout.runs_from_config(kv) == [layout.Run(0, 3 * page, 3 * page)]


@pytest.mark.parametrize("make", [lambda: kv_config(BLOCKS, layers=3), hybrid])
def test_tensors_as_vllm_makes_them_agree_with_the_configuration(make):
    kv = make()
    caches = allocate_kv_cache(kv, torch.device("cpu"), KVCacheLayout["LBHNC"])
    runs = [run for _, run in layout.runs_from_tensors(caches, kv)]
    assert sorted(runs, key=lambda r: r.offset) == sorted(layout.runs_from_config(kv), key=lambda r: r.offset)
    assert sum(run.bytes for run in runs) == layout.shard_bytes(kv)


def test_the_bytes_of_a_block_are_where_the_runs_say():
    kv = kv_config(BLOCKS, layers=3)
    caches = allocate_kv_cache(kv, torch.device("cpu"), KVCacheLayout["LBHNC"])
    for i, cache in enumerate(caches.values()):
        cache[7].fill_(float(i + 1))
    raw = next(iter(caches.values())).untyped_storage()
    whole = torch.tensor([], dtype=torch.uint8).set_(raw)
    for i, (_, run) in enumerate(layout.runs_from_tensors(caches, kv)):
        piece = whole[run.offset + 7 * run.stride :][: run.bytes].view(torch.float32)
        assert torch.all(piece == i + 1)


def test_a_scattered_block_is_refused():
    page = FULL.page_size_bytes
    tensor = KVCacheTensor(size=2 * page * BLOCKS, layers=["a", "b"], layer_stride=page * BLOCKS, block_stride=page)
    kv = cache_config([(["a", "b"], FULL)], [tensor])
    caches = allocate_kv_cache(kv, torch.device("cpu"), KVCacheLayout["LBHNC"])
    heads_apart = {name: cache[:, :, :4] for name, cache in caches.items()}
    with pytest.raises(layout.UnsupportedLayout, match="scatters"):
        layout.runs_from_tensors(heads_apart, kv)


def as_vllm_places(name):
    """Three layers of one group, placed as ``get_kv_cache_config_from_groups`` does, and their tensors."""
    kv_layout, names = KVCacheLayout[name], ["a", "b", "c"]
    size = FULL.page_size_bytes * BLOCKS * len(names)
    fixed = (None, FULL.page_size_bytes * len(names) if kv_layout.is_block_outermost else None, None, None, None)
    layer_stride, block_stride, *_ = compute_layout_strides(FULL, BLOCKS, len(names), kv_layout, fixed_strides=fixed)
    tensor = KVCacheTensor(size=size, layers=names, layer_stride=layer_stride, block_stride=block_stride)
    kv = cache_config([(names, FULL)], [tensor], layout_name=name)
    return kv, allocate_kv_cache(kv, torch.device("cpu"), kv_layout)


@pytest.mark.parametrize("name", [each.name for each in KVCacheLayout])
def test_a_blocks_runs_are_its_bytes_in_every_layout_or_it_is_refused(name):
    """In BHLNC the in-tree connector takes a stride over heads and layers for a length, and reads beyond the cache."""
    kv, caches = as_vllm_places(name)
    if name in ("LHBNC", "BHLNC"):
        with pytest.raises(layout.UnsupportedLayout, match=f"layout {name} scatters"):
            layout.runs_from_tensors(caches, kv)
        return
    for cache in caches.values():
        cache[7].fill_(-1.5)
    found = layout.runs_from_tensors(caches, kv)
    storage = next(iter(caches.values())).untyped_storage()
    whole = torch.tensor([], dtype=torch.uint8).set_(storage).view(torch.float32)
    said = torch.zeros_like(whole)
    for _, run in found:
        begin = (run.offset + 7 * run.stride) // 4
        said[begin : begin + run.bytes // 4] -= 1.5
    assert torch.equal(whole, said)


def test_missing_layers_and_broken_promises_are_refused():
    kv = kv_config(BLOCKS, layers=2)
    caches = allocate_kv_cache(kv, torch.device("cpu"), KVCacheLayout["LBHNC"])
    with pytest.raises(layout.UnsupportedLayout, match=r"layer\.1"):
        layout.runs_from_tensors({"layer.0": caches["layer.0"]}, kv)
    kv.kv_cache_tensors[0].layer_stride += 64
    with pytest.raises(layout.UnsupportedLayout, match="promised"):
        layout.runs_from_tensors(caches, kv)


# ---- host memory ----


def test_the_one_allocation_is_shared_and_nothing_else():
    kv = kv_config(BLOCKS)
    size = kv.kv_cache_tensors[0].size
    original = torch.zeros
    with MemfdAllocation({size}) as allocation:
        assert torch.zeros(size, dtype=torch.uint8).sum() == 0
        assert torch.zeros(size + 1, dtype=torch.int8).numel() == size + 1
        assert torch.zeros(size, 1, dtype=torch.int8).numel() == size
        assert torch.zeros(size, dtype=torch.int8, requires_grad=False).numel() == size
        assert allocation.regions == []
        caches = allocate_kv_cache(kv, torch.device("cpu"), KVCacheLayout["LBHNC"])
    assert torch.zeros is original
    (region,) = allocation.regions
    memory = describe(caches, kv, allocation.regions, 1)
    assert [(r.kind, r.fd, r.bytes) for r in memory.regions] == [("memfd", 0, size)]
    assert memory.descriptors == [region.fd] and not memory.by_address
    caches["layer.1"][3].fill_(2.5)
    segment = memory.segments[1]
    written = os.pread(region.fd, segment.bytes, segment.offset + 3 * segment.block_stride)
    assert torch.all(torch.frombuffer(bytearray(written), dtype=torch.float32) == 2.5)
    with pytest.raises(OSError):
        os.ftruncate(region.fd, size // 2)


def test_the_original_comes_back_after_an_error():
    original = torch.zeros
    with pytest.raises(RuntimeError), MemfdAllocation({1}):
        raise RuntimeError
    assert torch.zeros is original


def test_private_memory_is_reached_by_address():
    kv = hybrid()
    caches = allocate_kv_cache(kv, torch.device("cpu"), KVCacheLayout["LBHNC"])
    memory = describe(caches, kv, [], 2)
    (region,) = memory.regions
    assert region.kind == "process_vm" and region.address == caches["a0"].untyped_storage().data_ptr()
    assert memory.by_address and memory.descriptors == []
    assert [(s.group, s.offset) for s in memory.segments] == [
        (g, i * FULL.page_size_bytes * BLOCKS) for g in (0, 1) for i in (0, 1)
    ]


# ---- resident ----


def test_kv_memory_is_there_before_it_is_used():
    size = 3 << 20
    with MemfdAllocation({size}) as allocation:
        tensor = torch.zeros(size, dtype=torch.int8)
    assert os.fstat(allocation.regions[0].fd).st_blocks * 512 >= size
    assert not tensor.any()
    allocation.close()


def test_making_resident_keeps_what_was_written():
    with mmap.mmap(-1, 2 << 20, mmap.MAP_SHARED) as memory:
        memory[5:8] = b"abc"
        view = ctypes.c_char.from_buffer(memory)
        assert resident.make_resident(ctypes.addressof(view), len(memory))
        assert memory[:9] == bytes(5) + b"abc" + bytes(1)
        del view


def test_an_old_kernel_leaves_the_pages_to_their_use(monkeypatch):
    monkeypatch.setattr(resident, "_MADV_POPULATE_WRITE", 999)
    with mmap.mmap(-1, 1 << 20, mmap.MAP_SHARED) as memory:
        view = ctypes.c_char.from_buffer(memory)
        assert not resident.make_resident(ctypes.addressof(view), len(memory))
        del view


def huge_bytes(address):
    """What of the mapping at ``address`` this process has entered as huge pages."""
    inside = False
    for line in pathlib.Path("/proc/self/smaps").read_text().splitlines():
        first, _, rest = line.partition(" ")
        if "-" in first:
            begin, end = (int(x, 16) for x in first.split("-"))
            inside = begin <= address < end
        elif inside and first == "ShmemPmdMapped:":
            return int(rest.split()[0]) << 10
    raise AssertionError("the mapping is not listed")


def has_huge_pages():
    """Whether the kernel gives shared memory huge pages when it is asked."""
    size = resident.HUGE_BYTES
    libc = ctypes.CDLL(None)
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    mapping, offset = hostmem._map_aligned(fd := hostmem.sealed_memfd("test", size), size)
    os.close(fd)
    view = ctypes.c_char.from_buffer(mapping, offset)
    assert ctypes.addressof(view) % size == 0
    mapping[offset] = 1
    return libc.madvise(ctypes.addressof(view), size, resident._MADV_COLLAPSE) == 0


@pytest.mark.parametrize("extra", [0, 4096])
def test_kv_memory_is_on_huge_pages_where_there_are_any(extra):
    if not has_huge_pages():
        pytest.skip("no huge pages for shared memory here")
    size = 5 * resident.HUGE_BYTES + extra
    with MemfdAllocation({size}) as allocation:
        tensor = torch.zeros(size, dtype=torch.int8)
    assert huge_bytes(tensor.data_ptr()) == size - extra
    assert tensor.numel() == size and not tensor.any() and tensor.untyped_storage().nbytes() == size
    tensor[-1] = 7
    assert os.pread(allocation.regions[0].fd, 2, size - 2) == b"\0\7"
    allocation.close()


@pytest.mark.parametrize("fault", ["old kernel", "slow"])
def test_kv_memory_is_on_small_pages_where_huge_ones_are_not_to_be_had(monkeypatch, fault):
    asked = []
    if fault == "old kernel":
        monkeypatch.setattr(resident, "_MADV_COLLAPSE", 998)
    monkeypatch.setattr(resident, "_STEP", resident.HUGE_BYTES)
    monkeypatch.setattr(resident, "_THREADS", 1)

    def clock():
        asked.append(None)
        return float(len(asked))  # a second each time

    size = 4 * resident.HUGE_BYTES
    mapping, offset = hostmem._map_aligned(fd := hostmem.sealed_memfd("test", size), size)
    try:
        view = ctypes.c_char.from_buffer(mapping, offset)
        assert resident.make_resident(ctypes.addressof(view), size, clock)
        assert len(asked) == (1 if fault == "old kernel" else 2), "it asks again where it was told that there are none"
        assert huge_bytes(ctypes.addressof(view)) <= resident.HUGE_BYTES
        assert os.fstat(fd).st_blocks * 512 >= size
        del view
    finally:
        os.close(fd)


def test_the_mapping_goes_with_its_tensor():
    size = 3 * resident.HUGE_BYTES
    with MemfdAllocation({size}) as allocation:
        tensor = torch.zeros(size, dtype=torch.int8)
    inode = os.fstat(allocation.regions[0].fd).st_ino
    allocation.close()

    def mapped():
        maps = pathlib.Path("/proc/self/maps").read_text().splitlines()
        return any(f" {inode} " in line and "mooncake-sidecar-kv" in line for line in maps)

    assert mapped()
    del tensor
    assert not mapped()


def test_memory_that_cannot_be_had_is_allocated_privately(monkeypatch, caplog):
    def none_left(address, size):
        raise OSError(errno.ENOMEM, "none left")

    monkeypatch.setattr(hostmem, "make_resident", none_left)
    with MemfdAllocation({1 << 20}) as allocation:
        tensor = torch.zeros(1 << 20, dtype=torch.int8)
    assert allocation.regions == [] and tensor.numel() == 1 << 20
    assert "none left" in caplog.text


def test_a_range_that_is_not_mapped_is_no_success():
    with pytest.raises(OSError, match="memory"):
        resident.make_resident(0x10000, 4096)  # below what Linux maps


# ---- namespace ----


def test_both_roles_build_the_same_namespace():
    worker = hybrid()
    uniform = UniformTypeKVCacheSpecs(block_size=16, kv_cache_specs={"a0": FULL, "a1": FULL})
    worker.kv_cache_groups[0].kv_cache_spec = uniform
    assert build(engine_config(), worker).spec == build(engine_config(), hybrid()).spec


def test_groups_and_sizes():
    geometry = build(engine_config(), hybrid())
    first, second = geometry.spec.groups
    assert (first.kind, first.window_tokens, second.kind, second.window_tokens) == (
        "full_attention", 0, "sliding_window", 64,
    )  # fmt: skip
    assert first.identity != second.identity
    assert geometry.spec.dtype == "float32" and geometry.spec.layout == "LBHNC/rank_local"
    assert geometry.spec.hash_bytes == 32 and geometry.spec.retention_tokens == -1


def test_what_makes_bytes_different_makes_the_namespace_different():
    kv = kv_config(BLOCKS)
    base = build(engine_config(), kv).spec
    other = SimpleNamespace(**vars(engine_config()))
    other.model_config = SimpleNamespace(model="/nowhere/m", revision="abc", get_total_num_kv_heads=lambda: 2)
    assert build(other, kv).spec != base
    assert build(engine_config(cache_dtype="fp8"), kv).spec != base
    assert build(engine_config(tp=2), kv).spec != base
    assert namespace.build(engine_config(), kv, "prefix", (16, 16)).spec != base
    other = engine_config()
    other.attention_config = SimpleNamespace(backend=SimpleNamespace(name="FLASHINFER"), backend_per_kind={})
    assert build(other, kv).spec.layout == "LBHNC/rank_local/FLASHINFER" != base.layout
    by_kind = {"mla_attention": SimpleNamespace(name="X")}
    other.attention_config = SimpleNamespace(backend=None, backend_per_kind=by_kind)
    assert build(other, kv).spec.layout == "LBHNC/rank_local/mla_attention=X"
    assert build(engine_config(), kv).spec == base


def test_unknown_kinds_are_refused_by_name():
    with pytest.raises(ValueError, match="CrossAttentionSpec"):
        namespace.kind_of(CrossAttentionSpec(block_size=16, num_kv_heads=1, head_size=8, dtype=torch.float32))

    class LaterSpec(FullAttentionSpec):
        pass

    with pytest.raises(ValueError, match="LaterSpec"):
        namespace.kind_of(LaterSpec(block_size=16, num_kv_heads=1, head_size=8, dtype=torch.float32))


def test_mamba_only_in_align_mode():
    spec = MambaSpec(block_size=16, shapes=((4, 4),), dtypes=(torch.float32,), mamba_cache_mode="none")
    with pytest.raises(ValueError, match="align"):
        namespace.kind_of(spec)


def test_pipeline_stages_of_different_lengths_are_refused():
    config = engine_config(pipeline_parallel_size=2)
    config.model_config.get_total_num_hidden_layers = lambda: 61
    with pytest.raises(ValueError, match="stages have 31, 30 layers|stages have 30, 31 layers"):
        build(config, hybrid())
    config.model_config.get_total_num_hidden_layers = lambda: 60
    assert build(config, hybrid()).spec.pp == 2


def test_ranks_with_the_same_bytes_take_turns():
    kv = hybrid()
    geometry = build(engine_config(tp=4, heads=2), kv)
    assert geometry.replication == (2, 2) and geometry.spec.groups[0].shards == 2
    shares = [geometry.shares(namespace.Ranks(4, 1, 1, 1, tp_rank=r)) for r in range(4)]
    assert [s[0] for s in shares] == [[0, 0], [0, 0], [1, 1], [1, 1]]
    assert [s[1] for s in shares] == [[2, 2]] * 4
    assert [s[2] for s in shares] == [[0, 1], [1, 0], [0, 1], [1, 0]]


def test_latent_attention_is_the_same_on_all_ranks():
    spec = MLAAttentionSpec(block_size=16, num_kv_heads=1, head_size=8, dtype=torch.float32)
    ranks = namespace.Ranks(4, 1, 1, 1)
    assert namespace.replication(spec, "mla_attention", ranks, 1) == 4
    assert namespace.replication(spec, "mla_attention", namespace.Ranks(4, 1, 1, 2), 1) == 1


def test_a_specs_text_is_the_same_in_every_process():
    # It goes into the group's identity.
    assert repr(FULL) == repr(FullAttentionSpec(block_size=16, num_kv_heads=2, head_size=8, dtype=torch.float32))
    assert " at 0x" not in repr(FULL) + repr(WINDOW)


def test_a_closed_allocation_leaves_the_memory_to_its_tensors():
    kv = kv_config(BLOCKS)
    size = kv.kv_cache_tensors[0].size
    with MemfdAllocation({size}) as allocation:
        tensor = torch.zeros(size, dtype=torch.int8)
    (region,) = allocation.regions
    allocation.close()
    allocation.close()
    with pytest.raises(OSError):
        os.fstat(region.fd)
    tensor.fill_(3)
    assert int(tensor[-1]) == 3
