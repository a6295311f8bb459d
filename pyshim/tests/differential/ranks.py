"""Made-up workers: every rank takes jobs in order, late, and fails some.

Each job is a pair, one of either connector for the same save. When a rank comes
to it, both would read the same blocks for the same chunks; that is checked
here, and that the blocks are still held then.
"""

from collections import Counter, deque
from dataclasses import dataclass, field

from .records import Save


@dataclass
class PairedJob:
    ours: Save | None
    theirs: Save
    run: int
    """Which run of the request: it ends with a preemption."""
    ranks_left: int
    retired: set[int] = field(default_factory=set)
    """Ranks that were told to forget the request before they came to the job."""


@dataclass
class Done:
    """What the ranks report after a step."""

    ours: Counter = field(default_factory=Counter)
    incomplete: dict[int, set[int]] = field(default_factory=dict)
    theirs: Counter = field(default_factory=Counter)
    jobs: list[PairedJob] = field(default_factory=list)


class Rank:
    """One worker: its queue, and per request the tokens it has saved without a hole."""

    def __init__(self, number, geometry, notes):
        self.number = number
        self._sizes = geometry.block_tokens
        self._attention = [g for g in range(len(self._sizes)) if g not in geometry.mamba_groups]
        self._notes = notes
        self._queue: deque[PairedJob] = deque()
        self._parts: Counter = Counter()
        """Our jobs' parts in the queue."""
        self._lost: set[int] = set()
        self._epoch = 0
        self._ours: dict[str, tuple[int, int]] = {}
        """Request -> (epoch, tokens)."""
        self._theirs: dict[str, int] = {}

    def __len__(self):
        return len(self._queue)

    def forget(self, requests):
        for request in requests:
            self._ours.pop(request, None)
            self._theirs.pop(request, None)
            for job in self._queue:
                if job.theirs.request == request:
                    job.retired.add(self.number)

    def take(self, job):
        self._queue.append(job)
        if job.ours is not None:
            self._epoch = max(self._epoch, job.ours.epoch)
            self._parts[job.ours.job] += 1

    def work(self, jobs, fails, our_pool, their_pool, done):
        """Go through ``jobs`` of the queue, and to the end of our job then; what is of an older epoch is not stored.

        Args:
            fails: draws whether a job fails.
        """
        epoch, within = self._epoch, False
        while self._queue and (jobs > 0 or within):
            jobs -= 1
            job = self._queue.popleft()
            complete = self.number not in job.retired and not fails()
            stale = job.ours is not None and job.ours.epoch != epoch
            if self.number not in job.retired:
                self._read(job, stale, our_pool, their_pool)
            if complete:
                self._theirs[job.theirs.request] = max(
                    job.theirs.token_len, self._theirs.get(job.theirs.request, 0)
                )
                if job.ours is not None and not stale:
                    self._ours[job.ours.request] = (epoch, max(job.ours.token_len, self._offset(job.ours)))
            else:
                self._notes.seen["a rank failed a save"] += 1
            if job.ours is not None:
                within = self._end(job.ours, complete and not stale, done)
            if job.theirs.job is not None:
                done.theirs[job.theirs.job] += 1
            job.ranks_left -= 1
            if not job.ranks_left:
                done.jobs.append(job)

    def _end(self, save, complete, done):
        """A part is done. Whether more of its job are left; with the last one the job is reported."""
        if not complete:
            self._lost.add(save.part)
        self._parts[save.job] -= 1
        if self._parts[save.job]:
            return True
        del self._parts[save.job]
        done.ours[save.job] += 1
        if self._lost:
            done.incomplete[save.job] = done.incomplete.get(save.job, set()) | self._lost
            self._lost = set()
        return False

    def _offset(self, save):
        epoch, tokens = self._ours.get(save.request, (save.epoch, 0))
        return tokens if epoch == save.epoch else 0

    def _read(self, job, stale, our_pool, their_pool):
        ours, theirs = job.ours, job.theirs
        if ours is None or stale:
            return
        start_ours, start_theirs = self._offset(ours), self._theirs.get(theirs.request, 0)
        assert start_ours == start_theirs, f"{ours}: rank {self.number} is at {start_ours}, in-tree {start_theirs}"
        for group in self._attention:
            size = self._sizes[group]
            for chunk in range(-(-start_ours // size), -(-theirs.token_len // size)):
                block, wanted = ours.tables[group][chunk], theirs.tables[group][chunk]
                assert block == wanted, (
                    f"rank {self.number} stores block {block} as chunk {chunk} of group {group}, in-tree {wanted}: "
                    f"{ours} | {theirs}"
                )
                if block:
                    self._check_held(block, our_pool, their_pool, ours)
        for _, block, _ in ours.puts:
            self._check_held(block, our_pool, their_pool, ours)

    def _check_held(self, block, our_pool, their_pool, save):
        assert our_pool.held[block], f"block {block} is read but not held: {save}"
        assert their_pool.held[block], f"the in-tree connector does not hold block {block}: {save}"
