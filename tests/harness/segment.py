"""The store's segment and an engine's KV memory, read (and damaged on purpose) from outside through /proc.

The layout is that of store/embedded/layout.go, format 3; a header that does not fit it is refused.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import pathlib
import struct

MAGIC = b"MCSIDSEG"
FORMAT = 3
PAGE = 4096
_SESSIONS, _NAMESPACES, _TAGS = 256 * 32, 128 * (16 << 10), 1024 * 256
_RECORD, _SLOT_ENTRY, _SLAB_ENTRY = 64, 8, 8
_MIN_SLAB = 2 << 20
_ACTIVE = 2
_NO_SLOT = 0xFFFFFFFF
_LINK_BITS = 25
_NAMESPACE = 127  # the bits above are its resets, as many as fit


@dataclasses.dataclass(frozen=True)
class Shard:
    """Where one rank's bytes of a chunk lie in the file."""

    number: int
    offset: int
    checksum: int
    entry: int  # of its slot


@dataclasses.dataclass(frozen=True)
class Chunk:
    """One active record."""

    hash: bytes
    namespace: int
    group: int
    depth: int
    shards: tuple[Shard, ...]


class Segment:
    """The segment that a lookupd holds. Opening it needs the same uid; writing it is what no product code does."""

    def __init__(self, pid: int):
        self.fd = _open_memfd(pid, lambda fd: os.pread(fd, 8, 0) == MAGIC)
        header = os.pread(self.fd, PAGE, 0)
        version = struct.unpack_from("<I", header, 8)[0]
        if version != FORMAT:
            raise RuntimeError(f"segment of format {version}; this reader knows {FORMAT}")
        self.slab_bytes, self.slabs, self.records, self.slots_per_slab = struct.unpack_from("<QIII", header, 32)
        at = PAGE
        places = []
        for length in (
            _SESSIONS,
            _NAMESPACES,
            _TAGS,
            self.slabs * _SLAB_ENTRY,
            self.records * _RECORD,
            self.slabs * self.slots_per_slab * _SLOT_ENTRY,
        ):
            places.append(at)
            at = -(-(at + length) // PAGE) * PAGE
        _, _, _, self._slabs_at, self._records_at, self._slots_at = places
        self.data_offset = -(-at // _MIN_SLAB) * _MIN_SLAB
        if self.data_offset + self.slabs * self.slab_bytes != struct.unpack_from("<Q", header, 56)[0]:
            raise RuntimeError("the segment's geometry is not what this reader computes")

    def __enter__(self) -> "Segment":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)

    def chunks(self) -> list[Chunk]:
        """Every chunk that is whole, by depth."""
        (ready,) = struct.unpack("<I", os.pread(self.fd, 4, 84))  # those behind were never used
        table = os.pread(self.fd, min(ready, self.records) * _RECORD, self._records_at)
        found = []
        for i in range(0, len(table), _RECORD):
            namespace, group, packed, slot = struct.unpack_from("<HHII", table, i + 40)
            if packed >> 24 != _ACTIVE:
                continue
            shards = []
            while slot != _NO_SLOT:
                checksum, link = struct.unpack("<II", os.pread(self.fd, 8, self._slots_at + slot * _SLOT_ENTRY))
                number = link >> (_LINK_BITS + 1)
                shards.append(Shard(number, self._slot_offset(slot), checksum, self._slots_at + slot * _SLOT_ENTRY))
                slot = _NO_SLOT if link >> _LINK_BITS & 1 else (link & (1 << _LINK_BITS) - 1) - 1
            found.append(Chunk(table[i : i + 32], namespace & _NAMESPACE, group, packed & 0xFFFFFF, tuple(shards)))
        return sorted(found, key=lambda c: c.depth)

    def read(self, shard: Shard, length: int) -> bytes:
        return os.pread(self.fd, length, shard.offset)

    def flip(self, shard: Shard, byte: int) -> None:
        """Inverts one byte of a shard."""
        at = shard.offset + byte
        os.pwrite(self.fd, bytes([os.pread(self.fd, 1, at)[0] ^ 0xFF]), at)

    def forge(self, shard: Shard, byte: int, length: int) -> None:
        """Inverts one byte of a shard of that length, and its checksum with it: verification finds nothing wrong."""
        self.flip(shard, byte)
        checksum = struct.unpack("<I", os.pread(self.fd, 4, shard.entry))[0]
        os.pwrite(self.fd, struct.pack("<I", checksum ^ _crc_of_flip(length - byte - 1)), shard.entry)

    def _slot_offset(self, slot: int) -> int:
        slab, index = divmod(slot, self.slots_per_slab)
        size = struct.unpack("<I", os.pread(self.fd, 4, self._slabs_at + slab * _SLAB_ENTRY))[0]
        return self.data_offset + slab * self.slab_bytes + index * size


class KvMemory:
    """The KV cache of a CPU engine that our connector put into a memfd: layers one after the other, blocks in each."""

    def __init__(self, engine_group: int, layers: int, page_bytes: int):
        for pid in processes_of_group(engine_group):
            try:
                self.fd = _open_memfd(pid, lambda fd: True, name="mooncake-sidecar-kv")
                break
            except LookupError:
                continue
        else:
            raise LookupError(f"no process of group {engine_group} holds KV memory in a memfd")
        self.layers, self.page_bytes = layers, page_bytes
        self.size = os.fstat(self.fd).st_size
        self.blocks = self.size // (layers * page_bytes)

    def __enter__(self) -> "KvMemory":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)

    def block(self, number: int) -> bytes:
        """A block's bytes over all layers, in the order in which a shard holds them."""
        layer = self.size // self.layers
        return b"".join(os.pread(self.fd, self.page_bytes, k * layer + number * self.page_bytes) for k in range(self.layers))

    def digests(self) -> set[bytes]:
        """Digest of every block that was ever written."""
        unwritten = bytes(self.layers * self.page_bytes)
        return {digest(content) for content in map(self.block, range(self.blocks)) if content != unwritten}


def _crc_of_flip(following: int) -> int:
    """By what CRC-32C changes when a byte with so many bytes behind it is inverted; the sum is linear."""
    changed = 0
    for byte in range(following + 1):
        changed = _CRC_TABLE[(changed ^ (0xFF if byte == 0 else 0)) & 0xFF] ^ (changed >> 8)
    return changed


def _crc_table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


_CRC_TABLE = _crc_table()


def digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


def processes_of_group(group: int) -> list[int]:
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                fields = pathlib.Path(entry.path, "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[2]) == group:
                found.append(int(entry.name))
    return found


def _open_memfd(pid: int, accept, name: str = "") -> int:
    for entry in os.scandir(f"/proc/{pid}/fd"):
        try:
            target = os.readlink(entry.path)
        except OSError:
            continue
        if not target.startswith("/memfd:" + name):
            continue
        fd = os.open(entry.path, os.O_RDWR | os.O_CLOEXEC)
        if accept(fd):
            return fd
        os.close(fd)
    raise LookupError(f"process {pid} holds no such memfd")
