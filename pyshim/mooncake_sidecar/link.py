"""A registered session with mooncake-worker: jobs out, results in, and the fence.

Used by vLLM's worker thread only, from inside the connector's hooks; nothing
here blocks. A job that was accepted has exactly one outcome, and the outcome
comes only when the daemon can't touch the job's blocks any more: after its
result, or after the daemon process is dead for certain (pidfd). Between a
deadline and that moment the job is *cancelled but unfenced*, and the engine
keeps its blocks out of use.
"""

import logging
import os
import select
import socket
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from mooncake_sidecar import messages as msg
from mooncake_sidecar.board import JobBoard
from mooncake_sidecar.frames import FrameError, pack
from mooncake_sidecar.outgoing import Outgoing
from mooncake_sidecar.session import Session, kill_process, may_kill, process_ended

logger = logging.getLogger("vllm.mooncake_sidecar.link")

MAX_OUTGOING_BYTES = 64 << 20
_RECEIVE_BYTES = 1 << 18
_PING_EVERY_S = 0.5
_STUCK_AFTER_S = 30.0
# Without a job under way only the session's end can come, and an engine step
# need not pay for looking at the socket.
_IDLE_LOOK_EVERY_S = 0.02
# select can't look at descriptors from here on.
_SELECT_LIMIT = 1024


@dataclass(frozen=True)
class Limits:
    """Deadlines of a link, in seconds."""

    load_s: float = 10.0
    store_s: float = 30.0
    kill_after_s: float = 2.0


@dataclass(slots=True)
class Job:
    """A job that the daemon may be working on."""

    job: int
    kind: str
    request: str
    sent_at: float
    deadline: float
    cancelled_at: float = 0.0


@dataclass(slots=True, frozen=True)
class Outcome:
    """The end of a job. ``status`` is the daemon's, or ``failed`` if it died."""

    job: int
    kind: str
    request: str
    status: str
    failed: bytes
    result: msg.Result | None = None
    """What the daemon said, None if it died or refused the frame."""
    seconds: float = 0.0


def wait_readable(descriptors: Sequence[int], seconds: float) -> bool:
    """Wait for one of the descriptors. False: none was readable in that time.

    Not a moment longer: poll counts in whole milliseconds, and rounds up.
    """
    if max(descriptors) < _SELECT_LIMIT:
        return bool(select.select(descriptors, (), (), seconds)[0])
    poller = select.poll()
    for descriptor in descriptors:
        poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(int(seconds * 1000)))


def log_registered(session: Session, answer: msg.Registered) -> None:
    """Tell that the daemon has the engine's memory, and what it lacks."""
    if answer.events_refused:
        logger.warning(
            "mooncake-worker can't open the engine's CUDA events: jobs are held back until the GPU is through "
            "(do engine and daemon share an IPC namespace?)"
        )
    logger.info(
        "registered with mooncake-worker %s (pid %d), namespace %.12s",
        session.welcome.version,
        session.welcome.pid,
        answer.namespace_digest,
    )


