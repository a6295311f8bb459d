"""Which blocks to store for a prompt's partial tail.

With recurrent state a hit may end inside a scheduler block, at the checkpoint
that vLLM took near the prompt's end. Such a hit needs, besides the state, the
other groups' bytes from the last regular save up to the checkpoint (plus what a
drafter's proof reads beyond it), each block keyed by the hash at its end.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from mooncake_sidecar.namespace import Geometry

BoundaryPut = tuple[int, int, int]
"""(store group, block id, tokens of the prefix that keys it)."""


def checkpoint(prompt_tokens: int, hash_tokens: int, eagle: bool) -> int:
    """Tokens at which vLLM leaves the reusable recurrent state of a prefill.

    One token is left to compute, or with a drafter one hash unit.
    """
    if eagle:
        return max(0, prompt_tokens // hash_tokens * hash_tokens - hash_tokens)
    return max(0, (prompt_tokens - 1) // hash_tokens * hash_tokens)


def proof_margins(geometry: Geometry) -> dict[int, int]:
    """Tokens past a hit that each drafted group must also have, by store group.

    vLLM merges groups with equal specs, and their drafter mark with them; if the
    drafter marks none, all count as marked.
    """
    spec = geometry.spec
    marked = {(g.kind, g.block_tokens, g.window_tokens, g.identity) for g in spec.groups if g.eagle}
    everything = spec.use_eagle and not marked
    margins = {}
    for index, group in enumerate(spec.groups):
        key = (group.kind, group.block_tokens, group.window_tokens, group.identity)
        if index in geometry.mamba_groups or not (everything or key in marked):
            continue
        fine = geometry.fine and group.kind not in ("sliding_window", "sliding_window_mla", "chunked_local_attention")
        small = fine and group.block_tokens > spec.hash_block_tokens
        margins[index] = spec.hash_block_tokens if small else group.block_tokens
    return margins


@dataclass(frozen=True)
class TailPlanner:
    """Finds the blocks of a partial tail; pure."""

    geometry: Geometry
    margins: dict[int, int]

    @classmethod
    def of(cls, geometry: Geometry) -> "TailPlanner":
        """A planner for the engine."""
        return cls(geometry, proof_margins(geometry))

    def puts(
        self,
        tables: Sequence[Sequence[int]],
        state_puts: Sequence[BoundaryPut],
        prompt_tokens: int,
        completed: int,
        hashes: int,
        publish: bool,
    ) -> list[BoundaryPut]:
        """The boundary puts of the groups without recurrent state.

        Args:
            tables: current block table by store group.
            state_puts: the states handed off with the same job.
            completed: tokens computed at the end of the step.
            hashes: block hashes the request has.
            publish: this is the save that first covers the prompt.
        """
        spec, mamba = self.geometry.spec, self.geometry.mamba_groups
        block_tokens = self.geometry.block_tokens
        partial = {tokens for group, _, tokens in state_puts if tokens % block_tokens[group]}
        boundary = checkpoint(prompt_tokens, spec.hash_block_tokens, spec.use_eagle)
        if not publish and boundary not in partial:
            return []  # a state elsewhere is a shared-prefix junction, which regular saves cover
        if boundary == 0 or boundary // spec.hash_block_tokens > hashes:
            return []
        start = boundary // spec.scheduler_block_tokens * spec.scheduler_block_tokens
        found: list[BoundaryPut] = []
        for group, tokens in enumerate(block_tokens):
            end = boundary + self.margins.get(group, 0)
            if group in mamba or end > completed or end // spec.hash_block_tokens > hashes:
                continue
            last = min(-(-end // tokens), len(tables[group]))
            found += [
                (group, tables[group][block], min((block + 1) * tokens, end))
                for block in range(start // tokens, last)
                if tables[group][block]
            ]
        return found
