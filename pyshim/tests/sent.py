"""What the scheduler role sends to the daemons, in words."""

import struct
from array import array
from dataclasses import dataclass

import msgspec

_FIXED = 8


def message(command):
    """The message in a job's frame."""
    (length,) = struct.unpack(">I", command.frame[:4])
    assert length == len(command.frame) - 4
    return msgspec.msgpack.decode(command.frame[4:])


@dataclass
class Part:
    """One request's part of a store job."""

    job: int
    epoch: int
    generation: int
    number: int
    request: str
    token_len: int
    completed: int
    prompt_len: int
    prefill_end: int
    most: int | None
    label: tuple
    first_hash: int
    hashes: bytes
    tables: list
    """By store group, from the request's first block on; the null block stands for what is left out."""
    puts: list


def stores(commands):
    """All parts of a step's store jobs."""
    return [part for command in commands for part in _parts(command)]


def _parts(command):
    sent = message(command)
    assert sent["t"] == "store" and sent["job"] == command.job and sent["event"] == -1 and sent["reqs"]
    rows, blocks, puts = (_u32(sent.get(name, b"")) for name in ("rows", "blocks", "puts"))
    width, hashes = _FIXED + 2 * sent["groups"], sent["hashes"]
    assert len(rows) == width * len(sent["reqs"])
    for number, request in enumerate(sent["reqs"]):
        row, rows = rows[:width], rows[width:]
        tables = []
        for first, count in zip(row[_FIXED::2], row[_FIXED + 1 :: 2], strict=True):
            tables.append([0] * first + blocks[:count])
            blocks = blocks[count:]
        size = row[7] * sent["hash_len"]
        own, hashes = hashes[:size], hashes[size:]
        yield Part(
            command.job,
            sent["epoch"],
            sent["generation"],
            number,
            request,
            *row[:4],
            None if row[4] == 0xFFFFFFFF else row[4],
            tuple(sent["labels"][row[5]]),
            row[6],
            own,
            tables,
            [tuple(puts[i + 1 : i + 4]) for i in range(0, len(puts), 4) if puts[i] == number],
        )
    assert not rows and not blocks and not hashes


def _u32(data):
    found = array("I")
    found.frombytes(data)
    return found.tolist()
