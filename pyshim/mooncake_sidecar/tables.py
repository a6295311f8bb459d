"""Reading vLLM's block tables without writing them out.

What vLLM hands a connector turns a request's whole table into a list of ids,
however long the request is. A save needs what is new in it.
"""

from typing import Any

from vllm.v1.core.kv_cache_manager import KVCacheManager


class BlockTable:
    """One request's blocks in this step; not to be kept beyond it."""

    __slots__ = ("_groups", "_named")

    def __init__(self, groups: Any, named: bool) -> None:
        """Args:
        groups: by the engine's group, vLLM's blocks, or their ids if ``named``.
        """
        self._groups = groups
        self._named = named

    @classmethod
    def of(cls, state: Any, request_id: str) -> "BlockTable | None":
        """The request's table in vLLM's ``KVConnectorBlockState``, None if it has none."""
        if state is None:
            return None
        resolve = getattr(state, "resolve_block_ids", None)
        manager = getattr(resolve, "__self__", None)
        if isinstance(manager, KVCacheManager):
            return cls(manager.get_blocks(request_id).blocks, False) if request_id in state.req_ids else None
        ids = state.get_block_ids(request_id)
        return None if ids is None else cls(ids, True)

    def ids(self, group: int, first: int = 0, end: int | None = None) -> list[int]:
        """The ids of blocks [first, end) of a group of the engine's."""
        blocks = self._groups[group][first:end]
        return blocks if self._named else [block.block_id for block in blocks]
