"""Engines of several ranks: what they store and load is right, is shared with engines of other sizes, and survives a rank's daemon.

Every start is costly, so one engine serves several tests, and the store outlives it.
"""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from harness import recurrent, several
from harness.cell import Cell, whole
from harness.compare import Noise, assert_right, measure
from harness.daemons import LOOKUPD, WORKER, WORKER_1
from harness.engine import REPOSITORY
from harness.kind import LATENT, SLIDING
from harness.prompts import Prompts
from harness.segment import Segment
from harness.several import DP, RANKS, TP
from harness.storm import wait_load_in_flight

SLOW = {"MOONCAKE_SIDECAR_FAULTS": "copy_delay=100ms"}
DEADLINES = {"load_timeout_s": 8, "store_timeout_s": 20, "fence_kill_after_s": 2}
# Of a recurrent model, see test_recurrent.py.
ALIGNED = ["--dtype", "bfloat16", "--enable-prefix-caching", "--mamba-cache-mode", "align", "--block-size", str(recurrent.BLOCK)]

# Ranks that wait for each other in loops take minutes on two cores that do other work too.
pytestmark = pytest.mark.skipif(not os.environ.get("MOONCAKE_SIDECAR_NIGHTLY"), reason="part of make test-nightly")


def start(cell, arguments=()):
    """Starts the cell's engine, again with another number of ranks; the daemons and their store stay."""
    if cell.engine is not None:
        cell.settle()
        cell.crash()
    cell.options["arguments"] = list(arguments)
    for name, value in several.ENVIRONMENT.items():
        if arguments:
            cell.environment[name] = value
        else:
            cell.environment.pop(name, None)
    return cell.start()


def stored(cell, prompts):
    """Outputs of prompts that nobody knows yet, and they are in the store."""
    outputs = [cell.client.complete(prompt) for prompt in prompts]
    cell.forget()
    return outputs


def assert_loaded(cell, prompts, want, noise, length=whole):
    for prompt, output in zip(prompts, want):
        got, tokens = cell.loaded(prompt)
        assert tokens == length(prompt), f"{len(prompt)} tokens"
        assert_right([output], [got], noise)
        cell.forget()


def lengths(cut):
    head = cut.fresh(900)
    return [cut.fresh(n) for n in (129, 700, 2600)] + [head + cut.text(n) for n in (40, 800)]


@pytest.fixture(scope="module")
def sizes(model):
    """A cell whose engines share shards; one of a single rank has run, and has stored ``cell.early``; two ranks run now."""
    extra = DEADLINES | {"store_tp_size": RANKS}
    with Cell(model, "sizes", environment=SLOW, binaries="build/faults", extra=extra) as cell:
        start(cell)
        cell.early = lengths(Prompts(model, seed=4711))
        stored(cell, cell.early)
        yield start(cell, TP)


@pytest.fixture(scope="module")
def rank_noise(sizes, model, reference, noise):
    """Noise of vLLM's own, and that of another number of ranks, whose sums have another order."""
    cut = Prompts(model, seed=78)
    prompts = [cut.fresh(n) for n in (300, 900, 1500)]
    found = measure(reference(prompts), stored(sizes, prompts))
    assert found.largest < 1e-2 and found.positions >= 40, f"two ranks answer otherwise than one: {found}"
    return Noise(max(found.largest, noise.largest), found.positions + noise.positions)


def test_two_ranks_load_what_one_has_stored(sizes, reference, rank_noise):
    assert_loaded(sizes, sizes.early, reference(sizes.early), rank_noise)


def test_two_ranks_load_what_they_have_stored(sizes, cut, reference, rank_noise):
    prompts = lengths(cut)
    want = reference(prompts)
    assert_right(want, stored(sizes, prompts), rank_noise)
    assert_loaded(sizes, prompts, want, rank_noise)
    with Segment(sizes.daemons.wait(LOOKUPD)) as segment:
        assert {tuple(sorted(s.number for s in chunk.shards)) for chunk in segment.chunks()} == {(0, 1)}


@pytest.mark.parametrize("fault", ["kill", "stop"])
@pytest.mark.parametrize("daemon", [WORKER_1, WORKER])
def test_the_worker_of_a_rank_struck_while_it_loads(sizes, cut, reference, rank_noise, daemon, fault):
    prompt, others = cut.fresh(3000), [cut.fresh(n) for n in (500, 600)]
    want = reference([prompt, *others])
    stored(sizes, [prompt])
    with ThreadPoolExecutor(3) as pool:
        running = [pool.submit(sizes.client.complete, prompt)]
        wait_load_in_flight(sizes, lambda: running.insert(0, pool.submit(sizes.client.complete, prompt)))
        with sizes.daemons.stopped(daemon):
            running += [pool.submit(sizes.client.complete, other) for other in others]
            if fault == "kill":
                sizes.daemons.kill(daemon)
            else:
                running[-1].result()  # an answer without the daemon
        got = [future.result() for future in running]
        assert_right(want[:1] * (len(got) - len(want)) + want, got, rank_noise)
    sizes.settle()
    sizes.wait_serving(cut)


