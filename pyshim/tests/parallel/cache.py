"""A rank's KV memory, laid out by vLLM's own code, and what belongs where in it."""

import hashlib

import numpy as np
import torch
from vllm.v1.kv_cache_layout import KVCacheLayout
from vllm.v1.worker.utils import allocate_kv_cache

from .layouts import Layout

WIPED = 0x5A


def token_words(tokens) -> np.ndarray:
    """For each token a number of it and all before it."""
    digest, words = hashlib.blake2b(digest_size=8), []
    for token in tokens:
        digest.update(token.to_bytes(4, "little"))
        words.append(int.from_bytes(digest.digest(), "little"))
    return np.array(words, dtype=np.uint64)


def _mixed(words: np.ndarray) -> np.ndarray:
    words = (words ^ (words >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    words = (words ^ (words >> np.uint64(29))) * np.uint64(0xC4CEB9FE1A85EC53)
    return words ^ (words >> np.uint64(32))


def slots(layout: Layout, place, spec, first, end):
    """(tokens that a rank holds of these, their blocks' places in the table, their places in a block)."""
    ranks = layout.dcp if spec.dcp_sharded else 1
    me, each = layout.dcp_rank(place) % ranks, layout.interleave
    positions = np.arange(first, end)
    chunk, inside = positions // (spec.block_size * ranks), positions % (spec.block_size * ranks)
    mine = inside // each % ranks == me
    return positions[mine], chunk[mine], (inside // (each * ranks) * each + inside % each)[mine]


def _bytes(views) -> np.ndarray:
    """The whole allocation."""
    return torch.tensor([], dtype=torch.uint8).set_(next(iter(views.values())).untyped_storage()).numpy()


class Cache:
    """The memory of one rank. The forward pass writes it, loads do; ``expected`` says what has to be there."""

    def __init__(self, layout: Layout, place, kv_config, context):
        """Args:
        context: vLLM allocates the memory in it.
        """
        self._layout, self._place, self._kv = layout, place, kv_config
        with context:
            self.views = allocate_kv_cache(kv_config, torch.device("cpu"), KVCacheLayout[layout.memory])
        self._expected = allocate_kv_cache(kv_config, torch.device("cpu"), KVCacheLayout[layout.memory])
        self.wipe()

    def wipe(self):
        """As another engine's memory: nothing that was computed is there."""
        for views in (self.views, self._expected):
            _bytes(views).fill(WIPED)

    def compute(self, words, tables, first, end):
        """The forward pass over tokens ``first`` to ``end`` of a request."""
        for group in range(len(self._kv.kv_cache_groups)):
            for views in (self.views, self._expected):
                self._write(views, group, words, tables[group], first, end)

    def load(self, words, tables, local, end):
        """Blocks between ``local`` and ``end`` tokens were loaded: all of their tokens are to be in them."""
        for group in range(len(self._kv.kv_cache_groups)):
            size = self.block_tokens(group)
            self._write(self._expected, group, words, tables[group], local // size * size, end)
            self._allow_unused(group, tables[group][local // size : end // size])

    def _allow_unused(self, group, blocks):
        """A stage may have fewer layers of a group than of another. What then lies in a block is nobody's."""
        used = {self.views[name].data_ptr() for name in self._kv.kv_cache_groups[group].layer_names}
        for name, view in self.views.items():
            if view.data_ptr() not in used:
                self._expected[name][blocks] = view[blocks]

    def block_tokens(self, group) -> int:
        """Tokens of a block, on whatever rank."""
        spec = self._kv.kv_cache_groups[group].kv_cache_spec
        return spec.block_size * (self._layout.dcp if spec.dcp_sharded else 1)

    def wrong_blocks(self) -> dict[str, list[int]]:
        """By layer: blocks with other bytes than they should have."""
        if np.array_equal(_bytes(self.views), _bytes(self._expected)):
            return {}
        found = {"elsewhere": []}
        for name, view in self.views.items():
            same = (view.view(torch.int32) == self._expected[name].view(torch.int32)).flatten(1).all(1)
            if not same.all():
                found[name] = torch.nonzero(~same).flatten().tolist()
        return found

    def _write(self, views, group, words, table, first, end):
        spec = self._kv.kv_cache_groups[group].kv_cache_spec
        positions, chunks, places = slots(self._layout, self._place, spec, first, end)
        blocks = np.array(table)[chunks]
        known = blocks != 0
        positions, blocks, places = positions[known], blocks[known], places[known]
        for name in self._kv.kv_cache_groups[group].layer_names:
            view = views[name].view(torch.int32).numpy()
            for local, head in enumerate(self._layout.heads_of(self._place)):
                of_head = np.uint64(int.from_bytes(hashlib.blake2b(f"{name} {head}".encode(), digest_size=8).digest()))
                columns = np.arange(view.shape[3], dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
                values = _mixed((words[positions] ^ of_head)[:, None] + columns[None, :])
                view[blocks, local, places] = values.astype(np.uint32).view(np.int32)
