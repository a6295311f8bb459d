"""Passing lookupd's KV events on through vLLM, for who asks for it (``enable_kv_events``).

A background thread follows the namespace's stream and keeps what it says is
stored, so that nothing is passed on twice, and so that a stream that begins
anew (``AllBlocksCleared``, then everything, then a batch without events) becomes
the few events by which it differs: vLLM's own stream tells of the engine's GPU
blocks too, and must not clear those. What was stored before is in doubt until
the announcement has ended; what it has not told by then went.

Batches are noted in their order. One behind a gap waits until what is missing was
asked for and has come. What lookupd itself no longer has is passed over, and asked
for until it announces everything anew.

The engine's thread takes what is due, a bounded part at a time. It waits for
nobody: while the other thread has the ledger, there is nothing for it.
"""

import logging
import math
import os
import select
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice

import msgspec
import zmq
from vllm.distributed.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KVCacheEvent, KVEventBatch

from mooncake_sidecar.messages import GroupSpec

logger = logging.getLogger("vllm.mooncake_sidecar.events")

MOST_A_STEP = 4096
"""Blocks that one step passes on, at most: about a millisecond."""
_SLICE = 256
"""Blocks that are noted in one hold of the ledger: a tenth of a millisecond."""
_DOUBT_S = 10.0
"""An announcement of which nothing more is heard for so long has ended."""
_AGAIN_S = 5.0
_CHECKS_S = (0.2, 1.0, 5.0, 30.0)
"""Pauses between the times at which is asked for what was missed. They begin anew when an answer breaks off."""
_SOON_S = 1.0
"""The pause after an answer that broke off when there is a batch behind the gap."""
_REPLAY_S = 2.0
"""An answer of which nothing more comes for so long has broken off."""
_END = (-1).to_bytes(8, "big", signed=True)

_Block = tuple[str, int, int]  # medium, store group, hash


class Ledger:
    """What the stream says is stored, and what of it vLLM has still to tell. Two threads use it."""

    def __init__(self, group_ids: Sequence[int], kinds: Sequence[str]) -> None:
        """``group_ids`` are the engine's groups and ``kinds`` their kinds, by store group."""
        self._group_ids = tuple(group_ids)
        self._kinds = tuple(kinds)
        self._stored: set[_Block] = set()
        self._doubted: set[_Block] = set()  # stored before an announcement that has not told of them yet
        self._doubted_at = 0.0  # when the latest batch came while some were in doubt
        self._due: dict[_Block, bool] = {}  # True: stored; what came and went meanwhile is not in it
        self._lock = threading.Lock()

    def __len__(self) -> int:
        with self._lock:
            return len(self._stored)

    def apply(self, events: Sequence[KVCacheEvent]) -> None:
        """Note a batch of the stream; one without events ends an announcement."""
        if not events:
            self._settle()
        self.settle_when_silent()
        for event in events:
            if isinstance(event, AllBlocksCleared):
                self._doubt()
            elif isinstance(event, (BlockStored, BlockRemoved)) and event.group_idx in range(len(self._group_ids)):
                note = self._note_stored if isinstance(event, BlockStored) else self._note_removed
                hashes = iter(event.block_hashes)
                while part := [(event.medium, event.group_idx, block_hash) for block_hash in islice(hashes, _SLICE)]:
                    with self._lock:
                        for block in part:
                            note(block)
                    time.sleep(0)  # let the engine's thread go on
        if self._doubted:
            self._doubted_at = time.monotonic()

    def settle_when_silent(self) -> float:
        """End an announcement of which nothing more is heard. The seconds after which to look again."""
        if not self._doubted:
            return math.inf
        left = self._doubted_at + _DOUBT_S - time.monotonic()
        if left > 0:
            return left
        self._settle()
        return math.inf

    def _doubt(self) -> None:
        """What is stored may have gone: the announcement tells."""
        with self._lock:
            fewer, more = sorted((self._doubted, self._stored), key=len)
            more |= fewer
            self._doubted, self._stored = more, set()

    def _settle(self) -> None:
        """What the announcement has not told of has gone."""
        gone, self._doubted = self._doubted, set()
        while gone:
            with self._lock:
                for _ in range(min(_SLICE, len(gone))):
                    self._turn(gone.pop(), False)
            time.sleep(0)

    def _note_stored(self, block: _Block) -> None:
        if block in self._stored:
            return
        self._stored.add(block)
        if block in self._doubted:
            self._doubted.discard(block)  # vLLM has told of it
        else:
            self._turn(block, True)

    def _note_removed(self, block: _Block) -> None:
        if block in self._stored or block in self._doubted:
            self._stored.discard(block)
            self._doubted.discard(block)
            self._turn(block, False)

    def _turn(self, block: _Block, stored: bool) -> None:
        if self._due.pop(block, None) is None:
            self._due[block] = stored

    def take(self) -> list[KVCacheEvent]:
        """What vLLM is to tell now. It does not wait for the other thread: then it is told at the next step."""
        if not self._due or not self._lock.acquire(blocking=False):
            return []
        try:
            blocks = list(islice(self._due.items(), MOST_A_STEP))
            for block, _ in blocks:
                del self._due[block]
        finally:
            self._lock.release()
        found: dict[tuple[str, int, bool], list[int]] = {}
        for (medium, group, block_hash), stored in blocks:
            found.setdefault((medium, group, stored), []).append(block_hash)
        return [self._event(*key, hashes) for key, hashes in found.items()]

    def _event(self, medium: str, group: int, stored: bool, hashes: list[int]) -> KVCacheEvent:
        if not stored:
            return BlockRemoved(block_hashes=hashes, medium=medium, group_idx=self._group_ids[group])
        return BlockStored(
            block_hashes=hashes,
            parent_block_hash=None,
            token_ids=[],
            block_size=0,
            lora_id=None,
            medium=medium,
            lora_name=None,
            group_idx=self._group_ids[group],
            kv_cache_spec_kind=self._kinds[group],
        )


