"""Loads that are part of the step that computes behind them, where nothing else runs.

vLLM calls them synchronous: the step begins with the load and goes on with what is
left of the prompt, instead of a step that only waits and another one behind it. They
are for an engine that would wait anyway, and the connector may then have to stop a
daemon for good before the engine goes on: vLLM computes what could not be loaded
into the same blocks. So each condition below is there because without it somebody
would wait for long, or stand on bytes that nobody has checked.
"""

from collections.abc import Sequence
from typing import Any

# Of the memory that copies: some tens of milliseconds, less than an engine on the CPU takes for a chunk of a prompt.
SYNC_LOAD_BYTES = 512 << 20


class SyncLoads:
    """Decides, for the scheduler role, whether the next load is synchronous; knows the one of this step."""

    def __init__(self, most_tokens: int) -> None:
        """Args:
        most_tokens: the longest load that may be synchronous, 0 for none.
            REQUIRES: 0 for several ranks (what one could not load the others have computed with and stored), where failures
            are not reported by block (vLLM has no other way for a synchronous load), for an engine that prepares a step
            before the last one's results are in, and for vLLM's second model runner, which does not go back to where a
            failed load is computed from (``gpu/model_runner.py``, ``update_requests``, 0.32.0).
        """
        self._most_tokens = most_tokens
        self.allowed = False
        """The worker has said that it can end a load for certain, see ``Link.killable``."""
        self._pool: Any = None
        self._first = True
        self._now: tuple[str, Sequence[Any]] | None = None
        """(request, blocks) of the step that is being put together."""
        self._sent: tuple[str, Sequence[Any]] | None = None
        """The same of the step before."""

    def bind(self, pool: Any) -> None:
        """Set vLLM's block pool, before the first load."""
        self._pool = pool

    @property
    def under_way(self) -> bool:
        """The step has a synchronous load.

        What it brings is in vLLM's prefix cache before it is there. Another request of the step must not stand on it: if
        the load fails, vLLM lets that one go on as if it had not.
        """
        return self._now is not None

    def suits(self, tokens: int) -> bool:
        """Whether this load may be. REQUIRES: nothing runs in the engine, and all of it is in the node's memory.

        It is of the first request that the step asks about: one that was scheduled before would wait for it.
        """
        return self._first and self.allowed and tokens <= self._most_tokens

    def asked(self) -> None:
        """vLLM has asked about a request, which may be of this step now."""
        self._first = False

    def begin(self, request_id: str, blocks: Sequence[Any]) -> None:
        """The load is part of this step.

        Args:
            blocks: the request's, but for those that the engine had.
        """
        self._now = (request_id, blocks)

    def new_step(self) -> None:
        """What is asked from here on is of the next step."""
        self._first, self._sent, self._now = True, self._now, None

    def failed(self, request_id: str) -> bool:
        """A load has failed; whether it was the last step's synchronous one.

        vLLM leaves its blocks in the prefix cache then, for they are computed next. But the request may be aborted or
        preempted before that. So they are taken out, with those that the step has computed from them.
        """
        if self._sent is None or self._sent[0] != request_id:
            return False
        self._pool.evict_blocks({block.block_id for block in self._sent[1] if not block.is_null})
        return True
