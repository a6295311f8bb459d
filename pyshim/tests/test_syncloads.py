"""Loads that are part of the step that computes behind them: when, and what becomes of one that fails."""

import threading
from types import SimpleNamespace

import pytest

pytest.importorskip("vllm")

from engine import BLOCK  # noqa: E402
from sent import stores  # noqa: E402
from test_fence import PATIENCE_S, TOKENS, Request, make_rank, store_job, stored  # noqa: E402, F401
from test_idle import SlowLink  # noqa: E402
from vllm.v1.request import RequestStatus  # noqa: E402

from mooncake_sidecar import messages as msg  # noqa: E402
from mooncake_sidecar.connector import MooncakeSidecarConnector  # noqa: E402
from mooncake_sidecar.jobs import ALL_PARTS, JobCommand, StepCommands, block_ids  # noqa: E402
from mooncake_sidecar.link import Outcome  # noqa: E402
from mooncake_sidecar.metadata import SidecarMetadata  # noqa: E402
from mooncake_sidecar.syncloads import SYNC_LOAD_BYTES  # noqa: E402
from mooncake_sidecar.worker import SYNC_PATIENCE_S, WorkerRole  # noqa: E402


@pytest.fixture
def engine(make_engine):
    """One whose worker has said that it can end a load."""
    return ready(make_engine(budget=256))


def ready(engine):
    engine.step(ready={0: True}, sync=True)
    return engine


def add(engine, name, tokens=100, hit=96, **more):
    engine.lookup.hits[name] = hit
    return engine.add(name, tokens, **more)


def scheduled(engine):
    return dict(engine.output.num_scheduled_tokens)


def test_a_load_into_an_engine_at_rest_is_of_the_step_that_computes(engine):
    add(engine, "a")
    step = engine.step()
    assert [load.job for load in step.loads] == [step.sync]
    assert scheduled(engine) == {"a": 4} and engine.output.has_sync_kv_loads
    assert engine.scheduler.requests["a"].num_computed_tokens == 100
    assert engine.step().sync is None
    engine.drain()
    assert engine.used() == 0


def test_what_it_brought_is_not_offered_and_what_it_computes_is(engine):
    engine.lookup.lasting = True
    add(engine, "a", tokens=150)
    (part,) = stores(engine.step().stores)
    assert (part.token_len, part.request) == (144, "a")


def nothing_said(engine):
    engine.connector._scheduler._sync.allowed = False


def worker_not_ready_for_it(engine):
    engine.step(ready={0: True}, sync=False)


def something_runs(engine):
    engine.add("before", 40)
    engine.step()


def something_begins(engine):
    engine.add("before", 40)


def one_loaded_before_begins(engine):
    engine.connector._scheduler._sync.allowed = False
    add(engine, "before", seed=1)
    engine.step()
    engine.connector._scheduler._sync.allowed = True
    engine.step(received={"before"})


def from_below(engine):
    engine.lookup.tiers = ((1, 64), (2, 32))


def too_long(engine):
    engine.connector._scheduler._sync._most_tokens = 95


@pytest.mark.parametrize(
    "why",
    [
        nothing_said,
        worker_not_ready_for_it,
        something_runs,
        something_begins,
        one_loaded_before_begins,
        from_below,
        too_long,
    ],
)
def test_others_run_beside_the_steps(engine, why):
    why(engine)
    add(engine, "a")
    step = engine.step()
    assert len(step.loads) == 1 and step.sync is None and "a" not in scheduled(engine)
    assert not engine.output.has_sync_kv_loads
    engine.step(received={"a"})
    engine.drain()
    assert engine.used() == 0


def test_who_hits_what_is_not_there_yet_waits_a_step(engine):
    add(engine, "a")
    add(engine, "b", hit=0)
    step = engine.step()
    assert step.sync is not None and scheduled(engine) == {"a": 4}
    engine.step()
    assert scheduled(engine) == {"a": 1, "b": 4}
    engine.drain()


def test_another_load_of_the_same_step_runs_beside_it(engine):
    add(engine, "a")
    add(engine, "b", seed=1)
    step = engine.step()
    first, second = step.loads
    assert step.sync == first.job and second.request == "b" and scheduled(engine) == {"a": 4}
    engine.step(received={"b"})
    engine.step()
    assert scheduled(engine)["b"] == 4
    engine.drain()


def test_another_prompt_of_the_same_step_computes_with_it(engine):
    add(engine, "a")
    engine.add("b", 40, seed=1)
    assert engine.step().sync is not None and scheduled(engine) == {"a": 4, "b": 40}
    engine.drain()


