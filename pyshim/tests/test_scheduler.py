"""The scheduler role inside vLLM's real scheduler."""

import array

import pytest

pytest.importorskip("vllm")

from engine import BLOCK
from sent import message as frame
from sent import stores

from mooncake_sidecar.jobs import block_ids


def test_each_boundary_is_saved_once_as_it_is_computed(make_engine):
    engine = make_engine(budget=64)
    request = engine.add("a", 150, max_tokens=40)
    parts = []
    for _ in range(60):
        parts += stores(engine.step().stores)
    assert [p.token_len for p in parts] == [64, 128, 144]
    assert [p.job for p in parts] == [1, 2, 3]
    last = parts[-1]
    assert last.request == "a" and last.prompt_len == 150 and last.prefill_end == 150
    assert last.completed == 150 and last.most is None and last.label == ("", 0, 0)
    # What every rank has saved is not offered again, its blocks and hashes, but for the new chunk's parent.
    assert last.first_hash == 7 and last.hashes == b"".join(request.block_hashes[7:9])
    assert parts[0].first_hash == 0 and parts[0].hashes == b"".join(request.block_hashes[:4])
    tables = [p.tables[0] for p in parts]
    assert [len(table) for table in tables] == [4, 8, 9]
    assert [[i for i, block in enumerate(table) if block] for table in tables] == [[0, 1, 2, 3], [4, 5, 6, 7], [8]]
    engine.drain()
    assert engine.used() == 0


def test_decode_is_saved_only_when_asked(make_engine):
    engine = make_engine(save_decode_cache=True)
    engine.add("a", 20, max_tokens=40)
    lengths = [p.token_len for _ in range(60) for p in stores(engine.step().stores)]
    assert lengths == [16, 32, 48]


def test_a_consumer_does_not_save_and_a_producer_looks_up(make_engine):
    engine = make_engine(role="kv_consumer")
    engine.add("a", 40)
    assert not [c for _ in range(8) for c in engine.step().stores]
    engine = make_engine(role="kv_producer")
    engine.add("b", 40, seed=8)
    engine.step()
    assert engine.lookup.asked == [("b", 40, 2)]


def test_short_requests_are_not_looked_up(make_engine):
    engine = make_engine()
    engine.add("a", BLOCK - 1)
    engine.step()
    assert engine.lookup.asked == []


def test_a_hit_is_loaded_into_the_requests_blocks_and_saved_from_there_on(make_engine):
    engine = make_engine(budget=256)
    request = engine.add("a", 100)
    engine.lookup.hits["a"] = 80
    loads = engine.step().loads
    assert len(loads) == 1 and not engine.commands.stores
    load = frame(loads[0])
    assert (load["token_len"], load["local_tokens"]) == (80, 0)
    assert load["hashes"] == b"".join(request.block_hashes[:5])
    table = engine.scheduler.kv_cache_manager.get_block_ids("a")[0]
    assert block_ids(load["blocks"][0]) == table[:5] == block_ids(loads[0].suspects)
    assert engine.step().loads == []
    engine.step(received={"a"})
    assert [p.token_len for p in stores(engine.step().stores)] == [96]
    assert engine.output.num_scheduled_tokens["a"] == 20
    engine.drain()
    assert engine.used() == 0


@pytest.mark.parametrize(("tiers", "far"), [((), False), (((1, 48), (3, 32)), True), (((3, 48), (1, 32)), False)])
def test_a_load_says_whether_it_is_from_below_the_memory(make_engine, tiers, far):
    engine = make_engine(budget=256)
    engine.add("a", 50)
    engine.drain()
    engine.add("b", 100)
    engine.lookup.hits["b"], engine.lookup.tiers = 80, tiers
    load = engine.step().loads[0]
    assert frame(load)["local_tokens"] == 48 and load.far == far


def test_only_what_the_engine_lacks_is_loaded(make_engine):
    engine = make_engine(budget=256)
    engine.add("a", 50)
    engine.drain()
    engine.add("b", 100)
    engine.lookup.hits["b"] = 80
    load = frame(engine.step().loads[0])
    assert (load["token_len"], load["local_tokens"]) == (80, 48)
    assert len(block_ids(engine.running_loads["b"].suspects)) == 2


