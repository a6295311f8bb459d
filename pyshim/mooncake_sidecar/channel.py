"""A lookup channel: messages of several frames on a stream socket to mooncake-lookupd.

It carries what the lookup socket carries (``docs/protocol.md``), without the
threads that stand at both ends of a ZeroMQ socket: a question costs the engine's
thread one send, and the answer wakes it directly.
"""

import select
import socket
import struct
import time
from collections.abc import Callable, Sequence

from mooncake_sidecar.outgoing import Outgoing

_U32 = struct.Struct(">I")
_LONGEST_ANSWER = 64 << 10
_RECEIVE_BYTES = 4096
# Room for the hashes of a long question: one that does not fit is sent in two
# turns, and costs both ends another change of threads.
_SEND_BUFFER_BYTES = 1 << 20
_MAX_UNSENT_BYTES = 64 << 20
MAX_FRAMES = 1 << 12
"""The most frames of one message."""
# The answers to a ping. To any other question, NO says that it can't be served.
YES, NO = [b"\1"], [b"\0"]


class ChannelError(OSError):
    """The channel is of no use any more."""


def pack_message(frames: Sequence[bytes]) -> bytes:
    """The bytes of a message on a channel."""
    parts = [_U32.pack(4 * len(frames) + sum(map(len, frames)))]
    for frame in frames:
        parts += (_U32.pack(len(frame)), frame)
    return b"".join(parts)


def split_message(data: bytes, at: int = 0, end: int | None = None) -> list[bytes]:
    """The frames of a message, whose own length was taken off.

    Raises:
        ValueError: the lengths in it are wrong.
    """
    end = len(data) if end is None else end
    frames = []
    while at < end:
        start = at + 4
        if start > end:
            raise ValueError(f"{end - at} bytes for a frame's length")
        at = start + _U32.unpack_from(data, at)[0]
        if at > end:
            raise ValueError(f"a frame of {at - start} bytes where {end - start} are left")
        frames.append(data[start:at])
    return frames


class Channel:
    """Our end; used by one thread at a time. Nothing blocks but what takes seconds."""

    def __init__(self, sock: socket.socket) -> None:
        """Args:
        sock: connected, blocking; the channel's from here on.
        """
        # Whatever default timeout some library has set: with one, Python waits before each call.
        sock.setblocking(True)
        # The kernel gives what its limit allows (net.core.wmem_max).
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        self._sock = sock
        self._poller = select.poll()
        self._poller.register(sock, select.POLLIN)
        self._unsent = Outgoing()
        self._pending = b""
        """The beginning of a message; less than a whole one."""

    @classmethod
    def pair(cls) -> "tuple[Channel, socket.socket]":
        """A channel, and the other end of its socket."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        return cls(ours), theirs

    def send(self, *parts: bytes) -> None:
        """Send what the socket takes of a message; the rest goes with what is received or sent next.

        Raises:
            ChannelError: the peer has gone, or has not read for very long.
        """
        unsent = self._unsent
        if unsent.bytes and unsent.bytes + sum(map(len, parts)) > _MAX_UNSENT_BYTES:
            raise ChannelError("mooncake-lookupd does not read")
        for part in parts:
            unsent.push(part)
        self._flush()

    def receive(self, seconds: float = 0.0) -> list[list[bytes]]:
        """The messages that have come; one whose frames can't be told apart has none.

        Args:
            seconds: wait as long for something to come. Nothing in the result, or part
                of a message, may end the wait early.

        Raises:
            ChannelError: the peer has gone, or does not speak as it should.
        """
        if self._unsent.bytes:
            seconds = self._send_rest(seconds)
        if seconds > 0:
            # It goes on with what is left of the time after a signal, which a
            # blocking receive with a timeout of the kernel's does not.
            self._poller.poll(seconds * 1000)
        found: list[list[bytes]] = []
        while True:
            try:
                data = self._sock.recv(_RECEIVE_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return found
            except OSError as error:
                raise ChannelError(f"receive: {error.strerror}") from error
            if not data:
                raise ChannelError("mooncake-lookupd has closed the channel")
            self._take(data, found)
            if len(data) < _RECEIVE_BYTES:
                return found

    def await_status(self, seconds: float) -> bool | None:
        """Wait for the answer to a ping; what else comes is dropped. None: it has not come in that time.

        Raises:
            ChannelError: as ``receive``.
        """
        answer = self.await_answer(seconds, lambda frames: frames in (YES, NO))
        return None if answer is None else answer == YES

    def await_answer(
        self, seconds: float, wanted: Callable[[list[bytes]], bool], behind: int = 0
    ) -> list[bytes] | None:
        """Wait for an answer; what else comes is dropped. None: it has not come in that time.

        Args:
            wanted: whether it is one of those that the question may have.
            behind: questions of before that have not been answered: their answers come first.

        Raises:
            ChannelError: as ``receive``.
        """
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            for frames in self.receive(left):
                behind -= 1
                if behind < 0 and wanted(frames):
                    return frames
        return None

    def close(self) -> None:
        """Close the socket; the peer sees the end."""
        self._sock.close()

    def _take(self, data: bytes, found: list[list[bytes]]) -> None:
        """Cut what has come into messages."""
        if self._pending:
            data = self._pending + data
        at = 0
        while len(data) - at >= _U32.size:
            (length,) = _U32.unpack_from(data, at)
            if not 0 < length <= _LONGEST_ANSWER:
                raise ChannelError(f"a message of {length} bytes, 1 to {_LONGEST_ANSWER} are accepted")
            start = at + _U32.size
            if start + length > len(data):
                break
            at = start + length
            try:
                found.append(split_message(data, start, at))
            except ValueError:
                found.append([])
        self._pending = data[at:]

    def _send_rest(self, seconds: float) -> float:
        """Send the rest while the peer reads, and it says nothing itself. Returns what is left of the time."""
        self._flush()
        deadline = time.monotonic() + seconds
        self._poller.modify(self._sock, select.POLLIN | select.POLLOUT)
        try:
            while self._unsent.bytes and (left := deadline - time.monotonic()) > 0:
                for _, events in self._poller.poll(left * 1000):
                    if events & ~select.POLLOUT:
                        return 0.0
                    self._flush()
        finally:
            self._poller.modify(self._sock, select.POLLIN)
        return deadline - time.monotonic()

    def _flush(self) -> None:
        try:
            self._unsent.flush(self._sock)
        except OSError as error:
            raise ChannelError(f"send: {error.strerror}") from error
