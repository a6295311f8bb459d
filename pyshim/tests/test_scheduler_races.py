"""Requests that end, return or are pushed out between two steps, inside vLLM's real scheduler."""

import pytest

pytest.importorskip("vllm")

from engine import Engine, write_model
from vllm.v1.request import RequestStatus


@pytest.fixture
def make_engine(tmp_path, runtime_dir):
    engines = []

    def make(**config):
        engines.append(Engine(write_model(tmp_path), runtime_dir, **config))
        return engines[-1]

    yield make
    for engine in engines:
        engine.connector.shutdown()


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
    assert [c.request for c in engine.step().stores] == ["a"]
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
    (store,) = engine.step().stores
    assert b"controls" not in load.frame and b"controls" not in store.frame
    engine.drain()
    assert engine.used() == 0


def test_decode_saving_keeps_up_with_what_is_computed(make_engine):
    """Accepted drafts grow a request by more than one token a step; no boundary may be left behind."""
    engine = make_engine(budget=256, save_decode_cache=True)
    engine.add("a", 40, max_tokens=200)
    engine.step()
    tracker = engine.connector._scheduler._entries["a"].tracker
    for _ in range(30):
        engine.step()
        request = engine.scheduler.requests["a"]
        # The step's own token is sampled after it was built.
        assert tracker.token_len == request.num_tokens - 1
        request.append_output_token_ids([7, 7, 7])
        request.num_computed_tokens += 3
    engine.drain()
