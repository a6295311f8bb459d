"""How far each request has been computed, loaded and saved; pure."""

from dataclasses import dataclass, field
from typing import Any

from mooncake_sidecar.pins import PinSet


@dataclass(slots=True)
class LoadPlan:
    """A hit that was reported to vLLM, until its load job is sent."""

    local_tokens: int
    token_len: int
    tails: tuple[tuple[int, int], ...]
    armed: bool = False
    """vLLM has allocated the blocks; the job goes out with this step."""
    tables: tuple[list[int], ...] = ()


@dataclass(slots=True)
class Tracker:
    """One run of a request: from its first scheduling, or resumption, to its preemption or end."""

    token_len: int
    """Tokens computed at the end of the step, drafts not counted."""
    prefill_end: int
    """Length of the current prefill, replayed outputs included."""
    saved: int = 0
    tail_sent: bool = False
    pins: PinSet = field(default_factory=PinSet)

    def plan_save(self, block_tokens: int, prompt_tokens: int, fine: bool) -> tuple[int, bool] | None:
        """(save boundary in tokens, publish the partial tail), None for nothing to save.

        Only whole scheduler blocks are saved, each boundary once; the tail once,
        with the step that first covers the prompt.
        """
        boundary = self.token_len // block_tokens * block_tokens
        publish = fine and not self.tail_sent and 0 < prompt_tokens <= self.token_len
        if boundary <= self.saved and not publish:
            return None
        self.saved = max(self.saved, boundary)
        self.tail_sent |= publish
        return boundary, publish


@dataclass(slots=True)
class Entry:
    """A request that vLLM has asked about and not finished."""

    request: Any
    load: LoadPlan | None = None
    tracker: Tracker | None = None
    failed: bool = False
    """A load of it failed: it is computed instead, lookups answer 0 until it has been scheduled."""
    asked: bool = False
    """A lookup may have been granted a lease."""
