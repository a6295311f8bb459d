"""Hybrids with sliding windows, and latent attention: right, safe and compatible as Llama is.

One engine a kind serves most tests; a second with few blocks and slowed copies is for what happens to daemons meanwhile,
for preemptions, aborts, and prompts that are computed in many small chunks.
"""

import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from harness import mooncake
from harness.cell import Cell
from harness.compare import Noise, assert_right, measure
from harness.daemons import LOOKUPD, WORKER
from harness.engine import REPOSITORY, Engine, in_tree
from harness.kind import LATENT, SLIDING
from harness.prompts import Prompts
from harness.segment import Segment, digest
from harness.storm import Abandoned, wait_load_in_flight

NO_CHUNKS = ["--no-enable-chunked-prefill"]
SMALL_CHUNKS = ["--max-model-len", "4096", "--max-num-batched-tokens", "512", "--enable-chunked-prefill"]

needs_master = pytest.mark.skipif(mooncake.available() is not None, reason=str(mooncake.available()))


@pytest.fixture(scope="module", params=[SLIDING, LATENT], ids=lambda kind: kind.name)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def checkpoint(kind):
    return kind.family.generate(REPOSITORY / "build" / f"checkpoint-{kind.name}")


@pytest.fixture(scope="module")
def cell(kind, checkpoint):
    with Cell(checkpoint, kind.name) as made:
        yield made.start()


@pytest.fixture()
def cut(checkpoint, request):
    return Prompts(checkpoint, seed=sum(request.node.nodeid.encode()) * 7919)


@pytest.fixture(scope="module")
def right(cell):
    """From prompts to the outputs of an engine that remembers nothing."""

    def outputs(prompts, max_tokens=16):
        found = []
        for prompt in prompts:
            cell.forget(everywhere=True)
            found.append(cell.client.complete(prompt, max_tokens))
        cell.forget(everywhere=True)
        return found

    return outputs


@pytest.fixture(scope="module")
def noise(cell, checkpoint, right):
    """How much vLLM's own outputs move when requests share batches."""
    cut = Prompts(checkpoint, seed=77)
    prompts = [cut.fresh(n) for n in (300, 500, 700, 900, 1100, 1300, 1500, 1700)]
    single = right(prompts, 24)
    found = measure(single, cell.client.complete_many(prompts, 24))
    assert found.largest < 1e-2 and found.positions > 100, f"vLLM's batches answer otherwise than single requests: {found}"
    return Noise(max(found.largest, 1e-5), found.positions)


def cached(kind, cell, prompts):
    """Each prompt's output from a cached prefix: the engine's own cache, or where it has none the first load."""
    outputs = []
    for prompt in prompts:
        cell.client.complete(prompt, 1)
        cell.settle()
        outputs.append(cell.client.complete(prompt))
    cell.settle()
    assert [o.cached_tokens for o in outputs] == [kind.whole(p) for p in prompts]
    return outputs


def assert_loaded(kind, cell, prompts, want):
    for prompt, output in zip(prompts, want):
        cell.forget()
        got, tokens = cell.loaded(prompt)
        assert tokens == kind.whole(prompt), f"{len(prompt)} tokens"
        assert got.output == output.output, f"{len(prompt)} tokens"


def test_one_at_a_time_after_reset_and_after_restart(kind, cell, cut):
    head = cut.fresh(2500)
    prompts = [cut.fresh(n) for n in (129, 257, 1000, 4200, 7777)] + [head + cut.text(n) for n in (30, 700, 1500)]
    want = cached(kind, cell, prompts)
    assert_loaded(kind, cell, prompts, want)
    daemons = cell.daemons.running()
    cell.crash()
    assert cell.daemons.running() == daemons, "a daemon went with the engine"
    # From here on prompts are computed whole, in one step each.
    cell.options["arguments"] = NO_CHUNKS
    cell.start()
    assert_loaded(kind, cell, prompts, want)


def chunks_of(cell):
    with Segment(cell.daemons.wait(LOOKUPD)) as segment:
        return {(c.group, c.hash): c for c in segment.chunks()}


def loaded_alone(cell, prompts, memory):
    """Digests of what the engine's blocks hold after each of the prompts, before another takes them."""
    found = set()
    for prompt in prompts:
        cell.forget()
        cell.client.complete(prompt, 1)
        found |= memory.digests()
    return found


