"""A hybrid of full attention and recurrent state: hits are the engine's own, outputs are bit for bit those of its cache.

The measure is what vLLM's own prefix cache finds for the same repetition: a state is kept at the last block boundary
before a prompt's end, and where a shared prefix was seen to end.
"""

import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from harness import mooncake, recurrent
from harness.cell import Cell
from harness.daemons import WORKER
from harness.engine import REPOSITORY, Engine, in_tree
from harness.prompts import Prompts
from harness.segment import Segment
from harness.storm import Abandoned, wait_load_in_flight

BLOCK = recurrent.BLOCK
# Without the size vLLM 0.32 on CPU cuts chunks by 128 tokens; see `test_an_engine_that_cuts_beside_states_saves_nothing`.
HYBRID = ["--dtype", "bfloat16", "--enable-prefix-caching", "--mamba-cache-mode", "align"]
ALIGNED = [*HYBRID, "--block-size", str(BLOCK)]
SHARD = 98304  # one block: 384 tokens of K and V, or a state and padding
# The recurrent part of a state's page, behind the convolution's: of float32 where the processor has AVX-512, else of
# bfloat16 and half as long.
STATE = 2304, 2304 + 65536
ATTENTION_GROUP = 3

needs_master = pytest.mark.skipif(mooncake.available() is not None, reason=str(mooncake.available()))


@pytest.fixture(scope="module")
def hybrid():
    return recurrent.generate(REPOSITORY / "build" / "checkpoint-recurrent")


@pytest.fixture()
def prompts(hybrid, request):
    return Prompts(hybrid, seed=sum(request.node.nodeid.encode()) * 7919)


@pytest.fixture(scope="module")
def cell(hybrid):
    with Cell(hybrid, "recurrent", arguments=ALIGNED) as made:
        yield made.start()


def whole(prompt) -> int:
    return (len(prompt) - 1) // BLOCK * BLOCK


def repeat(cell, prompt):
    """(cold, from the engine's own cache, from the store) for one prompt."""
    cold = cell.client.complete(prompt)
    warm = cell.client.complete(prompt)
    cell.forget()
    stored, tokens = cell.loaded(prompt)
    cell.forget()
    assert tokens == stored.cached_tokens
    return cold, warm, stored


def new_chunks(cell, prompt):
    """The chunks that a prompt leaves, and its output when the engine's cache holds it."""
    with Segment(cell.daemons.wait("mooncake-lookupd")) as segment:
        before = {(c.group, c.hash) for c in segment.chunks()}
        cell.client.complete(prompt, 1)
        warm = cell.client.complete(prompt)
        cell.forget()
        return warm, [c for c in segment.chunks() if (c.group, c.hash) not in before]


def flip(cell, chunk, byte):
    with Segment(cell.daemons.wait("mooncake-lookupd")) as segment:
        segment.flip(chunk.shards[0], byte)


def test_hits_are_the_engines_own_and_outputs_equal_bit_for_bit(cell, prompts):
    hits = set()
    for length in (383, 384, 385, 769, 1000, 1152, 2500, 4000, 5300, 7777):
        cold, warm, stored = repeat(cell, prompts.fresh(length))
        assert stored.cached_tokens == warm.cached_tokens, f"{length} tokens"
        assert warm.output == stored.output, f"{length} tokens"
        assert cold.output == stored.output, f"{length} tokens: a state of another position was hit"
        hits.add(stored.cached_tokens)
    assert hits == {0, 384, 768, 2304, 3840, 4992, 7680}


def test_prompts_that_share_a_beginning(cell, prompts):
    """The second leaves a state at the junction, the third and all after a reset go on from there."""
    head = prompts.fresh(3000)
    family = [head + prompts.text(n) for n in (500, 900, 1300)]
    cold = [cell.client.complete(prompt) for prompt in family]
    assert [c.cached_tokens for c in cold] == [0, 0, 2688]
    cell.forget()
    other = head + prompts.text(700)
    got, tokens = cell.loaded(other)
    assert tokens == 2688
    cell.forget()
    for prompt, want in zip(family, cold):
        got, tokens = cell.loaded(prompt)
        assert (tokens, got.output) == (whole(prompt), want.output)
        cell.forget()


