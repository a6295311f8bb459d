"""One flipped byte in the store: without verification it shows in the log-probabilities, with it nobody sees it."""

from harness.cell import SHARD_BYTES, whole
from harness.compare import assert_right
from harness.segment import Segment

PROMPT_TOKENS = 3000


def store_prompt(cell, prompt):
    """Stores a prompt; returns the engine-warm output and the prompt's chunks, by depth."""
    with Segment(cell.daemons.wait("mooncake-lookupd")) as segment:
        before = {c.hash for c in segment.chunks()}
        cell.client.complete(prompt, 1)
        warm = cell.client.complete(prompt)
        cell.settle()
        chunks = [c for c in segment.chunks() if c.hash not in before]
    assert len(chunks) == whole(prompt) // 128
    return warm, chunks


def flip(cell, chunk, byte=SHARD_BYTES // 2 + 6):
    with Segment(cell.daemons.wait("mooncake-lookupd")) as segment:
        segment.flip(chunk.shards[0], byte)


def test_without_verification_a_flipped_byte_shows(cells, cut):
    cell = cells("unverified", extra={"verify": False}).start()
    prompt = cut.fresh(PROMPT_TOKENS)
    warm, chunks = store_prompt(cell, prompt)
    for chunk in (chunks[0], chunks[len(chunks) // 2], chunks[-1]):
        flip(cell, chunk)
        cell.forget()
        got, tokens = cell.loaded(prompt)
        assert tokens == whole(prompt)
        assert got.output != warm.output, f"a flipped byte in chunk {chunk.depth} changed nothing"
        flip(cell, chunk)
        cell.forget()
        got, tokens = cell.loaded(prompt)
        assert (got.output, tokens) == (warm.output, whole(prompt))


def test_with_verification_it_is_recomputed(shared, cut, reference, noise):
    prompt = cut.fresh(PROMPT_TOKENS)
    right = reference([prompt])
    _, chunks = store_prompt(shared, prompt)
    damaged = chunks[len(chunks) // 2]
    shared.forget()
    flip(shared, damaged)
    with Segment(shared.daemons.wait("mooncake-lookupd")) as segment:
        bad = segment.read(damaged.shards[0], SHARD_BYTES)

    got, tokens = shared.loaded(prompt)
    assert_right(right, [got], noise)
    shared.settle()
    with Segment(shared.daemons.wait("mooncake-lookupd")) as segment:
        renewed = {c.hash: c for c in segment.chunks()}.get(damaged.hash)
        assert renewed is not None, "the damaged chunk was dropped, but not stored again"
        assert segment.read(renewed.shards[0], SHARD_BYTES) != bad, "the damaged bytes are still served"
    shared.forget()
    # The renewed chunk stands between old ones; computed from another cached length, it differs from the first by noise.
    got, tokens = shared.loaded(prompt)
    assert tokens == whole(prompt)
    assert_right(right, [got], noise)