def test_a_hit_no_longer_than_the_engines_own_is_no_hit(make_engine):
    engine = make_engine(budget=256)
    engine.add("a", 50)
    engine.drain()
    engine.add("b", 50)
    engine.lookup.hits["b"] = 48
    assert engine.step().loads == []


def test_a_full_hit_leaves_a_token_to_compute(make_engine):
    engine = make_engine(budget=256)
    engine.add("a", 64)
    engine.lookup.hits["a"] = 64
    engine.step()
    engine.step(received={"a"})
    engine.step()
    assert engine.output.num_scheduled_tokens == {"a": 1}
    engine.drain()
    assert engine.used() == 0


def test_pending_lookups_keep_the_request_waiting(make_engine):
    engine = make_engine(budget=256)
    engine.add("a", 64)
    engine.lookup.hits["a"] = None
    engine.step()
    engine.step()
    assert engine.output.num_scheduled_tokens == {}
    engine.lookup.hits["a"] = 48
    assert len(engine.step().loads) == 1


def test_bad_blocks_are_recomputed_from_the_first_one(make_engine):
    engine = make_engine(budget=256)
    engine.add("a", 100)
    engine.lookup.hits["a"] = 96
    engine.step()
    blocks = block_ids(engine.running_loads["a"].suspects)
    engine.step(received={"a"}, bad=blocks[3:], failed={"a"})
    engine.step()
    assert engine.output.num_scheduled_tokens == {"a": 100 - 48}
    engine.drain()
    assert engine.used() == 0


def test_a_load_that_failed_entirely_is_not_tried_again(make_engine):
    engine = make_engine(budget=256)
    engine.add("a", 100)
    engine.lookup.hits["a"] = 96
    engine.step()
    blocks = block_ids(engine.running_loads["a"].suspects)
    engine.step(received={"a"}, bad=blocks, failed={"a"})
    assert engine.step().loads == []
    assert engine.output.num_scheduled_tokens == {"a": 100}
    engine.drain()
    assert engine.used() == 0


def test_while_a_rank_is_not_ready_nothing_is_asked(make_engine):
    engine = make_engine()
    now = [0.0]
    engine.connector._scheduler._clock = lambda: now[0]
    engine.add("a", 40)
    engine.step(ready={0: False})
    engine.lookup.asked.clear()
    engine.add("b", 40, seed=8)
    engine.step()
    assert engine.lookup.asked == []
    now[0] = 60.0
    engine.add("c", 40, seed=9)
    engine.step()
    assert [name for name, _, _ in engine.lookup.asked] == ["c"]


def test_an_aborted_load_keeps_its_blocks_until_it_is_reported(make_engine):
    from vllm.v1.request import RequestStatus

    engine = make_engine(budget=256)
    engine.add("a", 100)
    engine.lookup.hits["a"] = 96
    engine.step()
    engine.scheduler.finish_requests("a", RequestStatus.FINISHED_ABORTED)
    engine.step()
    assert engine.used() > 0
    engine.step(received={"a"})
    engine.step()
    assert engine.used() == 0 and not engine.scheduler.has_requests()


def test_blocks_outlive_their_request_until_every_job_is_acknowledged(make_engine):
    engine = make_engine(budget=64)
    engine.add("a", 100, max_tokens=1)
    for _ in range(6):
        engine.step(acknowledge=False)
    assert "a" not in engine.scheduler.requests
    assert engine.used() == 6 and engine.connector.has_pending_push_work()
    assert engine.scheduler.has_requests(), "the engine would sleep with blocks held"
    engine.step()
    assert engine.used() == 0 and not engine.connector.has_pending_push_work()


@pytest.mark.parametrize("loss", ["not acknowledged", "incomplete", "another daemon"])
def test_what_some_rank_may_lack_is_offered_again(make_engine, loss):
    engine = make_engine(budget=64)
    engine.add("a", 150, max_tokens=4)
    lost = {
        "not acknowledged": {"acknowledge": False},
        "incomplete": {"incomplete": {1: {0}}},
        "another daemon": {"ready": {0: True}, "renewed": True},
    }[loss]
    (first,) = stores(engine.step(**({} if loss == "another daemon" else lost)).stores)
    if loss == "another daemon":
        engine.step(**lost)
        expected = 6  # told with the step that the second job went out in
    else:
        expected = 8
    tables = [p.tables[0] for p in stores(engine.step().stores)]
    assert first.job == 1 and 0 not in tables[-1]
    assert len(tables[-1]) >= expected
    engine.drain()
    assert engine.used() == 0