def test_after_a_crash_of_the_engine(cell, prompts):
    asked = [prompts.fresh(n) for n in (1000, 4000)]
    warm = []
    for prompt in asked:
        cell.client.complete(prompt, 1)
        warm.append(cell.client.complete(prompt))
    cell.settle()
    cell.crash()
    cell.start()
    for prompt, want in zip(asked, warm):
        got, tokens = cell.loaded(prompt)
        assert (tokens, got.output) == (whole(prompt), want.output)
        cell.forget()


def test_many_at_once_with_preemptions_and_aborts(hybrid, prompts):
    """Few blocks: requests are preempted and resumed, some are given up while they load; the rest is right."""
    with Cell(hybrid, "narrow", arguments=[*ALIGNED, "--max-model-len", "4096", "--max-num-seqs", "12"], blocks=64) as cell:
        cell.start()
        # A few tokens after admission each needs a block more in every group, and there is none.
        asked = [prompts.fresh(n) for n in (376, 760, 762, 1140, 1146, 1525, 1530, 1912)]
        cold = []
        for prompt in asked:
            cold.append(cell.client.complete(prompt))
            cell.forget()
        gone = [Abandoned(cell, prompt, 400) for prompt in asked[3:6]]
        got = cell.client.complete_many(asked, 150, len(asked))
        for request in gone:
            request.abort()
        metrics = cell.client.metrics()
        assert metrics.preemptions > 0
        assert metrics.external_hit_tokens > 0
        # Batches move bfloat16's sums; what is computed on a wrong state differs from the first token on.
        assert [g.tokens[0] for g in got] == [c.tokens[0] for c in cold]
        cell.settle()
        # What the store has of them by now gives what each gave alone, bit for bit.
        for prompt, want in zip(asked, cold):
            cell.client.complete(prompt, 1)
            cell.forget()
            again, tokens = cell.loaded(prompt)
            assert (tokens, again.output) == (whole(prompt), want.output)
            cell.forget()