def test_one_rank_loads_what_two_have_stored(sizes, cut, reference, rank_noise):
    prompts = lengths(cut)
    want = reference(prompts)
    assert_right(want, stored(sizes, prompts), rank_noise)
    start(sizes)
    assert_loaded(sizes, prompts + sizes.early, want + reference(sizes.early), rank_noise)


def outputs_and_noise(cell, prompts):
    """Outputs of prompts that get stored thereby, and how far those move that share batches."""
    cell.forget(everywhere=True)
    together = cell.client.complete_many(prompts)
    cell.forget(everywhere=True)
    want = stored(cell, prompts)
    return want, Noise(max(measure(want, together).largest, 1e-5), 16 * len(prompts))


def loads_in_both(kind, name, first, second, **extra):
    """An engine with the arguments ``first`` stores, and loads; one with ``second`` loads the same."""
    checkpoint = kind.family.generate(REPOSITORY / "build" / f"checkpoint-{kind.name}")
    prompts = lengths(Prompts(checkpoint, seed=sum(name.encode())))
    with Cell(checkpoint, name, extra=extra) as cell:
        start(cell, first)
        want, noise = outputs_and_noise(cell, prompts)
        assert_loaded(cell, prompts, want, noise, kind.whole)
        with Segment(cell.daemons.wait(LOOKUPD)) as segment:
            shards = {len(chunk.shards) for chunk in segment.chunks()}
        start(cell, second)
        # Another number of ranks sums in another order; what that moves is far below what wrong bytes move.
        assert_loaded(cell, prompts, want, Noise(max(noise.largest, 1e-4), noise.positions), kind.whole)
    return shards


def test_latent_attention_is_stored_once_and_loaded_by_any_number_of_ranks():
    """Its cache is the same on every rank: they store in turns, and nobody has to ask for it to be shared."""
    assert loads_in_both(LATENT, "latent-ranks", TP, ()) == {1}


@pytest.mark.parametrize("second", [TP, ()], ids=["restarted", "one-rank"])
def test_windows_of_several_ranks(second):
    assert loads_in_both(SLIDING, f"sliding-ranks-{len(second)}", TP, second, store_tp_size=RANKS) == {RANKS}


def test_latent_attention_of_two_ranks_after_a_restart():
    assert loads_in_both(LATENT, "latent-ranks-again", TP, TP) == {1}


def brought(cell):
    """Tokens that the store has brought to each of the engines of a front end."""
    metrics = cell.client.metrics()
    return [int(metrics.value("vllm:external_prefix_cache_hits_total", f'engine="{n}"')) for n in range(RANKS)]


@pytest.mark.parametrize("kind", [None, SLIDING, LATENT], ids=["dense", "sliding", "latent"])
def test_two_engines_of_one_front_end_share_a_store(model, kind):
    """Data parallel engines: what either has stored, both load."""
    checkpoint = kind.family.generate(REPOSITORY / "build" / f"checkpoint-{kind.name}") if kind else model
    length, cut = kind.whole if kind else whole, Prompts(checkpoint, seed=83)
    with Cell(checkpoint, "twins") as cell:
        start(cell, DP)
        prompts = [cut.fresh(n) for n in (400, 900, 1300, 2100)]
        want, noise = outputs_and_noise(cell, prompts)
        assert_right(want * 2, cell.client.complete_many(prompts * 2), noise)
        cell.settle()
        assert min(brought(cell)) > 0, f"one of the engines loaded nothing: {brought(cell)}"
        assert sum(brought(cell)) >= sum(map(length, prompts))
        cell.forget()
        assert_loaded(cell, prompts, want, noise, length)


def test_recurrent_states_of_two_ranks():
    """States are a rank's own: each has half of the heads. Outputs after a load are bit for bit what they were.

    With data parallelism vLLM's CPU engine does not run such a model, which has experts: docs/ranks.md.
    """
    checkpoint = recurrent.generate(REPOSITORY / "build" / "checkpoint-recurrent-2", recurrent.Shape(state_heads=RANKS))
    cut = Prompts(checkpoint, seed=87)
    prompts = [cut.fresh(n) for n in (385, 1000, 2500, 4000)]
    with Cell(checkpoint, "states") as cell:
        start(cell, [*ALIGNED, *TP])
        want = stored(cell, prompts)
        for restarted in (False, True):
            if restarted:
                start(cell, [*ALIGNED, *TP])
            for prompt, output in zip(prompts, want):
                got, tokens = cell.loaded(prompt)
                assert tokens == (len(prompt) - 1) // recurrent.BLOCK * recurrent.BLOCK
                assert got.output == output.output, f"{len(prompt)} tokens"
                cell.forget()
        with Segment(cell.daemons.wait(LOOKUPD)) as segment:
            # The attention's one KV head is the same on every rank.
            assert {len(chunk.shards) for chunk in segment.chunks()} == {1, RANKS}
