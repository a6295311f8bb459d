"""What a load brought is in the store for good, where lookupd says so, and is not offered again."""

import struct

import pytest

pytest.importorskip("vllm")

from engine import BLOCK, kv_config
from sent import stores
from test_lookup import HASHES, serve, trailer  # noqa: F401 - a fixture among them
from vllm.v1.kv_cache_interface import KVCacheGroupSpec, SlidingWindowSpec

from mooncake_sidecar.jobs import block_ids


@pytest.mark.parametrize("flags", [0, 8, 8 | 4])
def test_a_flag_of_the_answer_says_so(serve, flags):  # noqa: F811
    client, _server = serve(lambda f: [[struct.pack(">I", 48), trailer(f, flags)]])
    hit = client.ask("a", 64, HASHES)
    assert (hit.tokens, hit.lasting) == (48, bool(flags))


def begin(engine, tokens=100, hit=96, lasting=True, max_tokens=30):
    """A request that waits for its load."""
    request = engine.add("a", tokens, max_tokens=max_tokens)
    engine.lookup.hits["a"] = hit
    engine.lookup.lasting = lasting
    assert [c.request for c in engine.step().loads] == ["a"]
    return request


def until_saved(engine):
    """The parts that the next step with a store job has."""
    for _ in range(40):
        if parts := stores(engine.step().stores):
            return parts
    raise AssertionError("nothing is saved")


def named(part, group=0):
    return [i for i, block in enumerate(part.tables[group]) if block]


def test_a_load_is_not_offered_again(make_engine):
    engine = make_engine(budget=256, save_decode_cache=True)
    request = begin(engine)
    assert engine.step(received={"a"}).stores == []
    assert engine.step().stores == [], "all that is new lies in a block that is not full"
    (part,) = until_saved(engine)
    assert part.token_len == 112 and named(part) == [6]
    # The new chunk's parent is the last that was loaded.
    assert part.first_hash == 5 and part.hashes == b"".join(request.block_hashes[5:7])
    engine.drain()
    assert engine.used() == 0


def test_a_prompt_behind_a_load_is_offered_from_there_on(make_engine):
    engine = make_engine(budget=256)
    begin(engine, tokens=150, hit=64)
    engine.step(received={"a"})
    (part,) = stores(engine.step().stores)
    assert part.token_len == 144 and named(part) == [4, 5, 6, 7, 8]


def test_what_may_go_is_offered_again(make_engine):
    engine = make_engine(budget=256)
    begin(engine, lasting=False)
    engine.step(received={"a"})
    (part,) = stores(engine.step().stores)
    assert part.token_len == 96 and named(part) == list(range(6))


def test_what_could_not_be_loaded_is_offered(make_engine):
    engine = make_engine(budget=256)
    begin(engine)
    blocks = block_ids(engine.running_loads["a"].suspects)
    engine.step(received={"a"}, bad=blocks[3:], failed={"a"})
    (part,) = stores(engine.step().stores)
    assert part.token_len == 96 and named(part) == list(range(6))


@pytest.mark.parametrize("when", ["while it loads", "with its end", "when it runs"])
def test_a_rank_that_lost_its_daemon_is_offered_all(make_engine, when):
    engine = make_engine(budget=256, save_decode_cache=True)
    begin(engine)
    if when == "while it loads":
        engine.step(renewed=True)
    engine.step(received={"a"}, renewed=when == "with its end")
    first = engine.step(renewed=when == "when it runs").stores
    (part,) = stores(first) or until_saved(engine)
    assert bool(first) == (when != "when it runs") and named(part) == list(range(part.token_len // BLOCK))


def test_a_run_that_is_computed_after_a_preemption_is_offered(make_engine):
    engine = make_engine(budget=256)
    begin(engine)
    engine.step(received={"a"})
    engine.step()
    engine.lookup.hits.clear()
    assert engine.scheduler.reset_prefix_cache(reset_running_requests=True)
    (part,) = until_saved(engine)
    assert part.token_len == 96 and named(part) == list(range(6))


def window_of(spec):
    return SlidingWindowSpec(
        block_size=BLOCK, num_kv_heads=1, head_size=16, dtype=spec.dtype, sliding_window=2 * BLOCK
    )


def two_groups():
    kv = kv_config(200)
    full = kv.kv_cache_groups[0]
    spec = full.kv_cache_spec
    window = window_of(spec)
    kv.kv_cache_groups = [
        KVCacheGroupSpec(full.layer_names[:1], spec),
        KVCacheGroupSpec(full.layer_names[1:], window),
    ]
    return kv


def test_of_a_window_alone_a_request_is_computed_from_its_beginning(make_engine):
    """Behind a missing block it would be computed with a window that is not there: blocks below a hit's window are no
    blocks of the request."""
    kv = kv_config(200)
    (group,) = kv.kv_cache_groups
    kv.kv_cache_groups = [KVCacheGroupSpec(group.layer_names, window_of(group.kv_cache_spec))]
    engine = make_engine(budget=256, kv=kv)
    begin(engine)
    assert not engine.running_loads["a"].suspects
    engine.step(received={"a"}, failed={"a"})
    engine.step()
    assert engine.output.num_scheduled_tokens["a"] == 100


@pytest.mark.parametrize("windows", [False, True])
def test_beside_what_the_engine_has_a_window_is_offered(make_engine, windows):
    """A hit is the last window's chunks: of those before it the engine may have some that the store has not."""
    engine = make_engine(budget=256, **({"kv": two_groups()} if windows else {}))
    engine.add("before", 64, max_tokens=1)
    engine.drain()
    begin(engine, tokens=150, hit=128)
    engine.step(received={"a"})
    (part,) = stores(engine.step().stores)
    assert part.token_len == 144 and named(part) == (list(range(9)) if windows else [8])
