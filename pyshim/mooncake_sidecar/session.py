"""Opening a session with a daemon: connect, credentials, hello, welcome.

Opening blocks, with a deadline, and is done by background threads only. A
worker's session is then switched to non-blocking and handed to the hooks
(``link.Link``).
"""

import contextlib
import os
import select
import signal
import socket
import struct
import threading
import time
from collections.abc import Sequence
from typing import Any

from mooncake_sidecar import __version__
from mooncake_sidecar import messages as msg
from mooncake_sidecar import paths
from mooncake_sidecar.frames import FrameError, FrameReader, pack

_RECEIVE_BYTES = 1 << 16
# How soon a wait for an answer notices that it is given up, and what is left of a message has to come in.
_STOP_LOOK_S = 0.02
_WHOLE_S = 2.0
_UCRED = struct.Struct("3i")


class SessionError(ConnectionError):
    """The session can't be opened or has ended. ``code`` is the daemon's, if it gave one."""

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code


def peer_credentials(sock: socket.socket) -> tuple[int, int]:
    """(pid, uid) of the process that listens at the other end."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid, uid, _ = _UCRED.unpack(raw)
    return pid, uid


class Session:
    """A connected session after the welcome, still blocking.

    ``pidfd`` refers to the daemon for certain: it was opened before the welcome
    came, so the process that answered is the one it names. Where the listener's
    process is another (socket activation) it was opened before an answer that the
    kernel says is the daemon's. It is -1 when neither could be had.
    """

    def __init__(self, sock: socket.socket, reader: FrameReader, welcome: msg.Welcome, pidfd: int, pid: int) -> None:
        self.sock = sock
        self.reader = reader
        self.welcome = welcome
        self.pidfd = pidfd
        self.pid = pid
        self.unread: list[Any] = []
        """What came right behind the last call's answer."""

    def call(self, message: Any, fds: Sequence[int], timeout: float) -> Any:
        """Send a message with descriptors and return the next message that comes.

        Raises:
            SessionError: the daemon answered with an error, ended the session or was late.
        """
        deadline = time.monotonic() + timeout
        _send(self.sock, pack(msg.encode(message)), fds, deadline)
        answer, *self.unread = _receive(self.sock, self.reader, deadline)
        if isinstance(answer, msg.Error):
            raise SessionError(f"{self.welcome.daemon}: {answer.message} [{answer.code}]", answer.code)
        return answer

    def answer(self, timeout: float, stop: threading.Event) -> Any:
        """The next message that comes; None: none in that time, or before ``stop`` was set.

        Raises:
            SessionError: the daemon answered with an error, or ended the session.
        """
        deadline = time.monotonic() + timeout
        poller = select.poll()
        poller.register(self.sock, select.POLLIN)
        while not poller.poll(min(max(deadline - time.monotonic(), 0.0), _STOP_LOOK_S) * 1000):
            if stop.is_set() or time.monotonic() >= deadline:
                return None
        answer, *self.unread = _receive(self.sock, self.reader, time.monotonic() + _WHOLE_S)
        if isinstance(answer, msg.Error):
            raise SessionError(f"{self.welcome.daemon}: {answer.message} [{answer.code}]", answer.code)
        return answer

    def post(self, message: Any, fds: Sequence[int], timeout: float, stop: threading.Event | None = None) -> bool:
        """Send a message with descriptors that has no answer, or whose answer is waited for by ``answer``.

        Returns:
            False when it was given up, because ``stop`` was set: nothing more can be sent then.

        Raises:
            SessionError: the session has ended, or the daemon does not read in time.
        """
        return _send(self.sock, pack(msg.encode(message)), fds, time.monotonic() + timeout, stop)

    def close(self) -> None:
        """Close the socket and the pidfd. The daemon sees EOF."""
        self.sock.close()
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1


