"""The frames of the session protocol, field for field as ``connector/messages.go``.

Every class is one message; its tag is the ``t`` of the frame. Fields that are
at their default are left out, which a Go peer reads as the zero value.
"""

import builtins
from typing import Any

import msgspec

from mooncake_sidecar.frames import HEADER_BYTES, seal

PROTOCOL_VERSION = 3

ROLE_WORKER = "worker_shim"
ROLE_SCHEDULER = "scheduler_shim"
ROLE_PROBE = "probe"

SOCKET_TAKEN = "socket_taken"

STATUS_OK = "ok"
STATUS_FAILED = "failed"
STATUS_DROPPED = "dropped"
STATUS_CANCELLED = "cancelled"

KIND_STORE = "store"
KIND_LOAD = "load"


class _Message(msgspec.Struct, tag_field="t", omit_defaults=True, forbid_unknown_fields=False):
    """A frame; unknown fields of a newer peer are ignored."""


# Sent by us.


class Hello(_Message, tag="hello"):
    protocol: int
    role: str
    pid: int
    engine_id: str
    epoch: int
    version: str


class GroupSpec(msgspec.Struct):
    """One store group of a namespace (``kv.GroupSpec``)."""

    kind: str
    block_tokens: int
    window_tokens: int
    eagle: bool
    identity: str
    shard_bytes: int
    shards: int


class NamespaceSpec(msgspec.Struct):
    """What must be equal for KV bytes to be interchangeable (``kv.NamespaceSpec``)."""

    model: str
    revision: str
    fingerprint: str
    cache_prefix: str
    dtype: str
    layout: str
    hash_algorithm: str
    hash_bytes: int
    hash_block_tokens: int
    scheduler_block_tokens: int
    hit_alignment_tokens: int
    use_eagle: bool
    retention_tokens: int
    tp: int
    pp: int
    pcp: int
    dcp: int
    groups: list[GroupSpec]
    key_space: str = ""


class KVSegment(msgspec.Struct):
    """One strided run of a shard's bytes: block i's is at ``offset + i*block_stride``.

    ``shard`` counts the rank's shards of the group from 0.
    """

    group: int
    region: int
    offset: int
    block_stride: int
    bytes: int
    shard: int = 0


class KVRegion(msgspec.Struct, omit_defaults=True):
    """One region of KV memory.

    Its kind is ``memfd`` (``fd`` indexes the frame's descriptors), ``process_vm``,
    ``cuda_ipc``, ``cuda_vmm`` or ``cuda_fabric``. ``address`` of the last three is
    where the region begins in its allocation, or in its chunks, whose descriptors
    begin at ``fd``, or whose fabric handles are in ``handle``.
    """

    kind: str
    fd: int
    address: int
    bytes: int
    handle: builtins.bytes = b""
    chunks: list[int] = []


class Register(_Message, tag="register"):
    fds: int
    namespace: NamespaceSpec
    device: str
    num_blocks: int
    shard_by_group: list[int]
    put_stride: list[int]
    put_phase: list[int]
    regions: list[KVRegion]
    segments: list[KVSegment]
    job_board: int
    job_slots: int
    lookup_engine: str
    verify: bool
    store_retention: int = 0
    held_shards: int = 1
    device_uuid: bytes = b""
    events: list[bytes] = []


class Engine(_Message, tag="engine"):
    namespace: NamespaceSpec
    lookup_path: str
    lookup_engine: str
    lookup_async: bool = False
    lookup_timeout_ms: int = 0


class Controls(msgspec.Struct, omit_defaults=True):
    max_load_tokens: int | None = None
    max_offload_tokens: int | None = None


class StoreBatch(_Message, tag="store"):
    """All that a step stores, in columns (``connector.storeWire``, made by ``batch``)."""

    job: int
    epoch: int
    generation: int
    event: int
    reqs: list[str]
    groups: int
    rows: bytes
    hash_len: int
    hashes: bytes
    blocks: bytes
    labels: list[tuple[str, int, int]]
    puts: bytes = b""


class LoadJob(_Message, tag="load"):
    job: int
    epoch: int
    req: str
    token_len: int
    local_tokens: int
    hash_len: int
    hashes: bytes
    blocks: list[bytes]
    tails: list[tuple[int, int]] = []
    salt_tag: str = ""
    controls: Controls | None = None


class Cancel(_Message, tag="cancel"):
    jobs: list[int]


class Finished(_Message, tag="finished"):
    reqs: list[str]
    preempted: list[str] = []


class After(_Message, tag="after"):
    """The jobs that follow wait for the event of this number."""

    event: int


class Ahead(_Message, tag="ahead"):
    """The store job of this id, which follows, comes before the bytes of its blocks are there."""

    job: int


class Final(_Message, tag="final"):
    """The bytes of store jobs that came ahead are there, behind the event that the last ``After`` names."""

    jobs: list[int]


class Ping(_Message, tag="ping"):
    seq: int


class LookupChannel(_Message, tag="lookup_channel"):
    fds: int


# Received by us. Every field has the default a Go peer's omission means.


class Welcome(_Message, tag="welcome"):
    protocol: int = 0
    daemon: str = ""
    version: str = ""
    pid: int = 0
    session: int = 0
    autostarted: bool = False


class Error(_Message, tag="error"):
    code: str = ""
    message: str = ""
    job: int = 0


class Registered(_Message, tag="registered"):
    namespace_digest: str = ""
    lookup_path: str = ""
    store_ready: bool = False
    generation: int | None = None
    lookup_stride: int = 0
    events_endpoint: str = ""
    events_replay: str = ""
    events_topic: str = ""
    events_refused: bool = False
    ahead: bool = False


class Generation(_Message, tag="generation"):
    """The namespace was reset, by whomever."""

    generation: int


class Result(_Message, tag="result"):
    job: int
    kind: str = ""
    status: str = ""
    reason: str = ""
    failed: bytes | None = None
    incomplete: bytes | None = None
    chunks: int = 0
    existing: int = 0
    bytes: int = 0
    asked: int = 0
    us: int = 0
    ask_us: int = 0
    move_us: int = 0


class Pong(_Message, tag="pong"):
    seq: int = 0
    store_ready: bool = False


class Unknown(msgspec.Struct):
    """A message of a type this build does not know; it is counted and skipped."""

    t: str


Incoming = Welcome | Error | Registered | Generation | Result | Pong

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Incoming)
_envelope = msgspec.msgpack.Decoder(Unknown)
_KNOWN = frozenset(("welcome", "error", "registered", "generation", "result", "pong"))


def encode(message: Any) -> bytes:
    """The msgpack map of a message, without the length in front."""
    return _encoder.encode(message)


def frame(message: Any) -> bytearray:
    """The complete frame of a message.

    Raises:
        FrameError: it is longer than the peer would accept.
    """
    whole = bytearray(HEADER_BYTES)
    _encoder.encode_into(message, whole, HEADER_BYTES)
    seal(whole)
    return whole


def decode(body: bytes | bytearray | memoryview) -> Incoming | Unknown:
    """Parse one frame's body.

    Raises:
        ValueError: it is no message; the text says why.
    """
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        reason = error
    try:
        envelope = _envelope.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise ValueError(f"malformed frame: {reason}") from reason
    if envelope.t in _KNOWN:
        raise ValueError(f"malformed {envelope.t} frame: {reason}") from reason
    return envelope
