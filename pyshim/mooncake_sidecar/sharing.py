"""Shards that engines of different tensor-parallel sizes share.

A rank-local shard is all that a rank has of a block, so that an engine with
another number of ranks can't use it. Cut along its KV heads into as many shards
as the user says, a block has the same shards whatever the number of ranks: each
rank holds those of its heads. The formats are the in-tree connector's
``tp_shared_lbhnc`` (head-major) and ``tp_shared_lbnhc`` (token-major).
"""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

# Kinds whose cache is its KV heads side by side and nothing else. The in-tree
# connector takes one group of full attention; windows are no different.
_KINDS = {"FullAttentionSpec", "SlidingWindowSpec", "ChunkedLocalAttentionSpec"}
_LAYOUTS = {"LBHNC", "LBNHC"}

MAX_SEGMENTS = 19_500
"""In a registration, each 13 of the 2^18 values that a daemon accepts in a frame; the rest is for what else it says."""


def why_not(
    specs: Sequence[Any], layout: str | None, tp: int, context_parallel: bool, kv_heads: int, shards: int
) -> str:
    """What is in the way of cutting every block of an engine into ``shards``; empty when nothing is.

    Args:
        specs: of every group that is stored, as a rank has it.
        layout: name of the KV-cache layout.
        context_parallel: whether tokens, and not heads, are divided among ranks.
        kv_heads: of the model.
    """
    if layout not in _LAYOUTS:
        known = " and ".join(sorted(_LAYOUTS))
        return f"the KV-cache layout is {layout}, and only {known} keep a head apart in a block"
    if context_parallel:
        return "context parallelism divides tokens among the ranks"
    if shards % tp:
        return f"{shards} shards can't be divided among {tp} tensor-parallel ranks"
    if kv_heads % shards:
        return f"the model's {kv_heads} KV heads can't be divided into {shards} shards"
    for spec in specs:
        name = type(spec).__name__
        if name not in _KINDS:
            return f"the model has a KV cache of kind {name}, which is not divided by KV heads"
        if spec.num_kv_heads != kv_heads // tp or spec.num_heads != spec.num_kv_heads:
            return f"a rank's block has {spec.num_heads} slots for {spec.num_kv_heads} of {kv_heads} KV heads"
    return ""


def piece_count(layout: str | None, block_tokens: int, cut: int) -> int:
    """Pieces that a rank's block of one layer has when it is cut into ``cut`` shards, the kernel's own blocks aside."""
    return cut * block_tokens if layout == "LBNHC" and cut > 1 else cut


def whole_spec(spec: Any, kv_heads: int) -> Any:
    """A rank's spec as an engine with a single rank has it: the same for every tensor-parallel size."""
    return dataclasses.replace(spec, num_kv_heads=kv_heads, num_head_slots=None)


def pieces(cache: Any, shards: int) -> list[list[tuple[int, int]]] | None:
    """Where a rank's shards lie in one of its blocks: for each of ``shards`` the (offset, bytes) of its pieces.

    Args:
        cache: a layer's view [blocks, heads, tokens, content], or with the kernel's
            blocks behind the blocks, [blocks, kernel blocks, heads, tokens, content].

    Returns:
        None when a head's bytes are not where either format has them.
    """
    if cache.dim() == 4:
        cache = cache.unsqueeze(1)
    if cache.dim() != 5:
        return None
    size = cache.element_size()
    _, kernel_blocks, heads, tokens, content = cache.shape
    _, kernel_stride, head_stride, token_stride, content_stride = (s * size for s in cache.stride())
    cell = content * size
    if heads % shards or content_stride != size:
        return None
    if kernel_blocks > 1 and kernel_stride != heads * tokens * cell:
        return None
    mine = heads // shards
    if token_stride == cell and (head_stride == tokens * cell or heads == 1):
        steps, length = 1, mine * tokens * cell
    elif head_stride == cell and token_stride == heads * cell:
        steps, length = tokens, mine * cell
    else:
        return None
    return [
        _joined(
            (kernel * kernel_stride + step * token_stride + shard * mine * head_stride, length)
            for kernel in range(kernel_blocks)
            for step in range(steps)
        )
        for shard in range(shards)
    ]


def _joined(found: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Pieces one behind the other as one."""
    joined: list[tuple[int, int]] = []
    for offset, length in found:
        if joined and sum(joined[-1]) == offset:
            joined[-1] = (joined[-1][0], joined[-1][1] + length)
        else:
            joined.append((offset, length))
    return joined
