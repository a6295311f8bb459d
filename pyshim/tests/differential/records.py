"""One step's jobs of either connector, in the same terms."""

from dataclasses import dataclass, field
from typing import Any

from sent import Part, message

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
    part: int
    epoch: int
    token_len: int
    completed: int
    prompt_len: int
    prefill_end: int
    puts: tuple
    """Sorted (store group, block, tokens)."""
    tables: tuple
    hashes: bytes = field(repr=False)
    skipped: int = 0
    """Bytes of hashes in front that are left out."""

    @property
    def is_empty(self) -> bool:
        return not self.token_len and not self.puts

    def may_read(self, attention: list[int]) -> set[int]:
        """Every block that some rank may read for this job, of the groups without recurrent state."""
        found = {block for group in attention for block in self.tables[group]} | {put[1] for put in self.puts}
        return found - {0}


def _blocks(data: list[bytes]) -> tuple:
    return tuple(tuple(block_ids(group)) for group in data)


def our_load(command: Any) -> Load:
    frame = message(command)
    assert frame["t"] == "load" and frame["job"] == command.job
    return Load(
        command.request,
        frame["token_len"],
        frame["local_tokens"],
        tuple(map(tuple, frame.get("tails", ()))),
        _blocks(frame["blocks"]),
    )


def our_save(part: Part, block_tokens: list[int], attention: list[int]) -> Save:
    """Our part of a store job. A daemon takes what is beyond a table's end for the null block."""
    tables = [list(table) for table in part.tables]
    for group in attention:
        tables[group] += [0] * (-(-part.token_len // block_tokens[group]) - len(tables[group]))
    return Save(
        part.request,
        part.job,
        part.number,
        part.epoch,
        part.token_len,
        part.completed,
        part.prompt_len,
        part.prefill_end,
        tuple(sorted(part.puts)),
        tuple(map(tuple, tables)),
        part.hashes,
        part.first_hash * 32,
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
        0,
        meta.token_len_chunk,
        meta.completed_token_len,
        meta.num_prompt_tokens,
        meta.prefill_end_tokens,
        puts,
        _cut(meta.block_ids, meta.token_len_chunk, block_tokens),
        b"".join(meta.block_hashes[: -(-reach // hash_tokens)]),
    )