def test_sixteen_at_once(kind, cell, cut, right, noise):
    head = cut.fresh(1100)
    # None ends with a block: the last block of such a prompt is stored, and computed again by whoever repeats it.
    prompts = [cut.fresh(n) for n in (301, 701, 1501, 2601, 901, 1301)] + [head + cut.text(101 + 230 * n) for n in range(10)]
    want = right(prompts)
    cell.client.complete_many(prompts)
    cell.forget()
    before = cell.client.metrics().external_hit_tokens
    assert_right(want, cell.client.complete_many(prompts), noise)
    # Requests that run together may find a shared prefix in the engine's cache once the first of them has loaded it.
    assert cell.client.metrics().external_hit_tokens - before >= sum(map(kind.whole, prompts)) - 10 * kind.whole(head)
    cell.settle()
    with Segment(cell.daemons.wait(LOOKUPD)) as segment, kind.memory(cell) as memory:
        stored = [(c.group, digest(segment.read(c.shards[0], kind.shard_bytes))) for c in segment.chunks()]
        in_engine = memory.digests() if kind.prefix_caching else loaded_alone(cell, prompts, memory)
    assert {group for group, _ in stored} == set(kind.groups)
    lost = [group for group, content in stored if group == kind.full_group and content not in in_engine]
    assert not lost, f"{len(lost)} of {len(stored)} chunks are not in the engine's blocks byte for byte"
    for group in kind.window_groups:  # the last block of each prompt's window, at least
        held = sum(content in in_engine for g, content in stored if g == group)
        assert held >= len(prompts), f"of group {group} only {held} chunks are in the engine's blocks"


def store_one(kind, cell, prompt):
    """A prompt's output from a cached prefix, and for each group the chunk that ends its hit."""
    before = chunks_of(cell).keys()
    (output,) = cached(kind, cell, [prompt])
    new = [c for key, c in chunks_of(cell).items() if key not in before]
    return output, {g: max((c for c in new if c.group == g), key=lambda c: c.depth) for g in kind.groups}


