"""vLLM's own block pool and event publisher without an engine around them: what an engine's scheduler does with the two.

    Request   what a pool reads of a request: tokens, salt, adapter, and vLLM's hashes of its blocks
    Rank      a pool whose events a publisher of vLLM's sends, and the truth: what the pool holds now
"""

from __future__ import annotations

import pathlib
import random
import time
from typing import Callable, Sequence

from vllm.distributed.kv_events import KVEventBatch, ZmqEventPublisher
from vllm.lora.request import LoRARequest
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.block_pool import BlockPool

BLOCK = 4
GROUP = 0
ADAPTERS = {name: LoRARequest(name, n + 1, f"/adapters/{name}") for n, name in enumerate(("red", "blue"))}


def hashing(algorithm: str) -> Callable:
    """Sets vLLM's hash function for this process, and the hash of no parent from PYTHONHASHSEED."""
    function = get_hash_fn_by_name(algorithm)
    kv_cache_utils.init_none_hash(function)
    return function


class Request:
    """Block hashes are made at once, as vLLM's Request makes them."""

    def __init__(self, tokens: Sequence[int], salt: str | None = None, adapter: str | None = None, function: Callable | None = None, block: int = BLOCK):
        self.all_token_ids, self.block = list(tokens), block
        self.cache_salt, self.adapter = salt, adapter
        self.lora_request = ADAPTERS[adapter] if adapter else None
        self.mm_features, self.prompt_embeds, self.session_id, self.prompt_is_token_ids = [], None, None, None
        function = function or hashing("sha256")
        parent, self.block_hashes = kv_cache_utils.NONE_HASH, []
        for start in range(0, len(tokens) - block + 1, block):
            extra, _ = kv_cache_utils.generate_block_hash_extra_keys(self, start, start + block, 0)
            parent = kv_cache_utils.hash_block_tokens(function, parent, self.all_token_ids[start : start + block], extra)
            self.block_hashes.append(parent)

    def external(self) -> list[int]:
        """The hashes as events name them."""
        return [int.from_bytes(digest[-8:], "big") for digest in self.block_hashes]

    def query(self, model: str) -> dict:
        """The question for /query."""
        return {"model": model, "block_size": self.block, "token_ids": self.all_token_ids, "cache_salt": self.cache_salt, "lora_name": self.adapter}


class Prompts:
    """Prompts of few different blocks, so that they share beginnings; with and without salts and adapters."""

    def __init__(self, function: Callable, seed: int, letters: int = 2, longest: int = 6):
        self._random, self._function = random.Random(seed), function
        # Numbers of one byte and of several; a letter is a block.
        self._blocks = [[token + n for token in (1, 300, 70000, 5)] for n in range(letters)]
        self._longest = longest
        self._known: dict[tuple, Request] = {}

    def make(self, letters: Sequence[int], salt: str | None = None, adapter: str | None = None) -> Request:
        key = (tuple(letters), salt, adapter)
        if key not in self._known:
            self._known[key] = Request([t for n in letters for t in self._blocks[n]], salt, adapter, self._function)
        return self._known[key]

    def draw(self) -> Request:
        letters = self._random.choices(range(len(self._blocks)), k=self._random.randrange(1, self._longest + 1))
        return self.make(letters, self._random.choice((None, None, "salt", "red")), self._random.choice((None, None, "red", "blue")))

    def known(self) -> list[Request]:
        """All that were drawn, and their variants that differ in salt or adapter alone."""
        for letters, _, _ in list(self._known):
            for salt in (None, "salt", "red"):
                for adapter in (None, "red", "blue"):
                    self.make(letters, salt, adapter)
        return list(self._known.values())


class Rank:
    """One data-parallel rank. `sent` counts the batches of the present publisher: its next sequence number."""

    def __init__(self, directory: pathlib.Path, name: str, rank: int, prompts: Prompts, seed: int, blocks: int = 40, report: bool = False, buffered: int = 10_000):
        self.name, self.rank, self.buffered = name, rank, buffered
        self.endpoint, self.replay_endpoint = (f"ipc://{directory}/{name}-{rank}.{what}" for what in ("live", "replay"))
        self.prompts, self._random, self._blocks, self._report = prompts, random.Random(seed), blocks, report
        self.started = 0
        self._start()

    def _start(self) -> None:
        self.pool = BlockPool(self._blocks, enable_caching=True, hash_block_size=BLOCK, enable_kv_cache_events=True)
        self._running: list[tuple[Request, list, int]] = []
        self.sent = 0
        self.started += 1
        # The rank goes into the batches: vLLM counts it on top of ports, and a path has none.
        self._publisher = ZmqEventPublisher(0, self.endpoint, self.replay_endpoint, buffer_steps=self.buffered)

    def restart(self) -> None:
        """The process ends and another one begins, with nothing, at the same endpoints."""
        self.close()
        self._start()

    def close(self) -> None:
        self._publisher.shutdown()

    def publish(self, events: list) -> None:
        self._publisher.publish(KVEventBatch(ts=time.time(), events=events, data_parallel_rank=self.rank))
        self.sent += 1

    def take(self) -> None:
        """What a scheduler does at the end of a step."""
        if events := self.pool.take_events():
            self.publish(events)

    def held(self, request: Request) -> int:
        """How many blocks of a request the pool has, from the first one on."""
        n = 0
        while n < len(request.block_hashes) and self.pool.get_cached_block(request.block_hashes[n], [GROUP]):
            n += 1
        return n

    def begin(self, request: Request, reuse: bool = True, compute: int | None = None) -> bool:
        """Allocates a request's blocks and fills some in this step (all without compute); False without room."""
        whole = len(request.block_hashes)
        reused = self.held(request) if reuse else 0
        hit = [self.pool.get_cached_block(digest, [GROUP])[0] for digest in request.block_hashes[:reused]]
        self.pool.touch(hit)
        if whole - reused > self.pool.get_num_free_blocks():
            self.pool.free_blocks(reversed(hit))
            return False
        if self._report:
            self.pool.emit_cached_block_events(request, reused, BLOCK, GROUP)
        done = whole if compute is None else min(whole, reused + compute)
        blocks = hit + self.pool.get_new_blocks(whole - reused)
        self.pool.cache_full_blocks(request, blocks, reused, done, BLOCK, GROUP)
        self._running.append((request, blocks, done))
        return True

    def go_on(self, n: int = -1) -> None:
        """Fills the rest of a request's blocks."""
        request, blocks, done = self._running.pop(n)
        self.pool.cache_full_blocks(request, blocks, done, len(blocks), BLOCK, GROUP)
        self._running.append((request, blocks, len(blocks)))

    def end(self, n: int = -1) -> None:
        """Frees a request's blocks: they stay cached until others need them."""
        _, blocks, _ = self._running.pop(n)
        self.pool.free_blocks(reversed(blocks))

    def reset(self) -> None:
        while self._running:
            self.end()
        assert self.pool.reset_prefix_cache()

    def step(self) -> None:
        """Something at random, and its events."""
        action = self._random.random()
        if action < 0.5:
            # Most requests reuse what is there; some do not, as in one batch, and hold copies.
            self.begin(self.prompts.draw(), reuse=self._report or self._random.random() < 0.7, compute=self._random.randrange(7))
        elif self._running and action < 0.6:
            self.go_on(self._random.randrange(len(self._running)))
        elif self._running and action < 0.995:
            self.end(self._random.randrange(len(self._running)))
        elif action >= 0.995:
            self.reset()
        self.take()


