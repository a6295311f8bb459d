"""What the end-to-end tests need to know of a model kind beyond its checkpoint."""

from __future__ import annotations

import dataclasses
from types import ModuleType

from . import latent, sliding
from .segment import KvMemory


@dataclasses.dataclass(frozen=True)
class Kind:
    """One model kind, as vLLM's CPU engine lays it out."""

    name: str
    family: ModuleType
    block: int
    layers: int  # of one group
    page_bytes: int  # of one layer and block
    full_group: int
    window_groups: tuple[int, ...]
    # Blocks for a longest prompt of 4,096 tokens and for some others, but not for a dozen of a thousand tokens.
    narrow_blocks: int
    # Whether vLLM finds blocks of ended requests again. Those that it does not are the first to be taken by others.
    prefix_caching: bool = True

    @property
    def shard_bytes(self) -> int:
        return self.layers * self.page_bytes

    @property
    def groups(self) -> tuple[int, ...]:
        return (*self.window_groups, self.full_group)

    def whole(self, prompt) -> int:
        """Tokens of a stored prompt that a store can bring."""
        return (len(prompt) - 1) // self.block * self.block

    def memory(self, cell) -> KvMemory:
        return KvMemory(cell.engine.process.pid, self.layers, self.page_bytes)


SLIDING = Kind(
    name="sliding",
    family=sliding,
    block=128,
    layers=2,
    page_bytes=128 * 2 * 2 * 64 * 4,
    full_group=2,
    window_groups=(0, 1),
    narrow_blocks=130,
)
LATENT = Kind(
    name="latent",
    family=latent,
    block=latent.BLOCK,
    layers=3,
    page_bytes=latent.BLOCK * (512 + 64) * 4,
    full_group=0,
    window_groups=(),
    narrow_blocks=576,
    prefix_caching=False,
)
