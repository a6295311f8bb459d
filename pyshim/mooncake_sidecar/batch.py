"""The store jobs of a step on their way into one frame.

A step may complete blocks of hundreds of requests. They travel as the parts of
one job: numbers in rows, hashes and block ids of all parts back to back in one
buffer each (``connector.storeWire``). So a part costs a few additions to lists.
"""

from collections.abc import Sequence
from itertools import chain

from mooncake_sidecar import messages as msg
from mooncake_sidecar.ids import wire_id
from mooncake_sidecar.jobs import JobCommand, block_bytes

# A full job counts up to 12 MiB, its last part included, against the daemon's
# queue, which takes 32 MiB unless it is set otherwise.
_FULL_BYTES = 8 << 20
_FULL_PARTS = 4096
_AHEAD_BLOCKS = 16
"""New blocks of one request, or more, are a prefill's. What fewer of them gain is less than what a second message takes."""
NO_LIMIT = (1 << 32) - 1
"""In a row, for a request that may be stored whole."""

Label = tuple[str, int, int]
"""(salt tag, seconds to live or 0, pin) of what a request stores; see ``connector.Label``."""


class StoreBatch:
    """A store job that is being put together; used by the scheduler's thread."""

    def __init__(self, job: int, groups: int) -> None:
        """Args:
        groups: store groups; each part has a block table for each.
        """
        self.job = job
        self._groups = groups
        self._requests: list[str] = []
        self._rows: list[int] = []
        self._hashes: list[bytes] = []
        self._blocks: list[bytes] = []
        self._puts: list[int] = []
        self._labels: dict[Label, int] = {}
        self._hash_len = 0
        self._bytes = 0
        self._ahead = False

    @property
    def full(self) -> bool:
        """The next part is to be another job's."""
        return self._bytes >= _FULL_BYTES or len(self._requests) >= _FULL_PARTS

    def add(
        self,
        request_id: str,
        tokens: tuple[int, int, int, int],
        most: int,
        label: Label,
        first_hash: int,
        hashes: Sequence[bytes],
        tables: Sequence[tuple[int, bytes]],
        puts: Sequence[tuple[int, int, int]],
    ) -> None:
        """Add a request's part.

        Args:
            tokens: the save boundary, what is computed, the prompt, the prefill's end.
            most: the longest prefix that may be stored, NO_LIMIT for any.
            first_hash: the number of the first of ``hashes``.
            tables: by store group, the number of the first block and the blocks from there, as ``block_bytes``.
            puts: (store group, block, tokens) that are keyed by an explicit prefix.
        """
        if puts:
            part = len(self._requests)
            self._puts += chain.from_iterable((part, *put) for put in puts)
        self._requests.append(wire_id(request_id))
        self._rows += (
            *tokens,
            most,
            self._labels.setdefault(label, len(self._labels)),
            first_hash,
            len(hashes),
        )
        if hashes:
            self._hash_len = len(hashes[0])
            self._hashes += hashes
            self._bytes += len(hashes) * self._hash_len
        for first, blocks in tables:
            self._rows += (first, len(blocks) // 4)
            self._blocks.append(blocks)
            self._bytes += len(blocks)
            self._ahead |= len(blocks) >= 4 * _AHEAD_BLOCKS

    def command(self, epoch: int, generation: int) -> JobCommand:
        """The job, complete."""
        first, more = self._requests[0], len(self._requests) - 1
        frame = msg.StoreBatch(
            job=self.job,
            epoch=epoch,
            generation=generation,
            event=-1,
            reqs=self._requests,
            groups=self._groups,
            rows=block_bytes(self._rows),
            hash_len=self._hash_len,
            hashes=b"".join(self._hashes),
            blocks=b"".join(self._blocks),
            puts=block_bytes(self._puts),
            labels=list(self._labels),
        )
        return JobCommand(self.job, f"{first} and {more} more" if more else first, msg.frame(frame), ahead=self._ahead)
