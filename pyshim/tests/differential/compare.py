"""Holding the two connectors against each other after every step."""

from collections import defaultdict

from sent import stores

from mooncake_sidecar.jobs import block_ids

from . import rules
from .ranks import PairedJob
from .records import our_load, our_save, their_load, their_save


class Comparison:
    """Pairs the jobs of a step and checks what is held."""

    def __init__(self, pair, ranks):
        self._pair = pair
        self._notes = pair.notes
        self._geometry = pair.ours._geometry
        self._sizes = self._geometry.block_tokens
        self._attention = [g for g in range(len(self._sizes)) if g not in self._geometry.mamba_groups]
        self._ranks = ranks
        self._runs: dict[str, int] = defaultdict(int)
        self._outstanding: list[PairedJob] = []
        self._read_by_run: dict[tuple[str, int], set[int]] = defaultdict(set)
        """Blocks that some job of a run with outstanding jobs may read, or might have."""
        self._late: set[str] = set()
        self._under_way: set[str] = set()
        """Requests that have loaded or run since their start or last preemption."""
        self._ended: set[str] = set()
        """Those of them that a reset has overtaken."""

    # ---- a step's jobs ----

    def step(self, output, metadata):
        """Compare one step's metadata. Returns (loads as pairs, paired store jobs)."""
        commands = metadata.ours.commands
        preempted = set(output.preempted_req_ids or ())
        assert set(commands.preempted) == preempted
        for request in preempted:
            self._runs[request] += 1
        self._under_way -= preempted
        self._ended -= preempted
        self._retirement(commands, output)
        loads = self._loads(commands, metadata.theirs)
        self._under_way |= loads.keys() | output.num_scheduled_tokens.keys()
        return loads, self._saves(commands, metadata.theirs)

    def reset(self):
        """The namespace was reset, after the last step was scheduled."""
        self._ended |= self._under_way

    def _retirement(self, commands, output):
        late = {part.request for part in stores(commands.stores)} & set(output.finished_req_ids)
        if late:
            self._notes.used[rules.LATE_RETIREMENT] += len(late)
        assert set(commands.finished) == self._late | (set(output.finished_req_ids) - late)
        self._late = late

    def _loads(self, commands, theirs):
        mine = {command.request: (our_load(command), command) for command in commands.loads}
        other = {m.req_id: their_load(m, self._sizes) for m in theirs.requests if m.load_spec is not None}
        assert len(mine) == len(commands.loads)
        for request, load in other.items():
            if request not in mine:
                assert request in self._notes.failed, f"only the in-tree connector loads: {load}"
                self._notes.used[rules.FAILED_LOAD] += 1
        for request, (load, command) in mine.items():
            assert load == other.get(request), f"load: ours {load}, in-tree {other.get(request)}"
            suspects = ()
            if len(self._sizes) == 1:
                size = self._sizes[0]
                suspects = load.tables[0][load.local_tokens // size : -(-load.token_len // size)]
            assert tuple(block_ids(command.suspects)) == suspects
        return other

    def _saves(self, commands, theirs):
        mine, jobs = defaultdict(list), []
        for part in stores(commands.stores):
            save = our_save(part, self._sizes, self._attention)
            mine[save.request].append(save)
        for meta in theirs.requests:
            if not meta.can_save:
                continue
            other = their_save(meta, self._sizes, self._geometry.spec.hash_block_tokens)
            same = mine[other.request]
            match = next((save for save in same if self._equal(save, other)), None)
            if other.request in self._ended:
                assert not same, f"saved though computed before a reset: {same}"
                self._notes.used[rules.ENDED_BY_RESET] += 1
            elif match is None:
                assert other.is_empty, f"save: ours {same}, in-tree {other}"
                self._notes.used[rules.EMPTY_JOB] += 1
            else:
                same.remove(match)
                self._check_tables(match, other)
            job = PairedJob(match, other, self._runs[other.request], self._ranks)
            jobs.append(job)
            self._outstanding.append(job)
            if match is not None:
                self._read_by_run[other.request, job.run] |= match.may_read(self._attention)
            self._note(other)
        left = [save for saves in mine.values() for save in saves]
        assert not left, f"saves that the in-tree connector does not make: {left}"
        return jobs

    @staticmethod
    def _equal(ours, theirs):
        fields = ("token_len", "completed", "prompt_len", "prefill_end", "puts")
        same = all(getattr(ours, name) == getattr(theirs, name) for name in fields)
        return same and ours.hashes == theirs.hashes[ours.skipped :]

    def _check_tables(self, ours, theirs):
        """Where ours names another block it is the null block, and every rank is past it."""
        for group in self._attention:
            for chunk, (mine, other) in enumerate(zip(ours.tables[group], theirs.tables[group], strict=True)):
                if mine != other:
                    assert mine == 0, f"chunk {chunk} of group {group}: ours {ours}, in-tree {theirs}"
                    self._notes.used[rules.SAVED_BY_ALL] += 1  # that it is unread is checked by the ranks

    def _note(self, save):
        seen = self._notes.seen
        if save.puts:
            seen["boundary puts"] += 1
        if save.puts and not save.token_len:
            seen["boundary puts alone"] += 1
        if any(0 in save.tables[g] for g in self._attention):
            seen["a save with null blocks"] += 1
        if save.token_len > save.prefill_end:
            seen["what was decoded is saved"] += 1
        if self._runs[save.request]:
            seen["a resumed request is saved"] += 1

    # ---- what is held between steps ----

    def held(self, done):
        """After the step's reports have arrived."""
        finished = set(map(id, done.jobs))
        self._outstanding = [job for job in self._outstanding if id(job) not in finished]
        ours, theirs = self._pair.our_pool.held, self._pair.their_pool.held
        queued = self._queued_tails()
        needed, by_runs, runs = set(queued), set(queued), set()
        for job in self._outstanding:
            if job.ours is not None:
                needed |= job.ours.may_read(self._attention)
                runs.add((job.ours.request, job.run))
        for run in list(self._read_by_run):
            if run in runs:
                by_runs |= self._read_by_run[run]
            else:
                del self._read_by_run[run]
        assert needed <= ours.keys(), f"not held though jobs may read them: {needed - ours.keys()}"
        assert needed <= theirs.keys()
        longer = ours.keys() - needed
        assert longer <= by_runs, f"held though no job may read them: {longer - by_runs}"
        self._notes.used[rules.HELD_LONGER] += len(longer)
        self._notes.used[rules.HELD_LESS] += len(theirs.keys() - ours.keys())
        waits = any(job.ours is not None for job in self._outstanding) or bool(queued)
        assert self._pair.ours.has_pending_push_work() == waits
        waits = any(job.theirs.job is not None for job in self._outstanding) or bool(self._tails())
        assert self._pair.theirs.has_pending_push_work() == waits, self._outstanding

    def _tails(self):
        """Tails that the in-tree connector sends with the next step, of requests that have ended, by request."""
        return self._pair.theirs.connector_scheduler._finished_partial_tail_metas

    def _queued_tails(self):
        """Blocks of those that ours sends, too."""
        metas = [meta for request, meta in self._tails().items() if request not in self._ended]
        return {put.block_id for meta in metas for put in meta.boundary_puts}
