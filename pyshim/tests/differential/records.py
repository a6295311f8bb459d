"""One step's jobs of either connector, in the same terms."""

import struct
from dataclasses import dataclass, field
from typing import Any

import msgspec

from mooncake_sidecar.jobs import block_ids


@dataclass(frozen=True)
class Load:
    request: str
    token_len: int
    local_tokens: int
    tails: tuple
    tables: tuple
    """By store group: the blocks up to ``token_len``."""


@dataclass(frozen=True)
class Save:
    request: str
    job: int | None
    epoch: int
    token_len: int
    completed: int
    prompt_len: int
    prefill_end: int
    puts: tuple
    """Sorted (store group, block, tokens)."""
    tables: tuple
    hashes: bytes = field(repr=False)

    @property
    def is_empty(self) -> bool:
        return not self.token_len and not self.puts

    def may_read(self, attention: list[int]) -> set[int]:
        """Every block that some rank may read for this job, of the groups without recurrent state."""
        found = {block for group in attention for block in self.tables[group]} | {put[1] for put in self.puts}
        return found - {0}


def _frame(command: Any) -> dict[str, Any]:
    (length,) = struct.unpack(">I", command.frame[:4])
    assert length == len(command.frame) - 4
    return msgspec.msgpack.decode(command.frame[4:])


def _blocks(data: list[bytes]) -> tuple:
    return tuple(tuple(block_ids(group)) for group in data)


def our_load(command: Any) -> Load:
    frame = _frame(command)
    assert frame["t"] == "load" and frame["job"] == command.job
    return Load(
        command.request,
        frame["token_len"],
        frame["local_tokens"],
        tuple(map(tuple, frame.get("tails", ()))),
        _blocks(frame["blocks"]),
    )


def our_save(command: Any, block_tokens: list[int], attention: list[int]) -> Save:
    """A store job of ours. A daemon takes what is beyond a table's end for the null block."""
    frame = _frame(command)
    tables = [list(table) for table in _blocks(frame["blocks"])]
    for group in attention:
        tables[group] += [0] * (-(-frame["token_len"] // block_tokens[group]) - len(tables[group]))
    assert frame["t"] == "store" and frame["job"] == command.job
    return Save(
        command.request,
        command.job,
        frame["epoch"],
        frame["token_len"],
        frame["completed"],
        frame["prompt_len"],
        frame["prefill_end"],
        tuple(sorted(map(tuple, frame.get("boundary_puts", ())))),
        tuple(map(tuple, tables)),
        frame["hashes"],
    )


def _cut(tables: Any, tokens: int, block_tokens: list[int]) -> tuple:
    return tuple(tuple(table[: -(-tokens // size)]) for table, size in zip(tables, block_tokens, strict=True))


def their_load(meta: Any, block_tokens: list[int]) -> Load:
    spec = meta.load_spec
    return Load(
        meta.req_id,
        spec.kvpool_cached_tokens,
        spec.vllm_cached_tokens,
        tuple((tail.group_id, tail.num_tokens) for tail in spec.tail_key_boundaries),
        _cut(meta.block_ids, spec.kvpool_cached_tokens, block_tokens),
    )


def their_save(meta: Any, block_tokens: list[int], hash_tokens: int) -> Save:
    puts = tuple(sorted((put.group_id, put.block_id, put.num_tokens) for put in meta.boundary_puts or ()))
    reach = max([meta.token_len_chunk, *(tokens for _, _, tokens in puts)])
    return Save(
        meta.req_id,
        meta.store_job_id,
        0,
        meta.token_len_chunk,
        meta.completed_token_len,
        meta.num_prompt_tokens,
        meta.prefill_end_tokens,
        puts,
        _cut(meta.block_ids, meta.token_len_chunk, block_tokens),
        b"".join(meta.block_hashes[: -(-reach // hash_tokens)]),
    )