def test_a_failed_load_is_no_reason_to_offer_everything_again(make_engine):
    """The rank says with it that its daemon is there, and that is news of nothing."""
    engine = make_engine(budget=64)
    engine.add("a", 150, max_tokens=4)
    engine.step()
    engine.step(failed={"of another request"}, ready={0: True})
    (last,) = stores(engine.step().stores)
    assert last.tables[0][:8] == [0] * 8
    engine.drain()


def test_only_blocks_that_a_job_may_read_are_held(make_engine):
    engine = make_engine(budget=64)
    engine.add("a", 150, max_tokens=4)
    engine.step()
    (second,) = stores(engine.step(acknowledge=False).stores)
    held = {b.block_id for b in engine.pool.blocks if b.ref_cnt == 2 and not b.is_null}
    assert held == set(second.tables[0]) - {0} and len(held) == 4
    engine.drain()
    assert engine.used() == 0


def test_a_step_is_one_job_unless_it_is_very_large(make_engine, monkeypatch):
    engine = make_engine(budget=512)
    for n in range(6):
        engine.add(f"r{n}", 50, max_tokens=2, seed=n)
    (command,) = engine.step(acknowledge=False).stores
    assert [p.request for p in stores([command])] == [f"r{n}" for n in range(6)]
    engine.step(incomplete={1: {2, 5}})
    lacking = [e.tracker.pins for e in engine.connector._scheduler._entries.values()]
    assert not any(pins.jobs for pins in lacking)
    engine.drain()
    monkeypatch.setattr("mooncake_sidecar.batch._FULL_PARTS", 4)
    for n in range(6):
        engine.add(f"s{n}", 50, max_tokens=2, seed=n + 6)
    commands = engine.step().stores
    assert [len(stores([c])) for c in commands] == [4, 2] and len({c.job for c in commands}) == 2
    engine.drain()
    assert engine.used() == 0


def test_a_block_that_two_requests_save_with_one_job_is_given_back_once_each(make_engine):
    engine = make_engine(budget=512, seqs=8)
    free = engine.pool.get_num_free_blocks()
    engine.add("a", 96, max_tokens=4)
    engine.step(acknowledge=False)
    engine.add("b", 120, max_tokens=2)  # begins like "a"
    engine.add("c", 130, max_tokens=2)
    (command,) = engine.step(acknowledge=False).stores
    tables = [part.tables[0] for part in stores([command])]
    assert len(tables) == 2 and tables[0][:6] == tables[1][:6]
    assert {engine.pool.blocks[block].ref_cnt for block in tables[0][:6]} == {6}  # three requests and three parts
    engine.drain()
    assert engine.used() == 0 and engine.pool.get_num_free_blocks() == free


def test_jobs_hold_each_block_once(make_engine):
    engine = make_engine(budget=32)
    engine.add("a", 120, max_tokens=1)
    for _ in range(3):
        engine.step(acknowledge=False)
    # One reference of the request's, one of ours, for all three jobs.
    assert sorted(b.ref_cnt for b in engine.pool.blocks if b.ref_cnt and not b.is_null) == [2] * 6


def test_leases_of_finished_requests_are_released(make_engine):
    engine = make_engine()
    released = []
    engine.connector._scheduler._release = released.extend
    engine.add("a", 40, max_tokens=1)
    engine.drain()
    engine.step()
    assert released == ["a"]
    assert not engine.connector._scheduler._entries


def test_finished_and_preempted_ids_reach_the_workers(make_engine):
    engine = make_engine()
    engine.add("a", 40, max_tokens=1)
    finished = []
    for _ in range(4):
        finished += engine.step().finished
    assert finished == ["a"]


