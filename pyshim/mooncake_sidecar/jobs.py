"""Building job frames, and what travels inside vLLM's step metadata.

The scheduler packs complete frames; a worker only passes the bytes on. Blocks
and hashes are turned into bytes by library calls, never by a Python loop.
"""

import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from mooncake_sidecar import messages as msg
from mooncake_sidecar.ids import wire_id

_BLOCK_ID = "I"
if array(_BLOCK_ID).itemsize != 4:  # pragma: no cover - no such platform is known
    raise ImportError("this platform's unsigned int is not 32 bits wide")


def block_bytes(ids: Sequence[int]) -> bytes:
    """Block ids as little-endian u32 (every platform vLLM runs on is little-endian)."""
    return array(_BLOCK_ID, ids).tobytes()


def block_ids(data: bytes) -> list[int]:
    """The ids in ``block_bytes``' format; trailing bytes that make no id are dropped."""
    ids = array(_BLOCK_ID)
    ids.frombytes(data[: len(data) & ~3])
    return ids.tolist()


ALL_PARTS = -1


@dataclass(slots=True)
class JobCommand:
    """One job for every rank: the frame to pass on and what to do if it fails."""

    job: int
    request: str
    """Whose it is; of a store job for the log alone."""
    frame: bytes | bytearray
    suspects: bytes = b""
    """Blocks (u32) that a failed load leaves without valid bytes; empty where
    failures are reported by request."""
    far: bool = False
    """A load of which some comes from below the node's memory."""
    ahead: bool = False
    """A store that is worth two messages: one before the step computes, so that there are places by its end."""


@dataclass(slots=True)
class Numbering:
    """Ids of jobs, shared by loads and stores, and what they are of."""

    epoch: int
    last: int = 0
    generation: int | None = None
    """The namespace's that store jobs are of, None before the first is known. With each, a new epoch begins."""

    def take(self) -> int:
        """The next job's id."""
        self.last += 1
        return self.last


@dataclass(slots=True)
class StepCommands:
    """The content of a step's metadata."""

    loads: list[JobCommand] = field(default_factory=list)
    stores: list[JobCommand] = field(default_factory=list)
    """One, with a part for each request; several when there is very much to say."""
    finished: list[str] = field(default_factory=list)
    preempted: list[str] = field(default_factory=list)
    sync: int | None = None
    """The load that the step's forward pass reads: it begins when that one is over, well or not."""
    idle: bool = False
    """Nothing runs in the engine: this step computes nothing, and no step before it is under way."""


@dataclass
class Report:
    """What the ranks say after a step."""

    stores: dict[int, int] = field(default_factory=dict)
    """Store job -> ranks that are through with it."""
    failed: set[str] = field(default_factory=set)
    """Requests of which a load failed on some rank."""
    ready: dict[int, bool] = field(default_factory=dict)
    """Rank -> whether its jobs are taken; those that have no news, and no failed load, are left out."""
    incomplete: dict[int, set[int]] = field(default_factory=dict)
    """Store job -> its parts that some rank has not saved; ``ALL_PARTS`` stands for every one."""
    renewed: bool = False
    """Some rank has a new session with its daemon, or its store came or went: what was saved may be gone."""
    sync: bool | None = None
    """Whether loads may be synchronous now; None: no news."""

    def add(self, other: "Report") -> None:
        """Add another rank's report."""
        for job, ranks in other.stores.items():
            self.stores[job] = self.stores.get(job, 0) + ranks
        self.failed |= other.failed
        self.renewed |= other.renewed
        self.ready.update(other.ready)
        if other.sync is not None:
            self.sync = other.sync
        for job, parts in other.incomplete.items():
            self.incomplete[job] = self.incomplete.get(job, set()) | parts


def salt_tag(cache_salt: str | None) -> str:
    """A short digest of a request's cache salt, for quotas and scoped removal; the salt itself stays here."""
    return hashlib.sha256(cache_salt.encode()).hexdigest()[:16] if cache_salt else ""


def hash_blob(hashes: Sequence[bytes], count: int) -> tuple[int, bytes]:
    """(length of one hash, the first ``count`` hashes back to back); (0, empty) without hashes."""
    if not hashes or count <= 0:
        return 0, b""
    count = min(count, len(hashes))
    return len(hashes[0]), b"".join(hashes[:count] if count < len(hashes) else hashes)


def load_frame(
    job: int,
    epoch: int,
    request: Any,
    token_len: int,
    local_tokens: int,
    blocks: list[bytes],
    tails: Sequence[tuple[int, int]],
    hash_tokens: int,
    wishes: msg.Controls | None = None,
) -> bytearray:
    """The frame of a load job.

    Args:
        token_len: length of the hit in tokens, of which ``local_tokens`` are in the engine.
        blocks: block table by store group, as ``block_bytes``.
        tails: the lookup's (store group, boundary tokens) pairs.
    """
    reach = max([token_len, *(tokens for _, tokens in tails)])
    hash_len, blob = hash_blob(request.block_hashes, -(-reach // hash_tokens))
    return msg.frame(
        msg.LoadJob(
            job=job,
            epoch=epoch,
            req=wire_id(request.request_id),
            token_len=token_len,
            local_tokens=local_tokens,
            hash_len=hash_len,
            hashes=blob,
            blocks=blocks,
            tails=list(tails),
            salt_tag=salt_tag(request.cache_salt),
            controls=wishes,
        )
    )
