"""Reading vLLM's block tables without writing them out.

What vLLM hands a connector turns a request's whole table into a list of ids,
however long the request is. A save needs what is new in it.
"""

from collections.abc import Callable, Sequence
from typing import Any

from vllm.v1.core.kv_cache_manager import KVCacheManager

from mooncake_sidecar.jobs import block_bytes


class Span:
    """A run of a request's blocks, as jobs name them and as vLLM counts references on them."""

    __slots__ = ("blocks", "first", "ids")

    def __init__(self, first: int, blocks: Sequence[Any]) -> None:
        """Args:
        first: the number of the first of them in the request.
        blocks: vLLM's.
        """
        self.first = first
        self.blocks = blocks
        self.ids = block_bytes([block.block_id for block in blocks])

    def real(self, after: int = 0) -> Sequence[Any]:
        """The blocks behind the first ``after``, null blocks left out."""
        blocks = self.blocks[after:] if after else self.blocks
        # A row of zero bytes may also be the ends of two ids; then the list is only made anew.
        return [block for block in blocks if block.block_id] if _NULL in self.ids else blocks


_NULL = block_bytes([0])
NO_BLOCKS = Span(0, ())


class BlockTables:
    """The tables of all requests in one step; not to be kept beyond it."""

    __slots__ = ("_blocks", "_manager", "_state")

    def __init__(self, state: Any, blocks: Callable[[], Sequence[Any]]) -> None:
        """Args:
        state: vLLM's ``KVConnectorBlockState``; None: there are no tables.
        blocks: all of vLLM's blocks by id, for tables that it only names.
        """
        manager = getattr(getattr(state, "resolve_block_ids", None), "__self__", None)
        self._state, self._blocks = state, blocks
        self._manager = manager if isinstance(manager, KVCacheManager) else None

    def of(self, request_id: str) -> "BlockTable | None":
        """A request's table, None if it has none in this step."""
        if self._state is None:
            return None
        if self._manager is not None:
            known = request_id in self._state.req_ids
            return BlockTable(self._manager.get_blocks(request_id).blocks) if known else None
        named = self._state.get_block_ids(request_id)
        if named is None:
            return None
        every = self._blocks()
        return BlockTable([[every[block] for block in group] for group in named])


class BlockTable:
    """One request's blocks in this step; not to be kept beyond it."""

    __slots__ = ("_groups",)

    def __init__(self, groups: Sequence[Sequence[Any]]) -> None:
        """Args:
        groups: by the engine's group, vLLM's blocks.
        """
        self._groups = groups

    def span(self, group: int, first: int, end: int) -> Span:
        """Blocks [first, end) of a group of the engine's."""
        return Span(first, self._groups[group][first:end])

    def ids(self, group: int) -> list[int]:
        """The ids of a group's blocks."""
        return [block.block_id for block in self._groups[group]]
