"""What a step saves: which requests came to a boundary, and their store jobs.

Nothing here loops over blocks in Python beyond what is new in a step, nor over
requests that only decode (``growth``).
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from mooncake_sidecar.batch import NO_LIMIT, StoreBatch
from mooncake_sidecar.growth import Growth
from mooncake_sidecar.jobs import JobCommand, Numbering
from mooncake_sidecar.namespace import Geometry
from mooncake_sidecar.pins import NULL_BLOCK, PinLedger
from mooncake_sidecar.states import StateRules
from mooncake_sidecar.tables import NO_BLOCKS, BlockTable, BlockTables, Span
from mooncake_sidecar.tails import BoundaryPut, TailPlanner
from mooncake_sidecar.tracker import Entry, LoadPlan, Tracker
from mooncake_sidecar.wishes import MAX_TOKENS

logger = logging.getLogger("vllm.mooncake_sidecar.saving")

# Kinds of groups of which a hit is every chunk of its prefix.
WHOLE = frozenset(("full_attention", "mla_attention"))


class Saver:
    """The saving half of the scheduler role; used by its thread."""

    def __init__(
        self,
        geometry: Geometry,
        pins: PinLedger,
        numbers: Numbering,
        *,
        prefills: bool,
        decodes: bool,
        states: StateRules | None = None,
    ) -> None:
        """Args:
        prefills: save prefills (producer or both).
        decodes: save what decoding completes, in any role.
        states: which recurrent states to trust, None for all that are offered.
        """
        self._geometry = geometry
        self._block = geometry.spec.scheduler_block_tokens
        self._hash = geometry.spec.hash_block_tokens
        self._block_tokens = geometry.block_tokens
        self._fine = geometry.fine
        # (group in the engine, tokens of a block; 0: recurrent state, stored from boundary puts alone)
        self._groups = [
            (engine, 0 if store in geometry.mamba_groups else tokens)
            for store, (engine, tokens) in enumerate(zip(geometry.store_group_ids, geometry.block_tokens, strict=True))
        ]
        self._whole = all(group.kind in WHOLE for group in geometry.spec.groups)
        self._no_tables = [(0, b"")] * len(self._groups)
        self._planner = TailPlanner.of(geometry)
        self._store_group = {engine: store for store, engine in enumerate(geometry.store_group_ids)}
        self._pins = pins
        self._numbers = numbers
        self._prefills = prefills
        self._decodes = decodes
        self._states = states
        self._growth = Growth()
        self._plans: dict[str, tuple[int, bool]] = {}
        self._batch: StoreBatch | None = None
        """The job that is being put together; between steps it has tails that were finished with their requests."""
        self._ready: list[JobCommand] = []
        """Jobs of the next step that are full."""
        self._late: set[str] = set()

    @property
    def late(self) -> set[str]:
        """Requests of which something is sent with the next step although they have ended."""
        return self._late

    @property
    def pending(self) -> bool:
        """A job waits for the next step."""
        return self._batch is not None or bool(self._ready)

    def drop(self) -> None:
        """What waits for the next step is not sent: the namespace was reset after it was computed."""
        for command in self._ready:
            self._pins.drop(command.job)
        if self._batch is not None:
            self._pins.drop(self._batch.job)
        self._batch, self._ready, self._late = None, [], set()

    def brought(self, plan: LoadPlan) -> tuple[int, int]:
        """(era, tokens) that need not be offered once all of a load has succeeded: it came from there.

        That holds for what the lookup found beside it too, in front of the load, where a hit is all chunks
        of its prefix. A window's or a state's hit is only the last of them: the engine may have others.
        """
        if not plan.lasting or (plan.local_tokens and not self._whole):
            return (0, 0)
        return self._pins.era, plan.token_len // self._block * self._block

    def begin(self, entry: Entry, computed: int, prefill_end: int) -> None:
        """The request runs, for the first time or again.

        Args:
            computed: tokens at the end of this step.
        """
        most = entry.wishes.max_offload_tokens
        aligned = self._states is None or self._states.aligned()
        if entry.outdated or self._numbers.generation is None or not aligned:
            most = 0
        entry.tracker = Tracker(computed, prefill_end, MAX_TOKENS if most is None else most)
        entry.tracker.pins.saved = entry.brought
        entry.tracker.saved = self._pins.saved(entry.tracker.pins)
        if self._prefills:
            self._plan(entry)
        if self._prefills or self._decodes:
            self._watch(entry, computed)

    def end(self, entry: Entry) -> None:
        """What the run computes from here on is not saved; what is under way of it goes on."""
        entry.tracker.most = 0
        self._growth.forget(entry.request.request_id)

    def forget(self, request_id: str) -> None:
        """The request was preempted or has ended."""
        self._growth.forget(request_id)

    def advance(self, scheduled: Mapping[str, int]) -> None:
        """Plan for the requests that go on from an earlier step."""
        if not self._growth:
            return
        for request_id, entry in self._growth.due(scheduled):
            request, tracker = entry.request, entry.tracker
            computed = request.num_computed_tokens
            scheduled_to = computed + scheduled[request_id]
            # Tokens that exist: drafts are scheduled but may be rejected.
            tracker.token_len = max(tracker.token_len, min(scheduled_to, request.num_tokens))
            if self._prefills or computed >= tracker.prefill_end:
                self._plan(entry)
            self._watch(entry, scheduled_to)

    def jobs(self, entries: Mapping[str, Entry], state: Any, scheduled: Mapping[str, int]) -> list[JobCommand]:
        """This step's store jobs.

        Args:
            state: vLLM's current block tables and the states it hands off; may be None.
        """
        offers = state is not None and state.boundary_state_offloads
        puts = self._handed_off(entries, state, scheduled) if offers else {}
        plans, self._plans = self._plans, {}
        for request_id in puts:
            plans.setdefault(request_id, (0, False))
        if plans:
            tables = BlockTables(state, self._pins.blocks)
            for request_id, (boundary, publish) in plans.items():
                self._store(entries[request_id], boundary, publish, puts.get(request_id, []), tables, scheduled)
            self._pins.hold()
        if self._batch is None:
            return []
        found = [*self._ready, self._packed(self._batch)]
        self._batch, self._ready, self._late = None, [], set()
        return found

    def finished_tail(
        self,
        entry: Entry,
        tables: Sequence[Sequence[int]],
        offloads: Sequence[tuple[int, int, int]],
    ) -> None:
        """Save a tail that was finished with its request, with the next step."""
        request, tracker = entry.request, entry.tracker
        if not self._prefills or tracker is None:
            return
        puts = [
            (self._store_group.get(group, -1), block, tokens)
            for group, block, tokens in offloads
            if block != NULL_BLOCK and tokens <= min(tracker.prefill_end, tracker.most)
        ]
        usable = len(puts) == len(offloads) and len({tokens for _, _, tokens in puts}) == 1
        if not usable or any(group not in self._geometry.mamba_groups for group, _, _ in puts):
            return
        own = [list(tables[group]) for group in self._geometry.store_group_ids]
        puts = self._with_tail(tracker, request, own, puts, request.num_computed_tokens, False)
        self._emit(entry, 0, request.num_computed_tokens, None, puts)
        self._pins.hold()
        self._late.add(request.request_id)

    # ---- parts ----

    def _plan(self, entry: Entry) -> None:
        plan = entry.tracker.plan_save(self._block, entry.request.num_prompt_tokens, self._fine)
        if plan is not None:
            self._plans[entry.request.request_id] = plan

    def _watch(self, entry: Entry, scheduled_to: int) -> None:
        tracker, request_id = entry.tracker, entry.request.request_id
        boundary = tracker.next_save(self._block, entry.request.num_prompt_tokens, self._fine)
        if tracker.most == 0:
            self._growth.forget(request_id)
        elif tracker.token_len < tracker.prefill_end:
            self._growth.watch_prefill(request_id, entry)
        elif self._decodes and boundary is not None:
            self._growth.watch_decode(request_id, entry, scheduled_to, boundary)
        else:
            self._growth.forget(request_id)

    def _handed_off(
        self, entries: Mapping[str, Entry], state: Any, scheduled: Mapping[str, int]
    ) -> dict[str, list[BoundaryPut]]:
        """Recurrent states at exact boundaries that the core offers this step."""
        accepted: dict[str, list[BoundaryPut]] = {}
        if not self._prefills:
            return accepted
        for request_id, offers in state.boundary_state_offloads.items():
            entry = entries.get(request_id)
            if entry is None or entry.tracker is None:
                continue
            last = min(entry.tracker.prefill_end, entry.tracker.most)
            start = entry.request.num_computed_tokens
            end = start + (scheduled.get(request_id) or 0)
            puts = [
                (self._store_group[group], block, tokens)
                for group, block, tokens in offers
                if block != NULL_BLOCK
                and tokens <= last
                and self._store_group.get(group, -1) in self._geometry.mamba_groups
                and (self._states is None or self._states.right(tokens, start, end))
            ]
            if puts:
                accepted[request_id] = puts
        return accepted

    def _with_tail(
        self,
        tracker: Tracker,
        request: Any,
        own: Sequence[Sequence[int]],
        state_puts: list[BoundaryPut],
        completed: int,
        publish: bool,
    ) -> list[BoundaryPut]:
        """The states' puts, and before them those of the other groups that make a hit there; all of these or none."""
        tail = self._planner.puts(
            own, state_puts, request.num_prompt_tokens, completed, len(request.block_hashes), publish
        )
        if any(tokens > tracker.most for _, _, tokens in tail):
            return state_puts
        return [*tail, *state_puts]

    def _store(
        self,
        entry: Entry,
        boundary: int,
        publish: bool,
        state_puts: list[BoundaryPut],
        tables: BlockTables,
        scheduled: Mapping[str, int],
    ) -> None:
        tracker, request = entry.tracker, entry.request
        table = tables.of(request.request_id)
        if table is None:
            logger.debug("no block table for request %s: not saved", request.request_id)
            return
        puts = state_puts
        if state_puts and (now := scheduled.get(request.request_id)):  # it need not have been due
            tracker.token_len = max(tracker.token_len, min(request.num_computed_tokens + now, request.num_tokens))
        if publish or state_puts:
            own = [table.ids(group) for group, _ in self._groups]
            puts = self._with_tail(tracker, request, own, state_puts, tracker.token_len, publish)
        if boundary or puts:
            self._emit(entry, boundary, tracker.token_len, table, puts)

    def _emit(
        self, entry: Entry, token_len: int, completed: int, table: BlockTable | None, puts: list[BoundaryPut]
    ) -> None:
        """Add a part to the step's job, and hold its blocks.

        Args:
            token_len: the save boundary, 0 for boundary puts alone.
            table: the request's current blocks; unread without a boundary.
        """
        request, tracker, batch = entry.request, entry.tracker, self._open()
        # Chunks of the part begin at ``start`` at the earliest, and their keys reach to ``reach``.
        start, reach = MAX_TOKENS, token_len
        for group, _, tokens in puts:
            size = self._block_tokens[group]
            start, reach = min(start, (tokens - 1) // size * size), max(reach, tokens)
        spans: list[Span] | None = None
        if token_len:
            # Ranks may go back to where their last success was, but not behind
            # what all of them have: that is not named again.
            spans, saved = [], self._pins.saved(tracker.pins)
            for group, tokens in self._groups:
                if tokens:
                    first = saved // tokens
                    spans.append(table.span(group, first, -(-token_len // tokens)))
                    start = min(start, first * tokens)
                else:
                    spans.append(NO_BLOCKS)
        self._pins.take(tracker.pins, batch.job, spans, [block for _, block, _ in puts], token_len)
        first_hash = max(0, start // self._hash - 1)  # a chunk's parent comes with it
        most = entry.wishes.max_offload_tokens
        batch.add(
            request.request_id,
            (token_len, completed, request.num_prompt_tokens, tracker.prefill_end),
            NO_LIMIT if most is None else most,
            entry.label,
            first_hash,
            request.block_hashes[first_hash : -(-reach // self._hash)],
            [(span.first, span.ids) for span in spans] if spans else self._no_tables,
            puts,
        )

    def _packed(self, batch: StoreBatch) -> JobCommand:
        """The complete job. What was begun in one generation is dropped with it, so all is of the present one."""
        numbers = self._numbers
        assert numbers.generation is not None, "a run that began without a generation is not saved"
        return batch.command(numbers.epoch, numbers.generation)

    def _open(self) -> StoreBatch:
        """The job that takes the next part."""
        if self._batch is not None and self._batch.full:
            self._ready.append(self._packed(self._batch))
            self._batch = None
        if self._batch is None:
            self._batch = StoreBatch(self._numbers.take(), len(self._block_tokens))
        return self._batch