def test_preemption_in_a_small_cache(make_engine):
    """Requests that push each other out all finish, are saved again after resumption, and leave no block behind."""
    engine = make_engine(num_blocks=22, budget=128)
    for i in range(4):
        engine.add(f"r{i}", 80, max_tokens=60, seed=i)
    preempted, lengths = [], []
    for turn in range(2000):
        if not engine.scheduler.has_requests():
            break
        commands = engine.step(acknowledge=turn % 3 == 0)
        preempted += commands.preempted
        parts = stores(commands.stores)
        lengths += [(p.request, p.token_len) for p in parts]
        for table in (p.tables[0] for p in parts):
            assert table[-1] and 0 not in table[table.count(0) :], "only what is saved may be left out"
    assert not engine.scheduler.has_requests()
    assert preempted, "the cache was not small enough to prove anything"
    saved = {name: [n for r, n in lengths if r == name] for name in preempted}
    assert all(max(boundaries) >= 80 for boundaries in saved.values())
    # Decoding is not saved: a boundary past the prompt is one that a resumed prefill computed again.
    assert any(max(boundaries) > 80 for boundaries in saved.values())
    assert engine.used() == 0


def test_reset(make_engine):
    engine = make_engine()
    engine.add("a", 40, max_tokens=1)
    (before,) = stores(engine.step().stores)
    engine.drain()
    assert engine.scheduler.reset_prefix_cache(reset_connector=True)
    assert engine.lookup.resets == 1
    # Daemons tell by it what was on its way when the reset was answered.
    engine.add("b", 40, max_tokens=1)
    (after,) = stores(engine.step().stores)
    assert after.epoch > before.epoch and after.generation == before.generation + 1
    engine.drain()


def test_what_is_stored_can_be_kept_over_the_engines_resets(make_engine):
    engine = make_engine(keep_on_reset=True)
    engine.add("a", 40, max_tokens=1)
    (before,) = stores(engine.step().stores)
    engine.drain()
    assert engine.scheduler.reset_prefix_cache(reset_connector=True), "as vLLM does before it sleeps"
    assert engine.lookup.resets == 0
    engine.add("b", 40, max_tokens=1, seed=3)
    (kept,) = stores(engine.step().stores)
    assert (kept.generation, kept.epoch) == (before.generation, before.epoch)
    engine.drain()
    foreign(engine)  # an operator's reset is one all the same
    engine.add("c", 40, max_tokens=1, seed=5)
    (after,) = stores(engine.step().stores)
    assert (after.generation, after.epoch) == (before.generation + 1, before.epoch + 1)
    engine.drain()


def own(engine):
    """The engine resets the namespace."""
    assert engine.scheduler.connector.reset_cache()


def foreign(engine):
    """An operator does, or another engine, and lookupd tells of it."""
    engine.lookup.generation += 1


by_anybody = pytest.mark.parametrize("reset", [own, foreign])


def test_a_forced_reset_while_a_job_is_out_fails_and_can_be_tried_again(make_engine):
    """vLLM raises while a connector holds blocks, before it asks the connector to reset."""
    engine = make_engine(budget=32)
    engine.add("a", 96, max_tokens=8)
    engine.step(acknowledge=False)
    with pytest.raises(RuntimeError, match="Failed to reset KV cache"):
        engine.scheduler.reset_prefix_cache(reset_running_requests=True, reset_connector=True)
    assert engine.lookup.resets == 0 and engine.used() == 2
    parts = stores(engine.step().stores)  # and the job of before is acknowledged
    assert engine.commands.preempted == ["a"] and [p.token_len for p in parts] == [64]  # from vLLM's own cache on
    assert engine.scheduler.reset_prefix_cache(reset_running_requests=True, reset_connector=True)
    assert engine.lookup.resets == 1 and engine.used() == 0
    again = []
    while engine.scheduler.has_requests():
        again += stores(engine.step().stores)
    assert [p.token_len for p in again] == [32, 64, 96] and again[0].epoch > parts[0].epoch
    assert engine.used() == 0


