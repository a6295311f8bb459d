"""Asking mooncake-lookupd how much of a request is stored.

Only this may hold up the scheduler, and only until its deadline. After one
missed deadline the client is *down*: it answers 0 at once, without asking,
until a background thread has had a ping answered (``registrar``).
"""

import logging
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mooncake_sidecar.channel import MAX_FRAMES, NO, YES, Channel, ChannelError, pack_message
from mooncake_sidecar.ids import wire_id
from mooncake_sidecar.question import Question, usable_stride

logger = logging.getLogger("vllm.mooncake_sidecar.lookup")

_U32, _U64 = struct.Struct(">I"), struct.Struct(">Q")
_PAIR = struct.Struct(">II")
_TRAILER = struct.Struct(">QB")
_TIER = struct.Struct(">BI")
_MAX_TIERS = 16
_PENDING, _MORE, _SHOW, _LASTING = 1, 2, 4, 8
_SEGMENT_SHIFT = 32
"""A generation's upper bits name the segment that it is of."""
_MAX_TAILS = 64
_MAX_RELEASES = 1 << 16
_MAX_UNSHOWN = 64
_SHOWN_A_STEP = 1 << 14
"""Hashes that are shown in one step, about: what is left of them waits for the next."""
ASYNC_DEADLINE_S = 1.0
_WAIT_SHARE = 0.4
"""A step begins no lookup when it has waited for this part of the deadline: lookupd may take half of it for each."""
# More than the two seconds that lookupd gives its disk to take note.
RESET_DEADLINE_S = 2.5


@dataclass(frozen=True, slots=True)
class Hit:
    """A lookup's answer: tokens that can be loaded, and the boundary that keys
    the last chunk of some groups, as (store group, tokens)."""

    tokens: int
    tails: tuple[tuple[int, int], ...] = ()
    tiers: tuple[tuple[int, int], ...] = ()
    """The hit by tier, as (tier, tokens) from its first token on; empty: all in host memory."""
    lasting: bool = field(default=False, compare=False)
    """All of it is in memory and has no deadline: to offer it for storing again would change nothing."""


MISS = Hit(0)


@dataclass(slots=True)
class LookupCounters:
    """What has happened since the start."""

    lookups: int = 0
    timeouts: int = 0
    skipped: int = 0
    """Answered 0 without asking."""
    malformed: int = 0


def decode_answer(payload: bytes, tiers: bytes = b"", lasting: bool = False) -> Hit:
    """Parse the in-tree reply: u32 tokens, then (u32 group, u32 tokens) pairs; and what follows the status's flags.

    Args:
        lasting: what a flag of the status says.

    Raises:
        ValueError: any other length; the single byte 00 is the server's error.
    """
    if len(payload) < 4 or (len(payload) - 4) % _PAIR.size or len(payload) > 4 + _MAX_TAILS * _PAIR.size:
        raise ValueError(f"a lookup reply of {len(payload)} bytes")
    if len(tiers) % _TIER.size or len(tiers) > _MAX_TIERS * _TIER.size:
        raise ValueError(f"a lookup reply with {len(tiers)} bytes of tiers")
    return Hit(
        _U32.unpack_from(payload)[0],
        tuple(_PAIR.iter_unpack(payload[4:])),
        tuple(_TIER.iter_unpack(tiers)),
        lasting,
    )


def _is_reset(frames: list[bytes]) -> bool:
    """Whether it is an answer to a reset2."""
    return frames == NO or (len(frames) == 2 and frames[:1] == YES and len(frames[1]) == _U64.size)


@dataclass(slots=True)
class _Asked:
    sequence: int
    question: Question
    began: float
    """When the request was first asked about."""
    asked: float
    """When this question was sent."""
    hit: Hit | None = None
    again: bool = False
    """It was answered with pending."""


