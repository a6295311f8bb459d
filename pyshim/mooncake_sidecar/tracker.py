"""How far each request has been computed, loaded and saved; pure."""

from dataclasses import dataclass, field
from typing import Any

from mooncake_sidecar.batch import Label
from mooncake_sidecar.pins import PinSet
from mooncake_sidecar.wishes import MAX_TOKENS, NO_WISHES, Wishes


@dataclass(slots=True)
class LoadPlan:
    """A hit that was reported to vLLM, until its load job is sent."""

    local_tokens: int
    token_len: int
    tails: tuple[tuple[int, int], ...]
    tiers: tuple[tuple[int, int], ...] = ()
    """The lookup's (tier, tokens) pairs, of the ``hit_tokens`` that it found."""
    hit_tokens: int = 0
    lasting: bool = False
    """What was found need not be offered again."""
    sync: bool = False
    """It is part of the step that computes behind it."""
    armed: bool = False
    """vLLM has allocated the blocks; the job goes out with this step."""
    tables: list[bytes] = field(default_factory=list)
    """By store group, the blocks that hold the hit's tokens, as ``block_bytes``."""


@dataclass(slots=True)
class Tracker:
    """One run of a request: from its first scheduling, or resumption, to its preemption or end."""

    token_len: int
    """Tokens computed at the end of the step in which it was last looked at, drafts not counted."""
    prefill_end: int
    """Length of the current prefill, replayed outputs included."""
    most: int = MAX_TOKENS
    """The longest prefix that may be saved, in tokens."""
    saved: int = 0
    tail_sent: bool = False
    pins: PinSet = field(default_factory=PinSet)

    def plan_save(self, block_tokens: int, prompt_tokens: int, fine: bool) -> tuple[int, bool] | None:
        """(save boundary in tokens, publish the partial tail), None for nothing to save.

        Only whole scheduler blocks are saved, each boundary once; the tail once,
        with the step that first covers the prompt.
        """
        boundary = min(self.token_len, self.most) // block_tokens * block_tokens
        publish = fine and not self.tail_sent and 0 < prompt_tokens <= min(self.token_len, self.most)
        if boundary <= self.saved and not publish:
            return None
        self.saved = max(self.saved, boundary)
        self.tail_sent |= publish
        return boundary, publish

    def next_save(self, block_tokens: int, prompt_tokens: int, fine: bool) -> int | None:
        """The tokens with which ``plan_save`` has something to save again, None for never."""
        tokens = (self.saved // block_tokens + 1) * block_tokens
        if fine and not self.tail_sent:
            tokens = min(tokens, prompt_tokens)
        return tokens if tokens <= self.most else None


@dataclass(slots=True)
class Entry:
    """A request that vLLM has asked about and not finished."""

    request: Any
    wishes: Wishes = NO_WISHES
    label: Label = ("", 0, 0)
    """What the request's chunks are stored with."""
    load: LoadPlan | None = None
    tracker: Tracker | None = None
    failed: bool = False
    """A load of it failed: it is computed instead, lookups answer 0 until it has been scheduled."""
    loading: bool = False
    """A load of it was sent, and it has not been scheduled since."""
    brought: tuple[int, int] = (0, 0)
    """(era, tokens) that the ranks will all have saved when that load is over and none of it failed."""
    outdated: bool = False
    """It ran or loaded at a reset: until it is preempted it stands on blocks of before, and is not saved."""
    asked: bool = False
    """A lookup may have been granted a lease."""