@by_anybody
@pytest.mark.parametrize("decodes", [False, True], ids=["prefill", "decode"])
def test_what_runs_at_a_reset_is_saved_no_more(make_engine, decodes, reset):
    """It was computed before the reset, by other weights perhaps, or upon what was."""
    engine = make_engine(budget=32, save_decode_cache=decodes)
    engine.add("a", 96, max_tokens=60)
    (first,) = stores(engine.step().stores)
    assert first.token_len == 32
    if decodes:
        engine.step()
        engine.step()
    reset(engine)
    engine.add("b", 40, max_tokens=1, seed=3)
    parts = []
    while engine.scheduler.has_requests():
        parts += stores(engine.step().stores)
    assert {p.request for p in parts} == {"b"}, "what ran at the reset is saved again"
    assert max(p.token_len for p in parts) == 32
    assert {p.generation for p in parts} == {first.generation + 1} and min(p.epoch for p in parts) > first.epoch
    assert engine.used() == 0


@by_anybody
def test_a_session_that_goes_on_after_a_reset_is_saved_no_more(make_engine, reset):
    """vLLM schedules each input of a session as if it were new, with the blocks of before."""
    engine = make_engine(budget=64)
    engine.add("a", 48, max_tokens=1, resumable=True)
    assert stores(engine.step().stores)
    engine.step()
    reset(engine)
    engine.add("a", 64, max_tokens=1, seed=1, resumable=True)
    parts = []
    for _ in range(4):
        step = engine.step()
        parts += stores(step.stores)
    assert engine.scheduler.requests["a"].num_computed_tokens > 100, "the session did not go on"
    assert parts == [], "what a session had computed before the reset is saved again"


def test_what_a_reset_preempts_is_saved_from_its_start(make_engine):
    engine = make_engine(budget=32)
    engine.add("a", 96, max_tokens=1)
    engine.step()
    assert engine.scheduler.reset_prefix_cache(reset_running_requests=True, reset_connector=True)
    parts = []
    while engine.scheduler.has_requests():
        parts += stores(engine.step().stores)
    assert [p.token_len for p in parts] == [32, 64, 96]
    assert all(parts[0].tables[0]), "blocks that the reset dropped are not offered"
    assert engine.used() == 0


@by_anybody
def test_what_is_loading_at_a_reset_is_not_saved(make_engine, reset):
    """Its bytes were in the store before the reset, and are not to come back."""
    engine = make_engine(budget=256)
    engine.add("a", 100, max_tokens=1)
    engine.lookup.hits["a"] = 80
    assert engine.step().loads
    reset(engine)
    parts = stores(engine.step(received={"a"}).stores)
    while engine.scheduler.has_requests():
        parts += stores(engine.step().stores)
    assert parts == [] and engine.used() == 0


def test_a_request_that_comes_after_a_foreign_reset_is_loaded_and_saved(make_engine):
    """The step that hears of the reset may be the one that it begins with."""
    engine = make_engine(budget=256)
    engine.add("a", 40, max_tokens=1)
    engine.step()
    engine.drain()
    foreign(engine)
    engine.add("b", 100, max_tokens=1, seed=3)
    engine.lookup.hits["b"] = 48
    assert engine.step().loads
    engine.step(received={"b"})
    (part,) = stores(engine.step().stores)
    assert part.token_len == 96 and part.generation == engine.lookup.generation
    engine.drain()


def test_resets_in_a_row_are_each_heard_of(make_engine):
    engine = make_engine(budget=256)
    seen = []
    for seed, reset in enumerate([own, foreign, foreign, own, foreign]):
        engine.add(f"r{seed}", 40, max_tokens=1, seed=seed)
        (part,) = stores(engine.step().stores)
        seen.append((part.epoch, part.generation))
        engine.drain()
        reset(engine)
    assert seen == [(seen[0][0] + i, seen[0][1] + i) for i in range(5)]


def test_what_began_before_a_generation_was_known_is_not_saved(make_engine):
    """Nobody knows what was reset meanwhile."""
    engine = make_engine(budget=32)
    engine.lookup.generation = None
    engine.add("a", 96, max_tokens=1)
    parts = stores(engine.step().stores)
    engine.lookup.generation = 1 << 32
    engine.add("b", 40, max_tokens=1, seed=3)
    while engine.scheduler.has_requests():
        parts += stores(engine.step().stores)
    assert {(p.request, p.generation) for p in parts} == {("b", 1 << 32)}
    assert engine.used() == 0


