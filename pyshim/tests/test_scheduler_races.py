"""Requests that end, return or are pushed out between two steps, inside vLLM's real scheduler."""

import random

import pytest

pytest.importorskip("vllm")

from sent import stores
from vllm.v1.request import RequestStatus


def test_a_request_reset_while_running_may_load_in_the_same_step(make_engine):
    """vLLM names it preempted in the very step that loads it: the load must still go out."""
    engine = make_engine(budget=256)
    engine.add("a", 100, max_tokens=20)
    engine.step()
    engine.step()
    assert engine.scheduler.reset_prefix_cache(reset_running_requests=True)
    engine.lookup.hits["a"] = 96
    commands = engine.step()
    assert commands.preempted == ["a"]
    assert [c.request for c in commands.loads] == ["a"]
    engine.step(received={"a"})
    engine.drain()
    assert engine.used() == 0


def test_an_id_used_again_at_once_is_a_new_request(make_engine):
    """vLLM names the id finished in the step that schedules its successor."""
    engine = make_engine(budget=256)
    released = []
    engine.connector._scheduler._release = released.extend
    engine.add("a", 100, max_tokens=20)
    engine.step()
    engine.scheduler.finish_requests("a", RequestStatus.FINISHED_ABORTED)
    engine.add("a", 100, max_tokens=2, seed=8)
    engine.lookup.hits["a"] = 96
    commands = engine.step()
    assert commands.finished == ["a"] and released == ["a"]
    assert [c.request for c in commands.loads] == ["a"]
    engine.step(received={"a"})
    engine.drain()
    engine.step()
    assert engine.used() == 0 and not engine.connector._scheduler._entries
    assert released == ["a", "a"]


def test_an_id_used_again_at_once_is_saved(make_engine):
    engine = make_engine(budget=256)
    engine.add("a", 100, max_tokens=20)
    engine.step()
    engine.scheduler.finish_requests("a", RequestStatus.FINISHED_ABORTED)
    engine.add("a", 64, max_tokens=2, seed=8)
    assert [p.request for p in stores(engine.step().stores)] == ["a"]
    engine.drain()
    assert engine.used() == 0


def test_a_request_that_may_not_read_the_cache_is_not_looked_up(make_engine):
    engine = make_engine(budget=256)
    engine.lookup.hits["a"] = 96
    request = engine.add("a", 100)
    request.skip_reading_prefix_cache = True
    assert engine.step().loads == [] and engine.lookup.asked == []
    assert engine.output.num_scheduled_tokens == {"a": 100}
    engine.drain()


def test_wishes_that_no_daemon_could_read_are_no_wishes(make_engine):
    engine = make_engine(budget=256)
    engine.add("a", 100, kv_transfer_params={"max_load_tokens": 1 << 63, "max_offload_tokens": 1 << 40})
    engine.lookup.hits["a"] = 48
    (load,) = engine.step().loads
    engine.step(received={"a"})
    (part,) = stores(engine.step().stores)
    assert b"controls" not in load.frame and part.most is None
    engine.drain()
    assert engine.used() == 0


def test_decode_saving_keeps_up_with_what_is_computed(make_engine):
    """Drafts are scheduled and some are accepted; no boundary may be left behind, none saved before it is certain."""
    rng = random.Random(7)
    engine = make_engine(num_blocks=400, budget=256, save_decode_cache=True)
    engine.scheduler.log_stats = False  # it was not told that there are drafts
    names = [f"r{i}" for i in range(6)]
    for i, name in enumerate(names):
        engine.add(name, 40 + 7 * i, max_tokens=230, seed=i)
    engine.step()
    entries = engine.connector._scheduler._entries
    for turn in range(60):
        requests = [engine.scheduler.requests[name] for name in names]
        for request in requests:
            request.spec_token_ids = [7] * rng.randrange(4)
        certain = [request.num_tokens for request in requests]
        if turn % 10 == 3:  # someone else's prefill moves the bound of them all
            engine.add(f"other{turn}", 120, max_tokens=1, seed=turn)
        engine.step(accepted={r.request_id: rng.randint(0, len(r.spec_token_ids)) for r in requests})
        assert [entries[name].tracker.saved for name in names] == [tokens // 16 * 16 for tokens in certain]
    engine.drain()
    assert engine.used() == 0 and len(engine.connector._scheduler._saver._growth) == 0
