"""Asking mooncake-lookupd how much of a request is stored.

Only this may hold up the scheduler, and only until its deadline. After one
missed deadline the client is *down*: it answers 0 at once, without asking,
until a background thread has had a ping answered (``registrar``).
"""

import logging
import struct
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import zmq

from mooncake_sidecar.ids import wire_id

logger = logging.getLogger("vllm.mooncake_sidecar.lookup")

_TAG = b"lookup2"
_U32, _U16, _U64 = struct.Struct(">I"), struct.Struct(">H"), struct.Struct(">Q")
_PAIR = struct.Struct(">II")
_TRAILER = struct.Struct(">QB")
_TIER = struct.Struct(">BI")
_MAX_TIERS = 16
_PENDING = 1
_REFUSED = b"\0"
_MAX_TAILS = 64
ASYNC_DEADLINE_S = 1.0
RESET_DEADLINE_S = 5.0


@dataclass(frozen=True, slots=True)
class Hit:
    """A lookup's answer: tokens that can be loaded, and the boundary that keys
    the last chunk of some groups, as (store group, tokens)."""

    tokens: int
    tails: tuple[tuple[int, int], ...] = ()
    tiers: tuple[tuple[int, int], ...] = ()
    """The hit by tier, as (tier, tokens) from its first token on; empty: all in host memory."""


MISS = Hit(0)


@dataclass(slots=True)
class LookupCounters:
    """What has happened since the start."""

    lookups: int = 0
    timeouts: int = 0
    skipped: int = 0
    """Answered 0 without asking."""
    malformed: int = 0


def decode_answer(payload: bytes, tiers: bytes = b"") -> Hit:
    """Parse the in-tree reply: u32 tokens, then (u32 group, u32 tokens) pairs; and what follows the status's flags.

    Raises:
        ValueError: any other length; the single byte 00 is the server's error.
    """
    if len(payload) < 4 or (len(payload) - 4) % _PAIR.size or len(payload) > 4 + _MAX_TAILS * _PAIR.size:
        raise ValueError(f"a lookup reply of {len(payload)} bytes")
    if len(tiers) % _TIER.size or len(tiers) > _MAX_TIERS * _TIER.size:
        raise ValueError(f"a lookup reply with {len(tiers)} bytes of tiers")
    return Hit(
        _U32.unpack_from(payload)[0], tuple(_PAIR.iter_unpack(payload[4:])), tuple(_TIER.iter_unpack(tiers))
    )


@dataclass(slots=True)
class _Asked:
    sequence: int
    tokens: int
    began: float
    deadline: float
    hit: Hit | None = None
    again: bool = False