def test_behind_what_the_engine_has(engine):
    engine.add("before", 40, max_tokens=1)
    engine.drain()
    add(engine, "a")
    step = engine.step()
    assert step.sync is not None and scheduled(engine) == {"a": 4}
    assert len(block_ids(step.loads[0].suspects)) == 4
    engine.drain()


def failing_step(engine, name="a", at=3, **more):
    """The step of a load of which blocks are missing from the ``at``-th on; returns all the blocks that it named."""
    request = add(engine, name, **more)
    blocks = []

    def bad():
        blocks.extend(block_ids(engine.commands.loads[0].suspects))
        return blocks[at:]

    engine.step(bad=Late(bad), failed={name})
    return request, blocks


class Late:
    """Blocks that are known when the step has been put together."""

    def __init__(self, blocks):
        self.blocks = blocks

    def __iter__(self):
        return iter(self.blocks())


def test_what_failed_is_computed_and_offered(engine):
    engine.lookup.lasting = True
    request, blocks = failing_step(engine)
    assert len(blocks) == 6 and request.num_computed_tokens == 3 * BLOCK and not request.num_output_tokens
    step = engine.step()
    assert scheduled(engine) == {"a": 100 - 3 * BLOCK} and not step.loads
    (part,) = stores(step.stores)
    assert part.token_len == 96 and part.tables[0] == blocks
    assert request.num_output_tokens == 1
    engine.drain()
    assert engine.used() == 0


def test_in_chunks_it_is_offered_as_it_is_computed(make_engine):
    engine = ready(make_engine(budget=64, save_decode_cache=True))
    failing_step(engine, tokens=180, hit=160, at=1, max_tokens=30)
    offered = [part.token_len for _ in range(40) for part in stores(engine.step().stores)]
    assert offered == [80, 144, 176, 192, 208]


@pytest.mark.parametrize("when", ["before it is computed", "before the failure is known"])
def test_nobody_hits_what_was_not_loaded(engine, monkeypatch, when):
    """Neither its blocks nor what the step has computed from them, although vLLM has them in its prefix cache."""
    if when == "before the failure is known":
        update = engine.scheduler.update_from_output

        def aborted_first(*step):
            monkeypatch.undo()
            engine.scheduler.finish_requests("a", RequestStatus.FINISHED_ABORTED)
            return update(*step)

        monkeypatch.setattr(engine.scheduler, "update_from_output", aborted_first)
    failing_step(engine, tokens=150)
    if when == "before it is computed":
        engine.scheduler.finish_requests("a", RequestStatus.FINISHED_ABORTED)
    assert engine.used() == 0
    engine.add("b", 150)
    engine.step()
    assert scheduled(engine) == {"b": 150}
    engine.drain()


def test_what_was_there_before_stays(engine):
    engine.add("before", 40, max_tokens=1)
    engine.drain()
    failing_step(engine, at=0)
    engine.scheduler.finish_requests("a", RequestStatus.FINISHED_ABORTED)
    engine.add("b", 100)
    engine.step()
    assert scheduled(engine) == {"b": 100 - 2 * BLOCK}
    engine.drain()


def test_after_a_failure_the_next_may_be_again(engine):
    failing_step(engine)
    engine.drain()
    add(engine, "b", seed=1)
    assert engine.step().sync is not None
    engine.drain()


def test_a_request_that_comes_back_after_a_preemption(engine):
    engine.add("a", 100)
    engine.step()
    assert engine.scheduler.reset_prefix_cache(reset_running_requests=True)
    engine.lookup.hits["a"] = None
    engine.step()
    engine.lookup.hits["a"] = 96
    step = engine.step()
    assert step.sync is not None and scheduled(engine) == {"a": 5}
    engine.drain()
    assert engine.used() == 0


# ---- which engines ----


def connector(
    load_async=None,
    device="cpu",
    world=1,
    dp=1,
    batches=1,
    drafts=None,
    by_block=True,
    fine=False,
    zeroing=False,
    second=False,
):
    made = MooncakeSidecarConnector.__new__(MooncakeSidecarConnector)
    made._settings = SimpleNamespace(load_async=load_async)
    made._by_block = by_block
    made._geometry = SimpleNamespace(block_tokens=(BLOCK,), fine=fine)
    made._kv_cache_config = SimpleNamespace(
        needs_kv_cache_zeroing=zeroing, num_blocks=100, kv_cache_tensors=[SimpleNamespace(size=100 << 20)] * 4
    )
    made._vllm_config = SimpleNamespace(
        device_config=SimpleNamespace(device_type=device),
        parallel_config=SimpleNamespace(world_size=world, data_parallel_size=dp),
        max_concurrent_batches=batches,
        use_v2_model_runner=second,
        speculative_config=drafts,
    )
    return made


