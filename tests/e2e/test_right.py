"""Outputs from our store are those of the engine's own cache, bit for bit; and right when many requests run at once."""

import contextlib
import os

from harness.cell import SHARD_BYTES, whole
from harness.compare import assert_right
from harness.daemons import WORKER
from harness.prompts import block_hashes
from harness.segment import Segment, digest


def warm_outputs(cell, prompts):
    """Each prompt's output when the engine's own cache holds it: the same cached length as a load from the store."""
    for prompt in prompts:
        cell.client.complete(prompt, 1)
    outputs = [cell.client.complete(prompt) for prompt in prompts]
    assert [o.cached_tokens for o in outputs] == [whole(p) for p in prompts]
    return outputs


def test_one_at_a_time_after_reset_and_after_restart(cells, model, cut, reference, noise):
    cell = cells("restart").start()
    head = cut.fresh(2500)
    prompts = [cut.fresh(n) for n in (129, 257, 1000, 4200, 7777)] + [head + cut.text(n) for n in (30, 700, 1500)]
    warm = warm_outputs(cell, prompts)
    assert_right(reference(prompts), warm, noise)

    cell.forget()
    for prompt, want in zip(prompts, warm):
        got, tokens = cell.loaded(prompt)
        assert tokens == whole(prompt)
        assert got.output == want.output
        cell.forget()

    daemons = cell.daemons.running()
    cell.crash()
    assert cell.daemons.running() == daemons, "a daemon went with the engine"
    cell.options["fresh"] = True  # as everybody starts it, with processes that vLLM spawns
    cell.start()
    for prompt, want in zip(prompts, warm):
        got, tokens = cell.loaded(prompt)
        assert tokens == whole(prompt), "the store lost what the killed engine had stored"
        assert got.output == want.output
        cell.forget()


def test_sixteen_at_once(shared, cut, reference, noise):
    head = cut.fresh(1100)
    prompts = [cut.fresh(n) for n in (300, 700, 1500, 2600, 3900, 5000, 900, 1300)]
    prompts += [head + cut.text(n) for n in (100, 400, 900, 1400, 2000, 2600, 3000, 3300)]
    right = reference(prompts, 24)
    assert_right(right, shared.client.complete_many(prompts, 24), noise)
    shared.forget()

    before = shared.client.metrics().external_hit_tokens
    got = shared.client.complete_many(prompts, 24)
    tokens = shared.client.metrics().external_hit_tokens - before
    assert_right(right, got, noise)
    # Requests that run together may find a shared prefix in the engine's cache once the first of them has loaded it.
    assert tokens >= sum(map(whole, prompts)) - 7 * whole(head)

    shared.settle()
    expected = {h for p in prompts for h in block_hashes(p)[: whole(p) // 128]}
    with Segment(shared.daemons.wait("mooncake-lookupd")) as segment, shared.kv_memory() as memory:
        stored = {c.hash: digest(segment.read(c.shards[0], SHARD_BYTES)) for c in segment.chunks()}
        in_engine = memory.digests()
    assert expected <= stored.keys(), "chunks are missing from the store"
    assert all(stored[h] in in_engine for h in expected), "the engine's blocks do not hold the bytes that were stored"


def test_daemons_are_small(shared):
    for name in ("mooncake-lookupd", "mooncake-worker"):
        assert shared.daemons.resident_bytes(name) < 64 << 20, name


def test_only_what_nobody_waits_for_has_a_low_priority(shared):
    """Stores are copied by a thread of their own that yields to the engine, and loads are not."""
    pid, found = shared.daemons.wait(WORKER), set()
    for thread in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
            found.add(os.getpriority(os.PRIO_PROCESS, int(thread)))
    usual = min(found)  # not the process's, which is its first thread's: Go may have that one copy
    assert found == {usual, min(usual + 10, 19)}
