"""How a request is asked about: by few of its block hashes at first, by all if need be; pure.

A block hash commits to all before it, and lookupd knows which chunk comes before
each, so it finds out the hashes between those that it is given
(``docs/protocol.md``, ``lookup3``). Nothing here loops over hashes.
"""

import struct
from collections.abc import Sequence

from mooncake_sidecar.channel import pack_message
from mooncake_sidecar.ids import wire_id
from mooncake_sidecar.jobs import hash_blob

_ENDS = 16
"""How many hashes at either end are given."""
_LONGEST_STRIDE = 1 << 16
_MAX_HASHES = 1 << 18

_U32, _U64 = struct.Struct(">I"), struct.Struct(">Q")
_WHOLE, _SPARSE = b"lookup2", b"lookup3"
# Questions as pack_message makes them, up to their hashes, and the last frame: each frame behind its length.
_HEAD = struct.Struct(f">II{len(_WHOLE)}sIIIHI")
_SPARSE_HEAD = struct.Struct(f">II{len(_SPARSE)}sIIIHIII")
_RUNS = struct.Struct(">9I")
_RUN = struct.Struct(">3I")
_GAP = struct.Struct(">II")
_SEQUENCE = struct.Struct(">IQ")


def usable_stride(offered: int) -> int:
    """The stride that a server offers, 0 for none or one that makes no sense."""
    return offered if _ENDS <= offered <= _LONGEST_STRIDE else 0


class Question:
    """One request's lookup."""

    __slots__ = ("_count", "_hashes", "_name", "_run", "_stride", "tokens")

    def __init__(self, request_id: str, tokens: int, hashes: Sequence[bytes], stride: int = 0) -> None:
        """Args:
        hashes: of the request; may get longer at its end meanwhile.
        stride: how far apart those may be that are given, 0: all are.
        """
        self.tokens = tokens
        self._name = wire_id(request_id).encode()
        self._hashes = hashes
        self._count = len(hashes)
        self._stride = stride if 2 * stride < self._count <= _MAX_HASHES else 0
        self._run: tuple[int, int] | None = None

    @property
    def sparse(self) -> bool:
        """Whether it gives some of the hashes only."""
        return self._stride > 0

    def message(self, sequence: int) -> tuple[bytes, bytes, bytes]:
        """The parts of the message that asks."""
        hashes, count, stride = self._hashes, self._count, self._stride
        end = b"".join((_U32.pack(len(self._name)), self._name, _SEQUENCE.pack(_U64.size, sequence)))
        hash_len = len(hashes[0]) if count else 0
        if not stride:
            _, blob = hash_blob(hashes, count)
            body = _HEAD.size - _U32.size + len(blob) + len(end)
            return _HEAD.pack(body, len(_WHOLE), _WHOLE, 4, self.tokens, 2, hash_len, len(blob)), blob, end
        given = [*hashes[:_ENDS], *hashes[stride - 1 : count : stride], *hashes[count - _ENDS : count]]
        runs = _RUNS.pack(0, 1, _ENDS, stride - 1, stride, count // stride, count - _ENDS, 1, _ENDS)
        if self._run is not None:
            first, stop = self._run
            given += hashes[first:stop]
            runs += _RUN.pack(first, 1, stop - first)
        blob = b"".join(given)
        body = _SPARSE_HEAD.size - _U32.size + len(runs) + _U32.size + len(blob) + len(end)
        head = _SPARSE_HEAD.pack(body, len(_SPARSE), _SPARSE, 4, self.tokens, 2, hash_len, 4, count, len(runs))
        return b"".join((head, runs, _U32.pack(len(blob)))), blob, end

    def widen(self, gap: bytes) -> None:
        """Take the answer that there is none yet: the next message has what is wanted, or everything.

        Raises:
            ValueError: it makes no sense.
        """
        if len(gap) != _GAP.size:
            raise ValueError(f"a gap of {len(gap)} bytes")
        first, stop = _GAP.unpack(gap)
        if not self._stride or not first < stop <= self._count:
            raise ValueError(f"hashes {first} to {stop} of {self._count} are wanted")
        # Once more with what is wanted, if that is little.
        if self._run is not None or stop - first > self._stride:
            self._stride = 0
        self._run = (first, stop)

    def shown(self) -> bytes:
        """The message that shows all hashes to a server that was given some."""
        hash_len, blob = hash_blob(self._hashes, self._count)
        return pack_message([b"seen", struct.pack(">H", hash_len), blob])

    @property
    def whole(self) -> bool:
        """Whether the request still has all hashes that it had: a session that goes on may take some back."""
        return len(self._hashes) >= self._count

    def __len__(self) -> int:
        """The hashes that it is about."""
        return self._count
