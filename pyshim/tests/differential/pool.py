"""A block pool that counts the references one connector takes."""

from collections import Counter
from types import SimpleNamespace
from typing import Any


class CountingPool:
    """Stands before vLLM's pool for the connector that leads, alone for the other."""

    def __init__(self, real: Any, leads: bool) -> None:
        self._real = real if leads else None
        self.blocks = real.blocks if leads else [SimpleNamespace(block_id=i) for i in range(len(real.blocks))]
        self.held: Counter[int] = Counter()

    def touch(self, blocks: Any) -> None:
        blocks = list(blocks)
        self.held.update(block.block_id for block in blocks)
        assert self.held[0] == 0, "a reference on the null block"
        if self._real is not None:
            self._real.touch(blocks)

    def free_blocks(self, blocks: Any) -> None:
        blocks = list(blocks)
        for block in blocks:
            assert self.held[block.block_id] > 0, f"block {block.block_id} is given back but was not taken"
            self.held[block.block_id] -= 1
            if not self.held[block.block_id]:
                del self.held[block.block_id]
        if self._real is not None:
            self._real.free_blocks(blocks)