def test_load_wishes_bound_the_lookup(make_engine):
    engine = make_engine(budget=256)
    engine.add("a", 100, kv_transfer_params={"max_load_tokens": 40})
    engine.lookup.hits["a"] = 32
    load = frame(engine.step().loads[0])
    # One token more than may be loaded: a hit of all that is asked about would lose its last block.
    assert engine.lookup.asked[0][1] == 33
    assert load["controls"] == {"max_load_tokens": 40}


def test_random_lives_leave_nothing_behind(make_engine):
    """Hits of any length, loads that fail or not, aborts, late acknowledgements, a small cache."""
    import random

    from vllm.v1.request import RequestStatus

    happened = {"loads": 0, "failures": 0, "preemptions": 0, "stores": 0, "aborts": 0}
    for seed in range(30):
        rng = random.Random(seed)
        engine = make_engine(num_blocks=rng.choice([24, 40]), budget=96)
        loading = {}
        added = 0
        for _turn in range(1500):
            if added < 25 and rng.random() < 0.3:
                name, tokens = f"r{added}", rng.randrange(10, 200)
                engine.add(name, tokens, max_tokens=rng.randrange(1, 30), seed=rng.randrange(4))
                engine.lookup.hits[name] = rng.choice([0, None, tokens // BLOCK * BLOCK, BLOCK])
                added += 1
            for name, tokens in list(engine.lookup.hits.items()):
                if tokens is None and rng.random() < 0.3:
                    engine.lookup.hits[name] = BLOCK
            if rng.random() < 0.02 and engine.scheduler.requests:
                name = rng.choice(list(engine.scheduler.requests))
                if not engine.scheduler.requests[name].is_finished():
                    engine.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)
                    happened["aborts"] += 1
            done, bad, failed = set(), set(), set()
            for name, command in list(loading.items()):
                if rng.random() < 0.3:
                    done.add(name)
                    del loading[name]
                    if rng.random() < 0.3:
                        failed.add(name)
                        blocks = block_ids(command.suspects)
                        bad |= set(blocks[rng.randrange(len(blocks)) :])
            commands = engine.step(received=done, bad=bad, failed=failed, acknowledge=rng.random() < 0.4)
            happened["loads"] += len(commands.loads)
            happened["stores"] += len(stores(commands.stores))
            happened["failures"] += len(failed)
            happened["preemptions"] += len(commands.preempted)
            loading.update(engine.running_loads)
            engine.running_loads.clear()
            if added == 25 and not loading and not engine.scheduler.requests:
                break
        engine.drain()
        assert engine.used() == 0, seed
        assert not engine.connector._scheduler._entries, seed
    assert min(happened.values()) >= 5, happened


def test_block_bytes_are_little_endian_words():
    from mooncake_sidecar.jobs import block_bytes

    assert block_bytes([1, 258]) == b"\1\0\0\0\2\1\0\0"
    assert array.array("I").itemsize == 4


def test_a_step_is_idle_when_nothing_runs(make_engine):
    engine = make_engine(budget=256)
    engine.add("a", 100)
    engine.lookup.hits["a"] = 96
    assert engine.step().idle  # the load is all there is
    assert engine.step().idle
    engine.add("b", 8)  # too short for the connector to hear of
    assert not engine.step().idle
    engine.add("c", 100, seed=1)
    engine.lookup.hits["c"] = 96
    # An asynchronous engine may have nothing to schedule for a request whose last step is under way.
    budget, engine.scheduler.max_num_scheduled_tokens = engine.scheduler.max_num_scheduled_tokens, 0
    idle = engine.step().idle
    assert engine.output.num_scheduled_tokens == {} and not idle
    engine.scheduler.max_num_scheduled_tokens = budget
    while "b" in engine.scheduler.requests:
        engine.step()
    assert engine.step().idle
    engine.step(received={"a", "c"})
    engine.drain()


def test_nothing_waits_for_a_save(make_engine):
    """The in-tree connector inherits True for producers: a preempted request whose save is pending is computed again."""
    assert make_engine().connector.requires_kv_delivery is False