def test_a_load_is_bounded_in_bytes():
    assert connector()._sync_tokens() == SYNC_LOAD_BYTES // (4 << 20) * BLOCK


@pytest.mark.parametrize(
    "changed",
    [
        {"load_async": True},
        {"device": "cuda"},
        {"world": 2},
        {"dp": 2},
        {"batches": 2},
        {"drafts": object()},
        {"by_block": False},
        {"fine": True},
        {"second": True},
        {"zeroing": True},
    ],
    ids=str,
)
def test_other_engines_load_beside_their_steps(changed):
    assert connector(**changed)._sync_tokens() == 0


@pytest.fixture
def agent(monkeypatch):
    """Sets the connector that vLLM's worker calls."""
    from vllm.distributed.kv_transfer import kv_transfer_state

    return lambda of: monkeypatch.setattr(kv_transfer_state, "_KV_CONNECTOR_AGENT", of)


@pytest.mark.parametrize("by_itself", [True, False, None], ids=["by itself", "one of several", "not yet"])
def test_beside_another_connector_loads_run_beside_the_steps(agent, by_itself):
    made = connector()
    made._stats = SimpleNamespace(add=None)
    agent({True: made, False: object(), None: None}[by_itself])
    assert made._make_worker(lambda: None, 0, None)._sync == (by_itself is True)


@pytest.mark.parametrize("sync", [1, None])
def test_a_step_is_told_of_its_load_before_its_inputs_are_prepared(sync):
    called = []
    made = connector()
    made._worker = SimpleNamespace(send_loads=lambda commands: called.append(commands))
    commands = StepCommands(sync=sync)
    made.handle_preemptions(SidecarMetadata(commands))
    assert called == ([commands] if sync else [])


# ---- the worker's side ----


class Link(SlowLink):
    """Notes what it is asked, and ends the load as it is told."""

    killable = True

    def __init__(self, waits=0, status=msg.STATUS_OK, failed=b""):
        super().__init__(waits)
        self.status, self.failed = status, failed
        self.kinds = []
        self.cancelled = []

    def submit(self, job, kind, *_):
        self.kinds.append(kind)
        return True

    def cancel(self, job, now):
        self.cancelled.append(job)

    def pump(self, now):
        return [Outcome(1, msg.KIND_LOAD, "a", self.status, self.failed, None, 0.0)] if super().pump(now) else []


def role(link, clock=lambda: 0.0, **more):
    links = [link]
    made = WorkerRole(
        lambda: links.pop() if links else None, rank=0, by_block=True, sync=True, wait=link.wait, clock=clock, **more
    )
    made.start_loads(StepCommands())
    return made


def step(**more):
    suspects = bytes([5, 0, 0, 0, 6, 0, 0, 0])
    return StepCommands(
        loads=[JobCommand(1, "a", b"frame", suspects)], stores=[JobCommand(2, "a", b"frame")], sync=1, **more
    )


def test_the_step_begins_when_its_load_is_over():
    link = Link(waits=3)
    worker = role(link)
    worker.start_loads(step())
    assert len(link.waited) == 3
    assert worker.poll().received == set()  # vLLM runs the request already
    assert worker.take_bad_blocks() == set()


def test_the_load_runs_while_the_step_is_prepared():
    link = Link(waits=1)
    worker = role(link)
    commands = step()
    worker.send_loads(commands)
    assert link.kinds == [msg.KIND_LOAD] and not link.waited
    worker.start_loads(commands)
    assert link.kinds == [msg.KIND_LOAD] and len(link.waited) == 1


@pytest.mark.parametrize("failed", [b"", bytes([6, 0, 0, 0])], ids=["all", "one"])
def test_a_step_behind_a_failed_load_stores_nothing(failed):
    link = Link(status=msg.STATUS_FAILED, failed=failed)
    worker = role(link)
    commands = step()
    worker.start_loads(commands)
    worker.start_stores(commands)
    assert link.kinds == [msg.KIND_LOAD]
    assert worker.poll().received == set()
    assert worker.take_bad_blocks() == ({6} if failed else {5, 6})
    report = worker.take_report()
    assert report.failed == {"a"} and report.stores == {2: 1} and report.incomplete == {2: {ALL_PARTS}}
    following = StepCommands(stores=[JobCommand(3, "a", b"frame")])
    worker.start_loads(following)
    worker.start_stores(following)
    assert link.kinds == [msg.KIND_LOAD, msg.KIND_STORE]


