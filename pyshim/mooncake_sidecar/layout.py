"""From vLLM's KV-cache description to the strided segments of a shard.

A shard is the concatenation of a block's pieces, one a segment, in the order of
the in-tree store connector, so that each can read the other's objects
(rank-local layout: all segments of all store layers, for every group, because
groups overlay the same memory and a block id belongs to one group at a time).
"""

from dataclasses import dataclass, replace
from typing import Any

from mooncake_sidecar import sharing


class UnsupportedLayout(ValueError):
    """The engine's KV-cache layout is not one this shim can describe."""


@dataclass(frozen=True)
class Run:
    """One piece of every block: block i's is ``bytes`` long at ``offset + i*stride`` of the allocation.

    ``shard`` counts the rank's shards of the block from 0.
    """

    offset: int
    stride: int
    bytes: int
    shard: int = 0


def store_layers(kv_cache_config: Any) -> set[str]:
    """Names of the layers whose groups can be hit by hash."""
    return {name for group in kv_cache_config.prefix_cacheable_groups for name in group.layer_names}


def runs_from_config(kv_cache_config: Any) -> list[Run]:
    """The runs as ``KVCacheConfig.kv_cache_tensors`` promises them, in no particular order.

    Both sides compute this: the scheduler for the size of a shard, the worker to
    check what it was given. Overlaid groups give the same run once.
    """
    wanted = store_layers(kv_cache_config)
    num_blocks = kv_cache_config.num_blocks
    runs: dict[int, Run] = {}
    for tensor in kv_cache_config.kv_cache_tensors:
        if getattr(tensor, "host_resident", False):
            raise UnsupportedLayout("the KV cache has a host-resident pool, which is not supported")
        for index, layer in enumerate(tensor.layers):
            if layer not in wanted:
                continue
            if tensor.block_stride * num_blocks == tensor.size:
                # Blocks outermost: one block holds the pages of all layers.
                run = Run(0, tensor.block_stride, tensor.block_stride)
            else:
                run = Run(tensor.offset + index * tensor.layer_stride, tensor.block_stride, tensor.block_stride)
            if runs.setdefault(run.offset, run) != run:
                raise UnsupportedLayout(
                    f"layers at offset {run.offset} of the KV cache have blocks of {runs[run.offset].bytes} "
                    f"and of {run.bytes} bytes"
                )
    if not runs:
        raise UnsupportedLayout("the KV cache has no layer that a store could hold")
    return list(runs.values())


def shard_bytes(kv_cache_config: Any) -> int:
    """Bytes of one rank's shard of one block, the same for every group."""
    return sum(run.bytes for run in runs_from_config(kv_cache_config))


def first_tensor(value: Any) -> Any:
    """A layer's cache: a tensor, or for recurrent layers the first of a list over one storage."""
    return value[0] if isinstance(value, (list, tuple)) else value


def runs_from_tensors(kv_caches: dict[str, Any], kv_cache_config: Any, cut: int = 0) -> list[tuple[Any, Run]]:
    """The runs as the registered tensors show them, in registration order, with their storages.

    Args:
        kv_caches: layer name -> view [blocks, heads, tokens, content], or a list
            of views over one storage.
        cut: shards that each block is cut into, 0 for none.

    Raises:
        UnsupportedLayout: a block's piece is not contiguous, a layer is missing,
            or the tensors are not what the configuration promised.
    """
    wanted = store_layers(kv_cache_config)
    num_blocks = kv_cache_config.num_blocks
    if missing := wanted - kv_caches.keys():
        raise UnsupportedLayout(f"no KV cache was registered for the layers {sorted(missing)[:3]}")
    seen: set[int] = set()
    found: list[tuple[Any, Run]] = []
    views: list[Any] = []
    for name, value in kv_caches.items():
        if name not in wanted:
            continue
        cache = first_tensor(value)
        if cache.shape[0] != num_blocks:
            # Kernel blocks divide a manager block evenly.
            if cache.shape[0] % num_blocks:
                raise UnsupportedLayout(f"{name} has {cache.shape[0]} kernel blocks for {num_blocks} blocks")
            cache = cache.unflatten(0, (num_blocks, -1))
        storage = cache.untyped_storage()
        stride = cache.stride(0) * cache.element_size()
        if not isinstance(value, (list, tuple)) and not _dense(cache[0]):
            raise UnsupportedLayout(
                f"layout {kv_cache_config.kv_cache_layout} scatters a block of {name} over memory; "
                "set VLLM_KV_CACHE_LAYOUT to one with a block in one piece"
            )
        outermost = stride * num_blocks == storage.nbytes()
        address = storage.data_ptr() if outermost else cache.data_ptr()
        if address in seen:
            continue
        seen.add(address)
        found.append((storage, Run(address - storage.data_ptr(), stride, stride)))
        views.append(cache)
    promised = sorted((run.offset, run.bytes) for run in runs_from_config(kv_cache_config))
    actual = sorted((run.offset, run.bytes) for _, run in found)
    if promised != actual:
        raise UnsupportedLayout(
            f"the registered KV caches have runs {actual[:3]}..., the configuration promised {promised[:3]}..."
        )
    return _cut(found, views, cut) if cut else found


def _cut(runs: list[tuple[Any, Run]], views: list[Any], shards_each: int) -> list[tuple[Any, Run]]:
    """Each run in its shards' pieces."""
    cut: list[tuple[Any, Run]] = []
    for (storage, run), view in zip(runs, views, strict=True):
        shards = sharing.pieces(view, shards_each)
        if shards is None or sum(length for shard in shards for _, length in shard) != run.bytes:
            raise UnsupportedLayout(
                f"a block of shape {tuple(view.shape[1:])} and strides {view.stride()[1:]} can't be cut into "
                f"{shards_each} shards by its KV heads; leave store_tp_size out"
            )
        for number, shard in enumerate(shards):
            cut += ((storage, replace(run, offset=run.offset + at, bytes=length, shard=number)) for at, length in shard)
    return cut


def _dense(block: Any) -> bool:
    """Whether a block's elements cover one gapless range of memory, in any order of dimensions."""
    expected = 1
    for size, stride in sorted(zip(block.shape, block.stride(), strict=True), key=lambda pair: pair[1]):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True
