"""Whether vLLM's recurrent states are what their hashes say.

In align mode a block keeps the state after the last token of a step, and vLLM
names it by the block boundary there. That holds only if chunks end on block
boundaries, and vLLM cuts them by ``cache_config.block_size``, not by the size
that the states' group was given. Where the two differ (vLLM 0.32 on CPU sets
the first back to 128 after the engine has started; vllm#53142 is the same on
GPUs) a state of another position is offered, hit, and computed on.
"""

import logging
from typing import Any

from mooncake_sidecar.namespace import Geometry

logger = logging.getLogger("vllm.mooncake_sidecar.states")


class StateRules:
    """Judges an engine's recurrent states; used by the scheduler's thread."""

    def __init__(self, geometry: Geometry, cache_config: Any, *, inside: bool) -> None:
        """Args:
        cache_config: vLLM's, read again and again because it changes under way.
        inside: the model's kernels can also keep a state of within a step.
        """
        self._blocks = [geometry.block_tokens[group] for group in sorted(geometry.mamba_groups)]
        self._cache_config = cache_config
        self._inside = inside
        self._warned = False

    @classmethod
    def of(cls, geometry: Geometry, vllm_config: Any, kv_cache_config: Any) -> "StateRules | None":
        """The rules of an engine, None if its model has no recurrent state."""
        if not geometry.mamba_groups:
            return None
        specs = []
        for group_id in geometry.store_group_ids:
            spec = kv_cache_config.kv_cache_groups[group_id].kv_cache_spec
            inner = getattr(spec, "kv_cache_specs", None)
            specs += inner.values() if inner else [spec]
        inside = any(getattr(spec, "num_prefill_checkpoint_blocks", 0) for spec in specs)
        return cls(geometry, vllm_config.cache_config, inside=inside)

    def aligned(self) -> bool:
        """Whether chunks end where states are named; says so once if they do not.

        If not, the engine itself computes on wrong states, and what comes of it
        must not outlive the engine.
        """
        cut = self._cache_config.block_size
        bad = [block for block in self._blocks if cut % block]
        if bad and not self._warned:
            self._warned = True
            logger.error(
                "nothing is saved: vLLM ends prefill chunks at multiples of %d tokens, but keeps recurrent states "
                "for blocks of %d, so its own prefix cache and any store would hold states of wrong positions. "
                "Start vLLM with --block-size %d",
                cut,
                bad[0],
                bad[0],
            )
        return not bad

    def right(self, tokens: int, start: int, end: int) -> bool:
        """Whether a state offered for the first ``tokens`` tokens, in a step over [start, end), is that one.

        It is what the step leaves, or a copy of what the step began with.
        """
        return tokens in (start, end) or (self._inside and start < tokens < end)