class Link:
    """INVARIANT: a job is in ``_jobs`` from its submission until its outcome is
    in ``_outcomes``, and its word on the board is armed or cancelled meanwhile."""

    def __init__(
        self,
        session: Session,
        board: JobBoard,
        limits: Limits,
        store_ready: bool,
        *,
        sees_events: bool = True,
        takes_ahead: bool = False,
        registered: bool = True,
    ) -> None:
        session.sock.setblocking(False)
        self._session = session
        self._sock: socket.socket | None = session.sock
        self._board = board
        self._limits = limits
        self.store_ready = store_ready
        self.sees_events = sees_events
        """The daemon waits for the GPU's events that were registered."""
        self.takes_ahead = takes_ahead
        """The daemon takes stores before their bytes are there."""
        self._registered = registered
        """The daemon has answered the registration."""
        self._jobs: dict[int, Job] = {}
        self._by_deadline = {msg.KIND_LOAD: deque[Job](), msg.KIND_STORE: deque[Job]()}
        self._unfenced: dict[int, Job] = {}
        self._outcomes: list[Outcome] = []
        self._outgoing = Outgoing()
        self._ended_at = 0.0
        self._ours = session.welcome.autostarted
        """An engine started the daemon, so this one may kill it."""
        self._killed = False
        self._dead = False
        self._look_at = 0.0
        self._asked_at = 0.0
        self._pings = 0
        self._complained = False
        self._stuck = False
        self._leaving_at = 0.0
        """Since when the daemon is to end the session; 0: it is not."""

    @property
    def connected(self) -> bool:
        """The session stands, as far as is known."""
        return self._sock is not None

    @property
    def healthy(self) -> bool:
        """The daemon answers: jobs may be given to it."""
        return (
            self._sock is not None
            and self._registered
            and not self._unfenced
            and not self._leaving_at
            and self._outgoing.bytes < MAX_OUTGOING_BYTES
        )

    @property
    def killable(self) -> bool:
        """Whether this side may kill the daemon and see its end. The kernel may put that off: a thread in uninterruptible
        sleep, a frozen control group."""
        return self._ours and self._session.pidfd >= 0 and may_kill(self._session.pidfd)

    @property
    def idle(self) -> bool:
        """No job is unanswered."""
        return not self._jobs

    @property
    def done(self) -> bool:
        """The session has ended and nothing of it is left."""
        return self._sock is None and not self._jobs and not self._outcomes

    def submit(self, job: int, kind: str, request: str, frame: bytes | bytearray, now: float, *, ahead: bool = False) -> bool:
        """Give a job to the daemon.

        Args:
            ahead: the bytes of a store's blocks are not there before ``make_final``: the daemon reads none of them,
                and its deadline counts from then. REQUIRES: ``takes_ahead``.

        Returns:
            False when it was not taken: the daemon will never hear of it, so it
            needs no fence.
        """
        if not self.healthy or len(frame) + self._outgoing.bytes > MAX_OUTGOING_BYTES:
            return False
        if not self._board.arm(job):
            return False
        limit = self._limits.load_s if kind == msg.KIND_LOAD else self._limits.store_s
        entry = Job(job, kind, request, now, now + limit)
        self._jobs[job] = entry
        if ahead:
            self._enqueue(pack(msg.encode(msg.Ahead(job))))
        else:
            self._by_deadline[kind].append(entry)
        self._enqueue(frame)
        return True

    def make_final(self, job: int, now: float) -> None:
        """The bytes of a store that was submitted ahead are there. One that has ended or was given up stays so."""
        entry = self._jobs.get(job)
        if entry is None or entry.cancelled_at:
            return
        entry.sent_at, entry.deadline = now, now + self._limits.store_s
        self._by_deadline[msg.KIND_STORE].append(entry)
        self._enqueue(pack(msg.encode(msg.Final([job]))))

    def notify(self, message: msg._Message) -> None:
        """Send a message that has no answer, to a daemon that takes no jobs at present as well.

        It is of requests that have ended: a daemon that did not hear of one would keep its
        run, and take the next of that name for the same. Jobs leave room for it.
        """
        frame = pack(msg.encode(message))
        if self._sock is not None and len(frame) + self._outgoing.bytes <= 2 * MAX_OUTGOING_BYTES:
            self._enqueue(frame)

    def pump(self, now: float) -> list[Outcome]:
        """Send and receive what is possible, enforce the deadlines, return what has ended."""
        self.flush(now)
        if self._sock is not None and (self._jobs or self._leaving_at or now >= self._look_at):
            self._look_at = now + _IDLE_LOOK_EVERY_S
            self._receive(now)
        if self._jobs:
            self._expire(now)
        if self._jobs or self._leaving_at:
            self._fence(now)
        if not self.store_ready and self._registered:
            self._ping(now)
        self.flush(now)
        if not self._outcomes:
            return []
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def leave(self, now: float) -> None:
        """Give the jobs up and ask the daemon to unmap the engine's memory.

        It closes its end of the socket when it has: until then the link is
        ``connected``. An own daemon that does not is killed, as for a cancel.
        """
        if self._sock is None or self._leaving_at:
            return
        self._give_up([entry for entry in self._jobs.values() if not entry.cancelled_at], now)
        self.flush(now)
        if self._sock is None:
            return
        self._leaving_at = now
        self._outgoing.clear()
        try:
            self._sock.shutdown(socket.SHUT_WR)
        except OSError as error:
            self._end(f"leave: {error.strerror or error}", now)

    def disown(self, now: float) -> list[Outcome]:
        """End what is left of the session and fail its jobs, whatever the daemon does.

        REQUIRES: the memory that it has mapped is not the engine's any more.
        """
        self._disconnect()
        for entry in list(self._jobs.values()):
            self._settle(entry, msg.STATUS_FAILED, b"", now)
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    @property
    def leaving(self) -> bool:
        """Whether it was told to leave."""
        return bool(self._leaving_at)

    @property
    def leaving_descriptor(self) -> int:
        """What becomes readable when the daemon ends the session. REQUIRES: connected."""
        return self._sock.fileno()

    def descriptor(self) -> int:
        """What becomes readable when a job may have ended, -1 without jobs or where nothing tells."""
        if not self._jobs:
            return -1
        return self._sock.fileno() if self._sock is not None else self._session.pidfd

    def cancel(self, job: int, now: float) -> None:
        """Give a job up before its deadline; it ends as any other that was cancelled."""
        if (entry := self._jobs.get(job)) is not None and not entry.cancelled_at:
            self._give_up([entry], now)

    def flush(self, now: float) -> None:
        """Send what the socket takes."""
        if self._sock is not None and self._outgoing.bytes:
            try:
                self._outgoing.flush(self._sock)
            except OSError as error:
                self._end(f"send: {error.strerror or error}", now)

    def close(self) -> None:
        """End the session. The daemon sees EOF and stops every copy at its next batch."""
        for job in self._jobs:
            self._board.cancel(job)
        self._disconnect()
        self._session.close()
        self._board.close()

    def _enqueue(self, frame: bytes | bytearray) -> None:
        if not self._leaving_at:  # nobody would read it
            self._outgoing.push(frame)

    def _receive(self, now: float) -> None:
        """Take in everything the socket holds; an end of the session is noticed here."""
        while True:
            try:
                data = self._sock.recv(_RECEIVE_BYTES)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                self._end(f"receive: {error.strerror or error}", now)
                return
            if not data:
                self._end("the daemon ended the session", now)
                return
            try:
                for body in self._session.reader.feed(data):
                    self._take(msg.decode(body), now)
            except (FrameError, ValueError) as error:
                self._end(str(error), now)
                return
            if len(data) < _RECEIVE_BYTES:
                return

    def _take(self, message: msg.Incoming | msg.Unknown, now: float) -> None:
        if isinstance(message, msg.Result):
            entry = self._jobs.get(message.job)
            if entry is None:
                return  # answered before, by an error that named it
            if message.status != msg.STATUS_OK:
                self._ping(now)  # perhaps the store has gone
            self._settle(entry, message.status or msg.STATUS_FAILED, message.failed or b"", now, message)
        elif isinstance(message, msg.Pong):
            self.store_ready = message.store_ready
        elif isinstance(message, msg.Registered) and not self._registered:
            log_registered(self._session, message)
            self._registered, self.store_ready = True, message.store_ready
            self.sees_events, self.takes_ahead = not message.events_refused, message.ahead
        elif isinstance(message, msg.Error) and not self._registered:
            self._end(f"{message.message} [{message.code}]", now)
        elif isinstance(message, msg.Error):
            logger.warning("mooncake-worker: %s [%s]", message.message, message.code)
            if (entry := self._jobs.get(message.job)) is not None:
                self._settle(entry, msg.STATUS_FAILED, b"", now)
        elif not self._complained:
            self._complained = True
            logger.warning("mooncake-worker sent a message that this shim does not know: %r", message)

    def _settle(self, entry: Job, status: str, failed: bytes, now: float, result: msg.Result | None = None) -> None:
        del self._jobs[entry.job]
        self._unfenced.pop(entry.job, None)
        self._board.release(entry.job)
        self._outcomes.append(
            Outcome(
                entry.job,
                entry.kind,
                entry.request,
                status,
                failed,
                result,
                now - entry.sent_at,
            )
        )

    def _expire(self, now: float) -> None:
        """Cancel jobs whose deadline has passed. Each kind's deadlines are in order of submission."""
        late = []
        for queue in self._by_deadline.values():
            while queue and (queue[0].job not in self._jobs or queue[0].deadline <= now):
                entry = queue.popleft()
                if entry.job in self._jobs and not entry.cancelled_at:
                    late.append(entry)
        if late:
            if self._sock is not None:
                logger.warning(
                    "mooncake-worker did not finish %d job(s) in time (%s %d, request %s, is the oldest): cancelled",
                    len(late),
                    late[0].kind,
                    late[0].job,
                    late[0].request,
                )
            self._give_up(late, now)

    def _give_up(self, entries: list[Job], now: float) -> None:
        """Cancel jobs, and tell the daemon that is there."""
        self._cancel(entries, now)
        if entries and self._sock is not None:
            self._enqueue(pack(msg.encode(msg.Cancel([entry.job for entry in entries]))))

    def _cancel(self, entries: list[Job], now: float) -> None:
        for entry in entries:
            self._board.cancel(entry.job)
            entry.cancelled_at = now
            self._unfenced[entry.job] = entry

    def _end(self, reason: str, now: float) -> None:
        """The session is over. That is not the end of the process: what it may still write is fenced."""
        log = logger.info if self._leaving_at else logger.warning
        log("session with mooncake-worker (pid %d) is over: %s", self._session.pid, reason)
        self._ended_at = now
        self._disconnect()
        self._cancel([entry for entry in self._jobs.values() if not entry.cancelled_at], now)

    def _disconnect(self) -> None:
        if self._sock is not None:
            try:
                # Also wakes the maintainer, which watches a duplicate of the socket.
                self._sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # the peer was first
            self._sock.close()
            self._sock = None
            self._outgoing.clear()

    def _fence(self, now: float) -> None:
        """Settle unfenced jobs if the daemon is dead; kill an own daemon that does not answer."""
        leaving = self._leaving_at if self._sock is not None else 0.0
        if not self._unfenced and not leaving:
            return
        pidfd = self._session.pidfd
        if pidfd < 0:
            return
        if process_ended(pidfd):
            if self._sock is not None:
                # Its last results may be in the socket still, and EOF is behind them.
                self._receive(now)
                if self._sock is not None:
                    self._end("the daemon died", now)
            for entry in list(self._jobs.values()):
                self._settle(entry, msg.STATUS_FAILED, b"", now)
            return
        oldest = next(iter(self._unfenced.values())).cancelled_at if self._unfenced else leaving
        if self._ours and not self._killed and now - oldest >= self._limits.kill_after_s:
            # Root's daemon, autostarted by an engine of root's in this directory, can't be killed by other users.
            self._ours = self._killed = kill_process(pidfd)
            if self._killed:
                logger.error(
                    "mooncake-worker (pid %d) left %s unanswered for %.1f s: killing it; a new one will be started",
                    self._session.pid,
                    "a cancel" if self._unfenced else "the end of its session",
                    now - oldest,
                )
        elif not self._ours and not self._stuck and now - oldest >= _STUCK_AFTER_S:
            self._stuck = True
            logger.error(
                "mooncake-worker (pid %d) has left %d cancelled job(s) unanswered for %.0f s. Their blocks "
                "and requests wait until it answers or ends. This engine can't kill it: look after it or restart it",
                self._session.pid,
                len(self._unfenced),
                now - oldest,
            )

    def _ping(self, now: float) -> None:
        if self._sock is not None and now - self._asked_at >= _PING_EVERY_S:
            self._asked_at = now
            self._pings += 1
            self._enqueue(pack(msg.encode(msg.Ping(self._pings))))

    def watch_descriptors(self) -> tuple[int, int]:
        """Duplicates of the socket and the pidfd (-1: none) for another thread to wait on and close."""
        pidfd = self._session.pidfd
        return os.dup(self._session.sock.fileno()), os.dup(pidfd) if pidfd >= 0 else -1
