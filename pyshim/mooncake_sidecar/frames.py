"""Frames of a session: a big-endian u32 length and one msgpack map."""

import struct

MAX_FRAME_BYTES = 64 << 20
_LENGTH = struct.Struct(">I")
HEADER_BYTES = _LENGTH.size


class FrameError(ValueError):
    """The peer sent something that is no frame. The session can't go on."""


def pack(body: bytes) -> bytes:
    """A frame around an encoded message.

    Raises:
        FrameError: the body is longer than the peer would accept.
    """
    if not 0 < len(body) <= MAX_FRAME_BYTES:
        raise FrameError(f"a frame of {len(body)} bytes, 1 to {MAX_FRAME_BYTES} are allowed")
    return _LENGTH.pack(len(body)) + body


def seal(frame: bytearray) -> None:
    """Complete a frame whose body was encoded behind HEADER_BYTES: a long one is not copied once more.

    Raises:
        FrameError: the body is longer than the peer would accept.
    """
    length = len(frame) - HEADER_BYTES
    if not 0 < length <= MAX_FRAME_BYTES:
        raise FrameError(f"a frame of {length} bytes, 1 to {MAX_FRAME_BYTES} are allowed")
    _LENGTH.pack_into(frame, 0, length)


class FrameReader:
    """Cuts a byte stream into frame bodies.

    INVARIANT: at most one frame's length beyond what ``feed`` returned is kept.
    """

    def __init__(self, limit: int = MAX_FRAME_BYTES) -> None:
        self._limit = limit
        self._pending = bytearray()

    def feed(self, data: bytes | memoryview) -> list[bytes]:
        """Take received bytes and return the bodies that are complete.

        Raises:
            FrameError: a length of zero or above the limit.
        """
        pending = self._pending
        pending += data
        bodies = []
        at = 0
        while len(pending) - at >= HEADER_BYTES:
            (length,) = _LENGTH.unpack_from(pending, at)
            if not 0 < length <= self._limit:
                raise FrameError(f"a frame of {length} bytes, 1 to {self._limit} are accepted")
            end = at + HEADER_BYTES + length
            if end > len(pending):
                break
            bodies.append(bytes(pending[at + HEADER_BYTES : end]))
            at = end
        if at:
            del pending[:at]
        return bodies