class LookupClient:
    """Used by the scheduler's thread, except for ``mark_up``, ``mark_down`` and ``heard``."""

    def __init__(
        self,
        timeout_ms: int,
        asynchronous: bool,
        clock: Callable[[], float] = time.monotonic,
        record: Callable[[float, int, bool], None] = lambda seconds, tokens, answered: None,
    ) -> None:
        """Args:
        record: takes each lookup's duration, the tokens it asked about, and whether it was answered.
        """
        self._record = record
        self._timeout_s = timeout_ms / 1000
        self._clock = clock
        self._waited_s = 0.0
        self._asynchronous = asynchronous
        self._channel: Channel | None = None
        self._handover = threading.Lock()
        self._offered: tuple[Channel, int] | None = None
        """Answers pings, and the scheduler's thread has not taken it yet; with its stride. Guarded by ``_handover``."""
        self._stride = 0
        """How few hashes the channel's server needs to be given, see ``Question``."""
        self._unshown: deque[Question] = deque(maxlen=_MAX_UNSHOWN)
        """What the server wants to see, of the steps before."""
        self._answered_now: list[Question] = []
        """What it wants to see of this step: these requests are waited for."""
        self._releases: deque[str] = deque(maxlen=_MAX_RELEASES)
        self._up = threading.Event()
        self.on_down = lambda: None
        self.generation: int | None = None
        """Of the namespace, the newest that lookupd has told of; written under ``_handover``, read without."""
        self._sequence = 0
        self._asked: dict[str, _Asked] = {}
        self._by_sequence: dict[int, str] = {}
        self._underway: deque[int] = deque()
        """Sequences of the questions on the channel that are unanswered, also those that nobody waits for any more."""
        self.counters = LookupCounters()

    @property
    def patience(self) -> tuple[bool, int]:
        """Whether it asks again while an answer is pending, and for how many milliseconds it waits for one otherwise."""
        return self._asynchronous, round(self._timeout_s * 1000)

    @property
    def up(self) -> bool:
        """Whether lookups are asked at all."""
        return self._up.is_set()

    def mark_up(self, channel: Channel, stride: int = 0) -> None:
        """From the background thread: the server has answered a ping on ``channel``, which is the client's now.

        Args:
            stride: the server's ``lookup_stride``.
        """
        with self._handover:
            stale, self._offered = self._offered, (channel, usable_stride(stride))
        if stale is not None:
            stale[0].close()
        self._up.set()

    def heard(self, generation: int) -> None:
        """From any thread: lookupd has told of a generation of the namespace. An older one of the same segment is late news."""
        with self._handover:
            known = self.generation
            if known is None or known >> _SEGMENT_SHIFT != generation >> _SEGMENT_SHIFT or generation > known:
                self.generation = generation

    def mark_down(self) -> None:
        """Stop asking. Safe from any thread."""
        if self._up.is_set():
            self._up.clear()
            self.on_down()

    def ask(self, request_id: str, num_tokens: int, hashes: Sequence[bytes]) -> Hit | None:
        """How much of the request is stored; None: not known yet, ask again next step.

        A synchronous client answers None when what is left of the step's deadline
        is less than an answer may take, so that many slow ones do not hold it up.
        """
        if not self._up.is_set():
            self.counters.skipped += 1
            self._forget(request_id)
            return MISS
        try:
            if self._asynchronous:
                return self._poll(request_id, num_tokens, hashes)
            if self._waited_s > self._timeout_s * _WAIT_SHARE:
                return None
            return self._wait(request_id, num_tokens, hashes)
        except ChannelError as error:
            self._fail(f"lookup failed: {error}")
            return MISS

    def new_step(self) -> None:
        """The scheduler's step is over: the next one may wait again."""
        self._waited_s = 0.0
        if self._unshown:
            self._show()
        if self._answered_now:
            self._unshown.extend(self._answered_now)
            self._answered_now.clear()

    def discard(self, request_id: str) -> None:
        """Forget a request that has ended."""
        if self._asked:
            self._forget(request_id)

    def release(self, request_ids: Sequence[str]) -> None:
        """Have requests' leases released. Does not wait; may be dropped, leases run out by themselves."""
        self._releases.extend(map(wire_id, request_ids))
        if self._up.is_set():
            try:
                self._send_releases(self._open())
            except ChannelError as error:
                self._fail(f"release failed: {error}")

    def reset(self) -> bool:
        """Have the namespace's chunks dropped; False when that is not certain within the deadline.

        ``generation`` is at least the one that this has begun, then.
        Answers to what was asked before count no more, those under way included.
        The engine's core waits here, for RESET_DEADLINE_S at most.
        """
        self._asked.clear()
        self._by_sequence.clear()
        if not self._up.is_set():
            return False
        try:
            channel = self._open()
            channel.send(pack_message([b"reset2"]))
            answer = channel.await_answer(RESET_DEADLINE_S, _is_reset, behind=len(self._underway))
            self._underway.clear()
            if answer is not None and answer != NO:
                self.heard(_U64.unpack(answer[1])[0])
                return True
            late = f"reset was not answered within {RESET_DEADLINE_S:g} s"
            reason = late if answer is None else "reset was refused"
        except ChannelError as error:
            reason = f"reset failed: {error}"
        # With this channel goes what may still come on it: a late answer would be
        # taken for that of another reset.
        self._fail(reason)
        return False

    def close(self) -> None:
        """Close the channels; no thread may be using the client."""
        self._up.clear()
        self._take_offered()
        self._drop_channel()

    def _open(self) -> Channel:
        if self._offered is not None:
            self._take_offered()
            self._send_releases(self._channel)
        if self._channel is None:
            raise ChannelError("the channel is closed")
        return self._channel

    def _take_offered(self) -> None:
        with self._handover:
            fresh, self._offered = self._offered, None
        if fresh is not None:
            # After an outage always a new one: what was asked on the old one is lost.
            self._drop_channel()
            self._channel, self._stride = fresh

    def _drop_channel(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        self._asked.clear()
        self._by_sequence.clear()
        self._underway.clear()
        self._unshown.clear()
        self._answered_now.clear()

    def _send_releases(self, channel: Channel) -> None:
        while self._releases:
            batch = [self._releases.popleft() for _ in range(min(len(self._releases), MAX_FRAMES - 1))]
            channel.send(pack_message([b"release", *(name.encode() for name in batch)]))

    def _show(self) -> None:
        """Show the server what it wants to see of requests that are not waited for any more."""
        hashes = 0
        try:
            channel = self._open()  # with a new one nothing is left to be shown: who wanted to see it is gone
            while self._unshown and hashes < _SHOWN_A_STEP:
                question = self._unshown.popleft()
                if question.whole:
                    hashes += len(question)
                    channel.send(question.shown())
        except ChannelError as error:
            self._fail(f"showing a lookup failed: {error}")

    def _send(self, channel: Channel, request_id: str, question: Question, began: float, asked: float) -> _Asked:
        self._forget(request_id)
        self.counters.lookups += 1
        entry = self._asked[request_id] = _Asked(0, question, began, asked)
        self._send_question(channel, request_id, entry)
        return entry

    def _send_question(self, channel: Channel, request_id: str, entry: _Asked) -> None:
        """Send what its question asks now."""
        self._by_sequence.pop(entry.sequence, None)
        self._sequence = entry.sequence = self._sequence + 1
        channel.send(*entry.question.message(entry.sequence))
        self._by_sequence[entry.sequence] = request_id
        self._underway.append(entry.sequence)

    def _wait(self, request_id: str, num_tokens: int, hashes: Sequence[bytes]) -> Hit:
        began = self._clock()
        # A step waits for all of its lookups together no longer than for one.
        deadline = began + self._timeout_s - self._waited_s
        try:
            channel = self._open()
            question = Question(request_id, num_tokens, hashes, self._stride)
            entry = self._send(channel, request_id, question, began, began)
            while entry.hit is None and not entry.again:
                left = deadline - self._clock()
                if left <= 0:
                    self._late(entry)
                    self._fail(f"lookup was not answered within {self._timeout_s * 1000:.0f} ms")
                    return MISS
                self._drain(channel, left)
        finally:
            self._waited_s += self._clock() - began
        self._forget(request_id)
        return entry.hit or MISS

    def _poll(self, request_id: str, num_tokens: int, hashes: Sequence[bytes]) -> Hit | None:
        now = self._clock()
        channel = self._open()
        entry = self._asked.get(request_id)
        if entry is None:
            # With all hashes: nobody waits for it, and asking again would take a step.
            self._send(channel, request_id, Question(request_id, num_tokens, hashes), now, now)
            return None
        self._drain(channel)
        if entry.hit is not None:
            self._forget(request_id)
            return entry.hit
        if entry.again:
            # The server lives, the answer is only far away. Steps may be long: it is
            # given up when a question of after the deadline was answered so.
            if entry.asked < entry.began + ASYNC_DEADLINE_S:
                self._send(channel, request_id, Question(request_id, num_tokens, hashes), entry.began, now)
                return None
            self._late(entry)
            self._forget(request_id)
            return MISS
        if now >= entry.asked + ASYNC_DEADLINE_S:
            self._late(entry)
            self._fail(f"lookup was not answered within {ASYNC_DEADLINE_S * 1000:.0f} ms")
            return MISS
        return None

    def _late(self, entry: _Asked) -> None:
        self.counters.timeouts += 1
        self._record(self._clock() - entry.began, entry.question.tokens, False)

    def _answered(self, entry: _Asked, hit: Hit, well: bool) -> None:
        entry.hit = hit
        self._record(self._clock() - entry.began, entry.question.tokens, well)

    def _drain(self, channel: Channel, seconds: float = 0.0) -> None:
        """Take in every answer that has come, or comes in that time; answers nobody waits for are dropped."""
        for frames in channel.receive(seconds):
            if len(frames) != 2 or len(frames[1]) < _TRAILER.size:
                self.counters.malformed += 1
                if frames == NO and self._underway:
                    # It does not say to what, but questions are answered in order.
                    self._refused(self._underway.popleft())
                continue
            sequence, flags = _TRAILER.unpack_from(frames[1])
            if sequence in self._underway:
                while self._underway.popleft() != sequence:
                    pass
            entry = self._waiting(sequence)
            if entry is None:
                continue
            if flags & _PENDING:
                entry.again = True
                continue
            try:
                if flags & _MORE:
                    entry.question.widen(frames[0])
                    self._send_question(channel, self._by_sequence[sequence], entry)
                    continue
                tiers, lasting = frames[1][_TRAILER.size :], bool(flags & _LASTING)
                self._answered(entry, decode_answer(frames[0], tiers, lasting), True)
                if flags & _SHOW and entry.question.sparse:
                    self._answered_now.append(entry.question)
            except ValueError:
                self.counters.malformed += 1
                self._answered(entry, MISS, False)

    def _waiting(self, sequence: int) -> _Asked | None:
        """What waits for the answer to a question, None if that was discarded."""
        entry = self._asked.get(self._by_sequence.get(sequence, ""))
        return entry if entry is not None and entry.sequence == sequence else None

    def _refused(self, sequence: int) -> None:
        """The server could not serve a question."""
        entry = self._waiting(sequence)
        if entry is not None and entry.hit is None and not entry.again:
            self._answered(entry, MISS, False)

    def _forget(self, request_id: str) -> None:
        entry = self._asked.pop(request_id, None)
        if entry is not None:
            self._by_sequence.pop(entry.sequence, None)

    def _fail(self, reason: str) -> None:
        if self._up.is_set():
            logger.warning("%s: going on without the KV store until it answers", reason)
        self._drop_channel()
        self.mark_down()