class LookupClient:
    """Used by the scheduler's thread, except for ``mark_up``, ``ping`` and ``wake``."""

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
        self._context = zmq.Context()
        self._socket: zmq.Socket | None = None
        self._endpoint = ""
        self._ups = 0
        self._connected_at = 0
        self._up = threading.Event()
        self.on_down = lambda: None
        self._sequence = 0
        self._asked: dict[str, _Asked] = {}
        self._by_sequence: dict[int, str] = {}
        self.counters = LookupCounters()

    @property
    def up(self) -> bool:
        """Whether lookups are asked at all."""
        return self._up.is_set()

    def mark_up(self, path: str) -> None:
        """From the background thread: the server at ``path`` has answered a ping."""
        self._endpoint = f"ipc://{path}"
        self._ups += 1
        self._up.set()

    def mark_down(self) -> None:
        """Stop asking. Safe from any thread."""
        if self._up.is_set():
            self._up.clear()
            self.on_down()

    def ask(self, request_id: str, num_tokens: int, hashes: Sequence[bytes]) -> Hit | None:
        """How much of the request is stored; None: not known yet, ask again next step.

        A synchronous client answers None when the step has waited for one
        deadline in all, so that many slow answers do not hold it up.
        """
        if not self._up.is_set():
            self.counters.skipped += 1
            self._forget(request_id)
            return MISS
        try:
            if self._asynchronous:
                return self._poll(request_id, num_tokens, hashes)
            if self._waited_s >= self._timeout_s:
                return None
            return self._wait(request_id, num_tokens, hashes)
        except zmq.ZMQError as error:
            self._fail(f"lookup failed: {error}")
            return MISS

    def new_step(self) -> None:
        """The scheduler's step is over: the next one may wait again."""
        self._waited_s = 0.0

    def discard(self, request_id: str) -> None:
        """Forget a request that has ended."""
        if self._asked:
            self._forget(request_id)

    def reset(self) -> bool:
        """Have the namespace's chunks dropped; False when that is not certain within the deadline.

        Answers to what was asked before count no more, those under way included.
        """
        self._asked.clear()
        self._by_sequence.clear()
        if not self._up.is_set():
            return False
        return self._exchange(self._endpoint, b"reset", RESET_DEADLINE_S)

    def ping(self, path: str, timeout_s: float) -> bool:
        """Whether the server at ``path`` answers. Uses a socket of its own: safe from any thread."""
        return self._exchange(f"ipc://{path}", b"ping", timeout_s)

    def close(self) -> None:
        """Close the sockets; no thread may be using the client."""
        self._up.clear()
        self._drop_socket()
        self._context.destroy(linger=0)

    def _exchange(self, endpoint: str, tag: bytes, timeout_s: float) -> bool:
        try:
            with self._context.socket(zmq.DEALER) as sock:
                sock.linger = 0
                sock.connect(endpoint)
                sock.send_multipart([b"", tag], zmq.DONTWAIT)
                return bool(sock.poll(int(timeout_s * 1000))) and sock.recv_multipart()[1:] == [b"\x01"]
        except zmq.ZMQError as error:
            logger.debug("%s to %s: %s", tag.decode(), endpoint, error)
            return False

    def _open(self) -> zmq.Socket:
        if self._socket is None or self._connected_at != self._ups:
            # After an outage always a new one: the old one may still wait to
            # connect again, and what was asked on it is lost.
            self._drop_socket()
            self._connected_at = self._ups
            # DEALER with an empty delimiter speaks REQ's wire format, without
            # REQ's lock-step: a late answer is recognised and thrown away.
            self._socket = self._context.socket(zmq.DEALER)
            self._socket.linger = 0
            self._socket.connect(self._endpoint)
        return self._socket

    def _drop_socket(self) -> None:
        if self._socket is not None:
            self._socket.close(0)
            self._socket = None
        self._asked.clear()
        self._by_sequence.clear()

    def _send(self, request_id: str, num_tokens: int, hashes: Sequence[bytes], began: float, deadline: float) -> _Asked:
        self._forget(request_id)
        self._sequence += 1
        self.counters.lookups += 1
        entry = _Asked(self._sequence, num_tokens, began, deadline)
        self._open().send_multipart(
            [
                b"",
                _TAG,
                _U32.pack(num_tokens),
                _U16.pack(len(hashes[0]) if hashes else 0),
                b"".join(hashes),
                wire_id(request_id).encode(),
                _U64.pack(self._sequence),
            ],
            zmq.DONTWAIT,
        )
        self._asked[request_id] = entry
        self._by_sequence[self._sequence] = request_id
        return entry

    def _wait(self, request_id: str, num_tokens: int, hashes: Sequence[bytes]) -> Hit:
        began = self._clock()
        deadline = began + self._timeout_s
        entry = self._send(request_id, num_tokens, hashes, began, deadline)
        sock = self._open()
        while entry.hit is None and not entry.again:
            # Rounded up: a poll of 0 ms would spin through the last millisecond.
            left_ms = int((deadline - self._clock()) * 1000 + 0.999)
            if left_ms <= 0 or not sock.poll(left_ms):
                self._late(entry)
                self._fail(f"lookup was not answered within {self._timeout_s * 1000:.0f} ms")
                return MISS
            self._drain(sock)
        self._waited_s += self._clock() - began
        self._forget(request_id)
        return entry.hit or MISS

    def _poll(self, request_id: str, num_tokens: int, hashes: Sequence[bytes]) -> Hit | None:
        now = self._clock()
        sock = self._open()
        entry = self._asked.get(request_id)
        if entry is None:
            self._send(request_id, num_tokens, hashes, now, now + ASYNC_DEADLINE_S)
            return None
        self._drain(sock)
        if entry.hit is not None:
            self._forget(request_id)
            return entry.hit
        if now >= entry.deadline:
            self._late(entry)
            if entry.again:  # the server lives, the answer is only far away
                self._forget(request_id)
            else:
                self._fail(f"lookup was not answered within {ASYNC_DEADLINE_S * 1000:.0f} ms")
            return MISS
        if entry.again:
            self._send(request_id, num_tokens, hashes, entry.began, entry.deadline)
        return None

    def _late(self, entry: _Asked) -> None:
        self.counters.timeouts += 1
        self._record(self._clock() - entry.began, entry.tokens, False)

    def _answered(self, entry: _Asked, hit: Hit, well: bool) -> None:
        entry.hit = hit
        self._record(self._clock() - entry.began, entry.tokens, well)

    def _drain(self, sock: zmq.Socket) -> None:
        """Take in every answer that has come; answers nobody waits for are dropped."""
        while True:
            try:
                frames = sock.recv_multipart(zmq.DONTWAIT)
            except zmq.Again:
                return
            if len(frames) != 3 or len(frames[2]) < _TRAILER.size:
                self.counters.malformed += 1
                if frames[1:] == [_REFUSED]:
                    self._refuse_oldest()
                continue
            sequence, flags = _TRAILER.unpack_from(frames[2])
            entry = self._asked.get(self._by_sequence.get(sequence, ""))
            if entry is None or entry.sequence != sequence:
                continue
            if flags & _PENDING:
                entry.again = True
                continue
            try:
                self._answered(entry, decode_answer(frames[1], frames[2][_TRAILER.size :]), True)
            except ValueError:
                self.counters.malformed += 1
                self._answered(entry, MISS, False)

    def _refuse_oldest(self) -> None:
        """The server could not serve a question and does not say which: it answers them in order."""
        for entry in self._asked.values():
            if entry.hit is None and not entry.again:
                self._answered(entry, MISS, False)
                return

    def _forget(self, request_id: str) -> None:
        entry = self._asked.pop(request_id, None)
        if entry is not None:
            self._by_sequence.pop(entry.sequence, None)

    def _fail(self, reason: str) -> None:
        if self._up.is_set():
            logger.warning("%s: going on without the KV store until it answers", reason)
        self._drop_socket()
        self.mark_down()