def test_any_flipped_byte_shows_in_the_logprobs(kind, cell, cut):
    """Its checksum is forged along; else no other test could fail."""
    prompt = cut.fresh(20 * 128 + 5)
    want, last = store_one(kind, cell, prompt)
    rng = random.Random(13)
    unseen, flips = [], 0
    with Segment(cell.daemons.wait(LOOKUPD)) as segment:
        for group, chunk in last.items():
            for layer in range(kind.layers):
                for trial in range(3):
                    byte = layer * kind.page_bytes + rng.randrange(kind.page_bytes // 4) * 4 + 1 + trial
                    segment.forge(chunk.shards[0], byte, kind.shard_bytes)
                    cell.forget()
                    got, tokens = cell.loaded(prompt)
                    assert tokens == kind.whole(prompt)
                    flips += 1
                    if got.output == want.output:
                        unseen.append((group, layer, byte))
                    segment.forge(chunk.shards[0], byte, kind.shard_bytes)
    assert len(unseen) <= flips // 8, f"flips that left the output as it was (group, layer, byte): {unseen}"
    assert_loaded(kind, cell, [prompt], [want])


def test_damage_in_any_group_is_recomputed(kind, cell, cut, right, noise):
    prompt = cut.fresh(20 * 128 + 5)
    want = right([prompt])
    _, last = store_one(kind, cell, prompt)
    for group, chunk in last.items():
        chunk = chunks_of(cell)[(group, chunk.hash)]
        with Segment(cell.daemons.wait(LOOKUPD)) as segment:
            segment.flip(chunk.shards[0], kind.shard_bytes // 2 + 6)
            bad = segment.read(chunk.shards[0], kind.shard_bytes)
        cell.forget()
        assert_right(want, [cell.client.complete(prompt)], noise)
        cell.settle()
        with Segment(cell.daemons.wait(LOOKUPD)) as segment:
            renewed = {(c.group, c.hash): c for c in segment.chunks()}.get((group, chunk.hash))
            assert renewed is not None, f"group {group}: the damaged chunk was not stored again"
            assert segment.read(renewed.shards[0], kind.shard_bytes) != bad, f"group {group}: the damaged bytes are still served"
        cell.forget()
        got, tokens = cell.loaded(prompt)
        assert tokens == kind.whole(prompt)
        assert_right(want, [got], noise)


@needs_master
def test_in_tree_hits_and_outputs(kind, cell, checkpoint, cut, directory):
    """The same prompts one after the other, only the connector remembers: equal hit lengths, and equal outputs after a load."""
    prompts = cut.families(60, 1100)
    prompts += [prompts[k] for k in range(5)]

    def run(engine):
        found = []
        for prompt in prompts:
            found.append(engine.client.complete(prompt, 4))
            engine.forget()
        return found

    cell.forget(everywhere=True)
    ours = run(cell.engine)
    with mooncake.Master(directory) as master:
        with Engine(checkpoint, directory, connector=in_tree(), environment=master.environment, name="in-tree") as engine:
            engine.wait_ready()
            theirs = run(engine)
    hits = [(len(p), a.cached_tokens, b.cached_tokens) for p, a, b in zip(prompts, ours, theirs)]
    print("(length, our hit, in-tree hit):", hits)
    assert [h for h in hits if h[1] != h[2]] == [], "(length, our hit, in-tree hit)"
    assert sum(h[1] > 0 for h in hits) > len(hits) // 6, "too few hits to compare"
    assert len({h[1] for h in hits}) > 4, "too few different hit lengths to compare"
    assert [a.output for a in ours] == [b.output for b in theirs]


@pytest.fixture(scope="module")
def narrow(kind, checkpoint):
    slow = {"MOONCAKE_SIDECAR_FAULTS": "copy_delay=100ms"}
    deadlines = {"lookup_timeout_ms": 1000, "load_timeout_s": 2, "store_timeout_s": 2, "fence_kill_after_s": 1}
    deadlines["load_async"] = True  # else a load into an engine at rest is over before its metrics show it
    options = {"blocks": kind.narrow_blocks, "arguments": SMALL_CHUNKS}
    name = f"narrow-{kind.name}"
    with Cell(checkpoint, name, environment=slow, binaries="build/faults", extra=deadlines, **options) as made:
        yield made.start()


@pytest.mark.parametrize("fault", ["kill", "stop"])
@pytest.mark.parametrize("daemon", [WORKER, LOOKUPD])
def test_a_daemon_struck_while_it_loads(kind, narrow, cut, right, noise, daemon, fault):
    prompt, others = cut.fresh(3000), [cut.fresh(n) for n in (700, 800, 900)]
    want = right([prompt, *others])
    narrow.client.complete(prompt, 1)
    narrow.forget()
    with ThreadPoolExecutor(4) as pool:
        running = [pool.submit(narrow.client.complete, prompt)]
        wait_load_in_flight(narrow, lambda: running.append(pool.submit(narrow.client.complete, prompt)))
        del running[:-1]
        with narrow.daemons.stopped(daemon):
            running += [pool.submit(narrow.client.complete, other) for other in others]
            if fault == "kill":
                narrow.daemons.kill(daemon)
            else:
                running[1].result()  # an answer without the daemon
        assert_right(want, [future.result() for future in running], noise)
    narrow.settle()
    narrow.wait_serving(cut, kind.whole)


def test_preemptions_and_aborts(kind, narrow, cut, right, noise):
    prompts = [cut.fresh(n) for n in (500, 600, 700, 800, 900, 1000, 750, 650, 550, 850, 950, 620)]
    want = right(prompts, 120)
    before = narrow.client.metrics().preemptions
    for _ in range(2):
        gone = [Abandoned(narrow, prompt, 120) for prompt in prompts[2:5]]
        with ThreadPoolExecutor(len(prompts)) as pool:
            running = [pool.submit(narrow.client.complete, prompt, 120) for prompt in prompts]
            for request in gone:
                request.abort()
            assert_right(want, [future.result() for future in running], noise)
        narrow.forget()
    metrics = narrow.client.metrics()
    assert metrics.preemptions > before, "nothing was preempted: the test shows nothing"
    assert metrics.external_hit_tokens > 0
    narrow.wait_serving(cut, kind.whole)
