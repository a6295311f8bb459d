"""Prompts as lists of token ids, cut from real text: exact lengths, and prefixes shared on purpose."""

from __future__ import annotations

import functools
import pathlib
import random

from . import corpus
from .engine import BLOCK


class Prompts:
    """Cuts prompts with the checkpoint's tokenizer. The same seed gives the same prompts."""

    def __init__(self, model: pathlib.Path, seed: int):
        self._encode = _tokenizer(model).encode
        self._rng = random.Random(seed)

    def fresh(self, tokens: int) -> list[int]:
        """A prompt of exactly that length that shares no block with another one: it begins with tokens of its own."""
        mark = [self._rng.randrange(2, 4096) for _ in range(8)]
        return mark + self.text(tokens - len(mark))

    def text(self, tokens: int) -> list[int]:
        ids: list[int] = []
        while len(ids) < tokens:
            ids += self._encode(corpus.passage(self._rng, min(tokens * 5 + 64, 200_000))).ids
        return ids[:tokens]

    def families(self, count: int, longest: int) -> list[list[int]]:
        """Prompts of random lengths, most of which begin as an earlier one does, to a random length."""
        made: list[list[int]] = []
        for _ in range(count):
            head = self.fresh(8)
            if made and self._rng.random() < 0.8:
                earlier = self._rng.choice(made)
                head = earlier[: self._rng.randrange(1, len(earlier) + 1)]
            tail = self._rng.randrange(1, max(2, longest - len(head)))
            made.append((head + self.text(tail))[:longest])
        return made


def block_hashes(prompt: list[int]) -> list[bytes]:
    """Hashes of a prompt's whole blocks, as vLLM computes them."""
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import hash_block_tokens, init_none_hash

    init_none_hash(sha256)
    hashes, parent = [], None
    for at in range(0, len(prompt) - BLOCK + 1, BLOCK):
        parent = hash_block_tokens(sha256, parent, prompt[at : at + BLOCK], None)
        hashes.append(parent)
    return hashes


@functools.cache
def _tokenizer(model: pathlib.Path):
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(model / "tokenizer.json"))
