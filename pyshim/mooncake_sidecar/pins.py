"""Holding blocks while a store job may read them.

A store job outlives the step that made it, and may outlive its request. Each
block it may read carries one reference of the connector's from the first such
job until every rank has acknowledged the last one.

What every rank has saved need not be read again: later jobs of the request name,
and hold, only what lies behind. So a job costs what is new in it, however long
the request is, and a preempted request gives its blocks back.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from mooncake_sidecar.jobs import ALL_PARTS, block_ids
from mooncake_sidecar.tables import Span

NULL_BLOCK = 0


class _Held:
    """The blocks of one store group that are held for a run."""

    __slots__ = ("blocks", "ids")

    def __init__(self, span: Span) -> None:
        """Args:
        span: the group's table at the last job that named one.
        """
        self.ids = span.ids
        self.blocks = list(span.real())


class PinSet:
    """The blocks held for one run of a request (from its start or resumption).

    INVARIANT: every block in ``groups`` or ``leaving`` carries exactly one
    reference for each time it stands there; without outstanding jobs both are empty.
    """

    __slots__ = ("groups", "jobs", "leaving", "saved")

    def __init__(self) -> None:
        self.jobs: dict[int, None] = {}
        """Outstanding jobs, oldest first."""
        self.groups: list[_Held] = []
        """By store group, what the last job that named tables may read."""
        self.leaving: deque[tuple[int, Sequence[Any]]] = deque()
        """(last job that may read them, blocks) that stand in no table of the last job."""
        self.saved = (0, 0)
        """(era, tokens) that every rank has saved without a hole."""


@dataclass(slots=True)
class _Taken:
    """A job that some rank has not acknowledged."""

    ranks: int
    parts: list[tuple[PinSet, tuple[int, int]]] = field(default_factory=list)
    """By part: the run, and (era, tokens) that it will have saved."""
    lost: set[int] = field(default_factory=set)
    """Parts that some rank has not saved."""


class PinLedger:
    """All references that jobs hold. Used by the scheduler's thread only."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._pool: Any = None
        self._jobs: dict[int, _Taken] = {}
        self._fresh: list[Any] = []
        """Blocks that were taken and carry no reference of ours yet."""
        self.era = 0
        """Grows whenever what was saved may be gone."""

    def bind(self, pool: Any) -> None:
        """Set vLLM's block pool, before the first job."""
        self._pool = pool

    def __len__(self) -> int:
        """Jobs that some rank has not acknowledged."""
        return len(self._jobs)

    def saved(self, pins: PinSet) -> int:
        """Tokens of the run that need not be offered again."""
        era, tokens = pins.saved
        return tokens if era == self.era else 0

    def new_era(self) -> None:
        """A rank has lost or changed its daemon: what was saved is to be offered again."""
        self.era += 1

    def blocks(self) -> Sequence[Any]:
        """All of vLLM's blocks, by id."""
        return self._pool.blocks

    def take(
        self,
        pins: PinSet,
        job: int,
        spans: Sequence[Span] | None,
        extra: Sequence[int] = (),
        token_len: int = 0,
    ) -> None:
        """Hold, for the next part of ``job``, every non-null block of ``spans`` and ``extra``.

        REQUIRES: ``hold`` before vLLM can free any of them.

        Args:
            spans: by store group, the blocks that the part may read; None: no table is named.
            extra: ids of single blocks that it also reads.
            token_len: what the run will have saved if every rank does all of the job.

        Cost is that of the blocks that are new since the request's last
        outstanding job, as long as tables only grow.
        """
        fresh = self._fresh
        if spans is not None:
            if not pins.groups:
                pins.groups = [_Held(span) for span in spans]
                for held in pins.groups:
                    fresh += held.blocks
            else:
                for held, span in zip(pins.groups, spans, strict=True):
                    self._follow(pins, held, span)
        pins.jobs[job] = None
        if extra:
            single = [self._pool.blocks[block] for block in extra if block != NULL_BLOCK]
            pins.leaving.append((job, single))
            fresh += single
        taken = self._jobs.get(job)
        if taken is None:
            taken = self._jobs[job] = _Taken(self._ranks)
        taken.parts.append((pins, (self.era, token_len)))

    def hold(self) -> None:
        """Take the references for what ``take`` was told of: once for all that a step adds to its jobs."""
        if self._fresh:
            fresh, self._fresh = self._fresh, []
            self._pool.touch(fresh)

    def acknowledge(self, job: int, ranks: int = 1, lost: Iterable[int] = ()) -> None:
        """``ranks`` more ranks are through with the job, and have saved all but the parts in ``lost``.

        An unknown job is ignored.
        """
        taken = self._jobs.get(job)
        if taken is None:
            return
        taken.lost.update(lost)
        taken.ranks -= ranks
        if taken.ranks > 0:
            return
        del self._jobs[job]
        every = ALL_PARTS in taken.lost
        gone: list[Any] = []
        for part, (pins, reached) in enumerate(taken.parts):
            if not every and part not in taken.lost:
                pins.saved = max(pins.saved, reached)
            self._let_go(pins, job, gone)
        if gone:
            self._free(gone)

    def drop(self, job: int) -> None:
        """The job is not sent."""
        self.acknowledge(job, self._ranks, (ALL_PARTS,))

    def _let_go(self, pins: PinSet, job: int, gone: list[Any]) -> None:
        """The run's job is over: what no other holds is added to ``gone``.

        Last first, as vLLM frees: the shared beginning of a prefix is to be evicted last.
        """
        pins.jobs.pop(job, None)
        oldest = next(iter(pins.jobs), None)
        while pins.leaving and (oldest is None or pins.leaving[0][0] < oldest):
            gone += reversed(pins.leaving.popleft()[1])
        if oldest is None:
            for held in reversed(pins.groups):
                gone += reversed(held.blocks)
            pins.groups = []

    def _follow(self, pins: PinSet, held: _Held, span: Span) -> None:
        """A group's table has grown or changed since the run's last job."""
        if span.ids.startswith(held.ids):
            new = span.real(after=len(held.ids) // 4)
            held.blocks += new
        else:
            # A window moved on, a block was copied, or the table begins behind what was
            # saved meanwhile: what it has lost goes with the last job that named it.
            current = set(block_ids(span.ids))
            gone = [block for block in held.blocks if block.block_id not in current]
            if gone:
                pins.leaving.append((next(reversed(pins.jobs)), gone))
                held.blocks = [block for block in held.blocks if block.block_id in current]
            known = {block.block_id for block in held.blocks}
            new = [block for block in span.real() if block.block_id not in known]
            held.blocks += new
        held.ids = span.ids
        self._fresh += new

    def _free(self, blocks: list[Any]) -> None:
        """Give references back. A block that several runs held stands there as often."""
        self._pool.free_blocks(blocks)