def open_session(path: str, role: str, engine_id: str, epoch: int, timeout: float) -> Session:
    """Connect to the daemon at ``path`` and exchange hello and welcome.

    Args:
        epoch: identifies this process; nanoseconds of the wall clock at its start.

    Raises:
        SessionError: nobody listens, another user does, versions differ, or the answer is late.
    """
    deadline = time.monotonic() + timeout
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    pidfd = -1
    try:
        sock.settimeout(timeout)
        try:
            sock.connect(path)
        except OSError as error:
            raise SessionError(f"connect to {path}: {error.strerror or error}") from error
        pid, uid = peer_credentials(sock)
        if uid not in paths.trusted_users(os.path.dirname(path)):
            raise SessionError(f"{path} is served by user {uid}, expected {os.getuid()} or root")
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:
            pidfd = -1  # another pid namespace
        hello = msg.Hello(msg.PROTOCOL_VERSION, role, os.getpid(), engine_id, epoch, __version__)
        _send(sock, pack(msg.encode(hello)), (), deadline)
        reader = FrameReader()
        answer, *more = _receive(sock, reader, deadline)
        if isinstance(answer, msg.Error):
            raise SessionError(f"{path}: {answer.message} [{answer.code}]", answer.code)
        if more:
            raise SessionError(f"{path}: the daemon sent more than one message in a handshake")
        if not isinstance(answer, msg.Welcome):
            raise SessionError(f"{path}: expected welcome, got {type(answer).__name__}")
        if answer.protocol != msg.PROTOCOL_VERSION:
            raise SessionError(
                f"{answer.daemon} {answer.version} speaks protocol {answer.protocol}, "
                f"this shim {msg.PROTOCOL_VERSION}: install matching versions"
            )
        if pidfd >= 0 and answer.pid != pid:
            os.close(pidfd)
            pidfd = -1
            if role == msg.ROLE_WORKER:  # the only one that must know of a death for certain
                pid, pidfd = answer.pid, _watch_sender(sock, reader, answer.pid, deadline)
        return Session(sock, reader, answer, pidfd, pid)
    except BaseException:
        sock.close()
        if pidfd >= 0:
            os.close(pidfd)
        raise


def _watch_sender(sock: socket.socket, reader: FrameReader, pid: int, deadline: float) -> int:
    """A pidfd of the process behind the socket, which says that it is ``pid``; -1 if that is not so.

    The answer to a ping that is sent once the pidfd is open comes from a process
    that lives since before; the kernel says whose it is.
    """
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return -1  # another pid namespace
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    try:
        _send(sock, pack(msg.encode(msg.Ping(0))), (), deadline)
        sock.settimeout(_left(deadline))
        data, ancillary, _, _ = sock.recvmsg(_RECEIVE_BYTES, socket.CMSG_SPACE(_UCRED.size))
        credentials = [
            _UCRED.unpack(value[: _UCRED.size])
            for level, kind, value in ancillary
            if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS
        ]
        answers = [msg.decode(body) for body in reader.feed(data)]
        if credentials and credentials[0][0] == pid and len(answers) == 1 and isinstance(answers[0], msg.Pong):
            watched, pidfd = pidfd, -1
            return watched
        return -1
    except (OSError, ValueError, FrameError) as error:
        raise SessionError(f"the daemon did not answer a ping: {error}") from error
    finally:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 0)
        if pidfd >= 0:
            os.close(pidfd)


def process_ended(pidfd: int) -> bool:
    """Whether the process behind a pidfd has ended, without waiting."""
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    return bool(poller.poll(0))


def may_kill(pidfd: int) -> bool:
    """Whether the kernel lets this process kill the one behind a pidfd, which may have ended."""
    return _signal(pidfd, 0)


def kill_process(pidfd: int) -> bool:
    """SIGKILL the process behind a pidfd; one that has ended is no error. False: the kernel does not allow it."""
    return _signal(pidfd, signal.SIGKILL)


def _signal(pidfd: int, number: int) -> bool:
    try:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, number)
    except OSError:  # another user's, or a sandbox
        return False
    return True


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise SessionError("the daemon did not answer in time")
    return left


def _send(
    sock: socket.socket, frame: bytes, fds: Sequence[int], deadline: float, stop: threading.Event | None = None
) -> bool:
    view, sent = memoryview(frame), 0
    while sent < len(view):
        left = _left(deadline)
        sock.settimeout(left if stop is None else min(left, _STOP_LOOK_S))
        try:
            sent += socket.send_fds(sock, [view], list(fds)) if fds and not sent else sock.send(view[sent:])
        except TimeoutError as error:
            if stop is not None and stop.is_set():
                return False
            if time.monotonic() >= deadline:
                raise SessionError("the daemon does not read in time") from error
        except OSError as error:
            raise SessionError(f"send: {error.strerror or error}") from error
    return True


def _receive(sock: socket.socket, reader: FrameReader, deadline: float) -> list[Any]:
    """The next message, and those that have come behind it."""
    bodies: list[bytes] = []
    while not bodies:
        sock.settimeout(_left(deadline))
        try:
            data = sock.recv(_RECEIVE_BYTES)
        except TimeoutError as error:
            raise SessionError("the daemon did not answer in time") from error
        except OSError as error:
            raise SessionError(f"receive: {error.strerror or error}") from error
        if not data:
            raise SessionError("the daemon ended the session")
        try:
            bodies = reader.feed(data)
        except FrameError as error:
            raise SessionError(str(error)) from error
    try:
        return [msg.decode(body) for body in bodies]
    except ValueError as error:
        raise SessionError(str(error)) from error