def test_any_part_of_state_and_kv_shows_in_the_logprobs(hybrid, prompts):
    """Without verification; else no other test could fail."""
    with Cell(hybrid, "unverified", arguments=ALIGNED, extra={"verify": False}) as cell:
        cell.start()
        prompt = prompts.fresh(2500)
        warm, chunks = new_chunks(cell, prompt)
        states = [c for c in chunks if c.group != ATTENTION_GROUP]
        attention = [c for c in chunks if c.group == ATTENTION_GROUP]
        assert (len(states), len(attention)) == (3, 6)
        begin, end = STATE
        # The highest bytes of a float32, and of a bfloat16: results are rounded to bfloat16, small changes are lost.
        flips = [(c, begin + k * (end - begin) // 4 + 3) for c in states for k in range(4)]
        flips += [(c, 1 + 2 * n * 4999) for n, c in enumerate(attention, 1)]
        unseen = []
        for chunk, byte in flips:
            flip(cell, chunk, byte)
            got, tokens = cell.loaded(prompt)
            assert tokens == whole(prompt)
            if got.output == warm.output:
                unseen.append((chunk.group, byte))
            flip(cell, chunk, byte)
            cell.forget()
        middle = (begin + end) // 2
        padding = [u for u in unseen if u[0] != ATTENTION_GROUP and u[1] >= middle]
        if len(padding) == 2 * len(states):  # all of it: the state ends before
            unseen = [u for u in unseen if u not in padding]
        assert len(unseen) <= 1, f"flipped bytes that nobody saw (group, byte): {unseen}"
        assert cell.loaded(prompt)[0].output == warm.output


@pytest.mark.parametrize("part", ["state", "attention"])
def test_damage_is_recomputed(cell, prompts, part):
    prompt = prompts.fresh(2500)
    warm, chunks = new_chunks(cell, prompt)
    damaged = [c for c in chunks if (c.group == ATTENTION_GROUP) == (part == "attention")][1]
    flip(cell, damaged, STATE[0] + 4711)
    with Segment(cell.daemons.wait("mooncake-lookupd")) as segment:
        bad = segment.read(damaged.shards[0], SHARD)
    got = cell.client.complete(prompt)
    assert got.output == warm.output
    cell.forget()
    with Segment(cell.daemons.wait("mooncake-lookupd")) as segment:
        renewed = [c for c in segment.chunks() if (c.group, c.hash) == (damaged.group, damaged.hash)]
        assert renewed and segment.read(renewed[0].shards[0], SHARD) != bad, "the damaged bytes are still served"
    got, tokens = cell.loaded(prompt)
    assert (tokens, got.output) == (whole(prompt), warm.output)
    cell.forget()


def test_a_worker_killed_while_it_loads(hybrid, prompts):
    slow = {"MOONCAKE_SIDECAR_FAULTS": "copy_delay=400ms"}
    with Cell(hybrid, "killed", arguments=ALIGNED, binaries="build/faults", environment=slow) as cell:
        cell.start()
        prompt = prompts.fresh(7000)
        warm, _ = new_chunks(cell, prompt)
        with ThreadPoolExecutor(1) as pool:
            running = [pool.submit(cell.client.complete, prompt)]
            wait_load_in_flight(cell, lambda: running.append(pool.submit(cell.client.complete, prompt)))
            cell.daemons.kill(WORKER)
            assert running[-1].result().output == warm.output
        cell.settle()


def test_fine_hits_end_inside_a_block(hybrid, prompts):
    """With a smaller unit of matching a state is kept near the prompt's end, inside a block."""
    unit = 128
    with Cell(hybrid, "fine", arguments=[*ALIGNED, "--prefix-match-unit", str(unit)]) as cell:
        cell.start()
        for length in (300, 384, 385, 1000, 2500, 4000):
            prompt = prompts.fresh(length)
            cold, warm, stored = repeat(cell, prompt)
            assert stored.cached_tokens == warm.cached_tokens == (length - 1) // unit * unit, f"{length} tokens"
            assert cold.output == warm.output == stored.output, f"{length} tokens"


def test_an_engine_that_cuts_beside_states_saves_nothing(hybrid, prompts):
    """vLLM 0.32 on CPU without --block-size: its own cache gives outputs of another prompt's position; ours must not keep them."""
    with Cell(hybrid, "beside", arguments=HYBRID) as cell:
        cell.start()
        prompt = prompts.fresh(2500)
        cold, _, stored = repeat(cell, prompt)
        assert (stored.cached_tokens, stored.output) == (0, cold.output)
        with Segment(cell.daemons.wait("mooncake-lookupd")) as segment:
            assert segment.chunks() == []
        assert re.search(r"nothing is saved: .* --block-size (256|384)$", cell.engine.log(), re.MULTILINE)


@needs_master
def test_hit_lengths_equal_those_of_the_in_tree_connector(hybrid, cell, prompts, directory):
    asked = prompts.families(60, 3 * BLOCK + 300)
    hits = {"ours": [], "in-tree": []}

    def run(name, engine):
        for prompt in asked:
            hits[name].append(engine.client.complete(prompt, 1).cached_tokens)
            engine.forget()

    cell.forget()
    run("ours", cell.engine)
    with mooncake.Master(directory) as master:
        with Engine(hybrid, directory, connector=in_tree(), environment=master.environment, arguments=ALIGNED) as engine:
            engine.wait_ready()
            run("in-tree", engine)
    assert hits["ours"] == hits["in-tree"]
    assert sum(h > 0 for h in hits["ours"]) > 5