def test_a_store_ahead_behind_a_failed_load_is_given_up():
    link = Link(status=msg.STATUS_FAILED)
    link.takes_ahead = True
    link.submit = lambda job, kind, *_, ahead=False: not link.kinds.append((kind, ahead))
    worker = role(link)
    commands = StepCommands(
        loads=[JobCommand(1, "a", b"frame", bytes([5, 0, 0, 0]))], stores=[JobCommand(2, "a", b"frame", ahead=True)], sync=1
    )
    worker.start_loads(commands)
    worker.start_stores(commands)
    assert link.kinds == [(msg.KIND_LOAD, False), (msg.KIND_STORE, True)] and link.cancelled == [2]


def test_a_load_that_is_late_is_cancelled():
    ticks = iter(range(1 << 30))
    link = Link(waits=30)
    worker = role(link, clock=lambda: next(ticks) * SYNC_PATIENCE_S / 10)
    worker.start_loads(step())
    assert set(link.cancelled) == {1}


def test_no_step_waits_for_a_daemon_that_can_not_be_killed():
    link = Link(waits=1 << 30)
    worker = role(link)
    link.killable = False
    worker.start_loads(step())
    assert not link.kinds and not link.waited
    assert worker.take_bad_blocks() == {5, 6}


@pytest.mark.parametrize(("sync", "killable"), [(True, True), (True, False), (False, True)])
def test_the_scheduler_learns_whether_loads_can_be_ended(sync, killable):
    link = Link()
    link.killable = killable
    links = [link]
    worker = WorkerRole(lambda: links.pop() if links else None, rank=0, by_block=True, sync=sync, wait=link.wait)
    worker.start_loads(StepCommands())
    assert bool(worker.take_report().sync) == (sync and killable)


# ---- against a daemon process ----


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr("mooncake_sidecar.worker.SYNC_PATIENCE_S", 0.05)


def test_when_the_step_computes_the_bytes_are_there(start_daemon, make_rank):
    start_daemon("--autostarted")
    rank = make_rank(sync=True)
    assert rank.step().sync
    stored(rank)
    rank.load_in_step(Request("second", 3), [7, 8, 9])
    assert [rank.content(block) for block in (7, 8, 9)] == [{11}, {12}, {13}]
    assert not rank.received and not rank.bad and not rank.failed


def test_a_daemon_that_is_late_gives_it_up(start_daemon, make_rank, impatient):
    daemon, rank = start_daemon("--autostarted"), make_rank(sync=True)
    stored(rank)
    daemon.order(hold=True)
    store = store_job(100, Request("third", 1), TOKENS, [5])
    rank.load_in_step(Request("second", 3), [7, 8, 9], stores=[store])
    assert rank.bad == {7, 8, 9} and rank.content(7) == {0} and not rank.received
    assert rank.stores[100] == 1 and rank.incomplete == {100: {ALL_PARTS}}
    assert daemon.process.poll() is None and rank.role.ready
    assert rank.reports[-1].sync is False, "the next step would wait as long"


def test_a_daemon_that_does_not_answer_is_killed_before_the_step_computes(start_daemon, make_rank, impatient):
    daemon, rank = start_daemon("--autostarted"), make_rank(sync=True, fence_kill_after_s=0.05)
    stored(rank)
    daemon.stop()
    rank.load_in_step(Request("second", 3), [7, 8, 9])
    assert rank.bad == {7, 8, 9} and not rank.received
    assert daemon.process.wait(PATIENCE_S) == -9
    rank.until(lambda: not rank.role.ready)


def test_a_daemon_that_dies_ends_the_wait(start_daemon, make_rank):
    daemon, rank = start_daemon("--autostarted"), make_rank(sync=True)
    stored(rank)
    daemon.order(hold=True)
    killer = threading.Timer(0.2, daemon.process.kill)
    killer.start()
    rank.load_in_step(Request("second", 3), [7, 8, 9])
    killer.join()
    assert rank.bad == {7, 8, 9}


def test_for_somebody_elses_daemon_no_step_waits(start_daemon, make_rank):
    daemon, rank = start_daemon(), make_rank(sync=True)
    assert rank.step().sync is False
    stored(rank)
    daemon.stop()
    rank.load_in_step(Request("second", 3), [7, 8, 9])
    assert rank.bad == {7, 8, 9}
    daemon.wake()
    assert daemon.stats()["loads"] == 0