class Follower:
    """Owns the thread that follows a stream. ``close`` ends it and waits."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._where: tuple[str, str, str] | None = None
        self._thread: threading.Thread | None = None
        self._stop_write = -1
        self._lock = threading.Lock()
        self._closed = False
        self._warned = False
        self._warned_replay = False

    def follow(self, endpoint: str, replay: str, topic: str) -> None:
        """Follow this stream from now on; an empty endpoint is none."""
        with self._lock:
            if self._closed or self._where == (endpoint, replay, topic):
                return
            self._end()
            if not endpoint:
                self._where = (endpoint, replay, topic)
                if not self._warned:
                    logger.warning(
                        "enable_kv_events is set, but mooncake-lookupd publishes no events; start it with --kv-events-endpoint local"
                    )
                self._warned = True
                return
            read, write = os.pipe2(os.O_CLOEXEC)
            thread = threading.Thread(
                target=_run, args=(self._ledger, endpoint, replay, topic.encode(), read), name="mooncake-sidecar-events", daemon=True
            )
            try:
                thread.start()
            except BaseException:
                os.close(read)
                os.close(write)
                raise
            self._thread, self._stop_write = thread, write
            self._where = (endpoint, replay, topic)
            if not replay and not self._warned_replay:
                logger.warning(
                    "KV events: mooncake-lookupd answers no replay requests; what its store holds already is not passed on, "
                    "nor what is lost later. Start it with --kv-events-replay-endpoint too"
                )
                self._warned_replay = True

    def close(self) -> None:
        """End the thread and wait for it."""
        with self._lock:
            self._closed = True
            self._end()

    def _end(self) -> None:
        self._where = None
        if self._thread is not None:
            os.close(self._stop_write)
            self._thread.join()
            self._thread = None


def _run(ledger: Ledger, endpoint: str, replay: str, topic: bytes, stop: int) -> None:
    """Until ``stop`` is closed at its other end. What goes wrong is tried again."""
    warned = False
    waiting = select.poll()
    waiting.register(stop, select.POLLIN)
    try:
        while True:
            try:
                _follow(ledger, endpoint, replay, topic, stop)
                return
            except Exception:
                logger.log(logging.DEBUG if warned else logging.WARNING, "KV events are not passed on for now", exc_info=True)
                warned = True
            if waiting.poll(int(_AGAIN_S * 1000)):
                return
    finally:
        os.close(stop)


def _follow(ledger: Ledger, endpoint: str, replay: str, topic: bytes, stop: int) -> None:
    context = zmq.Context()
    try:
        _Stream(context, ledger, endpoint, replay, topic, stop).run()
    finally:
        context.destroy(linger=0)


class _Stream:
    """A subscription. It has all batches in order, or everything anew."""

    def __init__(self, context: zmq.Context, ledger: Ledger, endpoint: str, replay: str, topic: bytes, stop: int) -> None:
        self._context, self._ledger, self._replay, self._topic, self._stop = context, ledger, replay, topic, stop
        self._decoder = msgspec.msgpack.Decoder(KVEventBatch)
        self._last = -1
        self._missing = -1  # the first batch that lookupd had no more, while nothing was announced since; or -1
        self._warned = False
        self._due = time.monotonic() if replay else math.inf  # when to ask for what was missed
        self._whole = 0  # answers that came to their end
        self._broken = 0  # answers that broke off since one had something new, itself included; 0: the latest has ended
        self._broke_at = 0.0
        self._live = context.socket(zmq.SUB)
        self._live.ipv6 = _is_ipv6(endpoint)
        self._live.subscribe(topic)
        self._live.connect(endpoint)

    def run(self) -> None:
        """Until ``stop`` is closed at its other end."""
        poller = zmq.Poller()
        poller.register(self._live, zmq.POLLIN)
        poller.register(self._stop, zmq.POLLIN)
        while True:
            wait = min(self._ledger.settle_when_silent(), self._due - time.monotonic())
            ready = dict(poller.poll(None if wait == math.inf else max(0, math.ceil(wait * 1000))))
            if self._stop in ready:
                return
            if self._live in ready:
                topic, number, payload = self._live.recv_multipart()
                self._take_live(topic, int.from_bytes(number, "big"), payload)
            if time.monotonic() >= self._due:
                # A subscription takes its time to be in force, and a lost batch is seen by the next one only.
                self._catch_up()

    def _take_live(self, topic: bytes, number: int, payload: bytes) -> None:
        """Note a batch of the subscription. One behind a gap that can't be filled now is left: it is asked for with the gap."""
        if topic == self._topic and number > self._last + 1:
            if self._replay:
                if self._broken:
                    self._due = min(self._due, self._broke_at + _SOON_S)
                    return
                if not self._catch_up():
                    return
            elif self._last >= 0 and not self._warned:
                logger.warning("KV events were lost, and can't be asked for: set kv_events_replay_endpoint of mooncake-lookupd")
                self._warned = True
        self._take(topic, number, payload)

    def _take(self, topic: bytes, number: int, payload: bytes) -> None:
        if topic != self._topic or number <= self._last:
            return
        first, self._last = self._last + 1, number
        try:
            events = self._decoder.decode(payload).events
        except msgspec.MsgspecError as error:
            logger.warning("a batch of KV events can't be read: %s", error)
            return
        if any(isinstance(event, AllBlocksCleared) for event in events):
            self._missing = -1
        elif number != first and self._missing < 0:
            self._missing = first
        self._ledger.apply(events)

    def _catch_up(self) -> bool:
        """Ask for what came after the last batch, and set when to ask again. True: all that lookupd has is here."""
        before = self._last
        whole = self._ask()
        if whole:
            if self._broken >= len(_CHECKS_S):
                logger.info("KV events: mooncake-lookupd answers replay requests again")
            self._broken, self._whole = 0, self._whole + 1
        else:
            self._broken, self._broke_at = 1 if self._last != before else self._broken + 1, time.monotonic()
            if self._broken == len(_CHECKS_S):
                logger.warning(
                    "KV events: mooncake-lookupd does not answer replay requests at %s; what it publishes behind a gap "
                    "is not passed on until it does",
                    self._replay,
                )
        self._due = time.monotonic() + _CHECKS_S[min(self._broken or self._whole, len(_CHECKS_S)) - 1]
        return whole

    def _ask(self) -> bool:
        """Ask for what came after the last batch; what is gone from the buffer lookupd announces anew. True: the answer ended."""
        asking = self._context.socket(zmq.DEALER)
        try:
            asking.ipv6 = _is_ipv6(self._replay)
            asking.connect(self._replay)
            first = self._missing if self._missing >= 0 and not self._broken else self._last + 1
            asking.send_multipart((b"", first.to_bytes(8, "big"), self._topic))
            poller = zmq.Poller()
            poller.register(asking, zmq.POLLIN)
            poller.register(self._stop, zmq.POLLIN)
            while True:
                ready = dict(poller.poll(int(_REPLAY_S * 1000)))
                if self._stop in ready or asking not in ready:
                    return False
                _, topic, number, payload = asking.recv_multipart()
                if number == _END:
                    return True
                self._take(topic, int.from_bytes(number, "big"), payload)
        finally:
            with suppress(zmq.ZMQError):
                asking.close(linger=0)


def _is_ipv6(endpoint: str) -> bool:
    """libzmq takes an address of that family only if told so before."""
    return "[" in endpoint


def relay(group_ids: Sequence[int], groups: Sequence[GroupSpec]) -> tuple[Ledger, Follower]:
    """A ledger and the follower that fills it."""
    kinds = {"mamba_align": "mamba", "hidden_state": "unknown", "rswa": "unknown"}
    ledger = Ledger(group_ids, [kinds.get(group.kind, group.kind) for group in groups])
    return ledger, Follower(ledger)
