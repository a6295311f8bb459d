"""Stores that a daemon has before their bytes are there."""

import pytest
from test_fence import BLOCKS, Rank, Request, store_job
from test_gpu import Event, FakeLink, torch_with

from mooncake_sidecar import gpuevents
from mooncake_sidecar.jobs import ALL_PARTS, JobCommand, StepCommands
from mooncake_sidecar.worker import WorkerRole

MANY = 16  # blocks of a prefill


class AheadLink(FakeLink):
    """A daemon that takes stores ahead."""

    takes_ahead = True

    def submit(self, job, kind, request, frame, now, *, ahead=False):
        self.sent.append(("ahead" if ahead else kind, job))
        return self.healthy

    def make_final(self, job, now):
        self.sent.append(("final", job))

    def cancel(self, job, now):
        self.sent.append(("cancel", job))


def role_with(*links, events=None):
    links = list(links)
    return WorkerRole(lambda: links.pop(0) if links else None, rank=0, by_block=True, events=events)


def store(job, ahead=True):
    return JobCommand(job, f"r{job}", b"frame", ahead=ahead)


def test_a_prefill_is_sent_ahead_and_a_decode_step_is_not():
    few, many = Request("few", MANY - 1), Request("many", MANY)
    assert not store_job(1, few, (MANY - 1) * 16, list(range(1, MANY))).ahead
    assert store_job(2, many, MANY * 16, list(range(1, MANY + 1))).ahead


def test_what_a_step_stores_is_named_before_and_final_behind_it():
    link = AheadLink()
    role = role_with(link)
    step = StepCommands(loads=[store(1)], stores=[store(2), store(3, ahead=False)], finished=["r9"])
    role.start_loads(step)
    assert link.sent == [("Finished", None), ("load", 1), ("ahead", 2)]
    link.sent.clear()
    role.start_stores(step)
    assert link.sent == [("final", 2), ("store", 3)]
    assert role.take_report().stores == {}, "neither has ended"


def test_a_hook_that_was_left_out_is_made_up_for():
    link = AheadLink()
    role = role_with(link)
    role.start_loads(StepCommands(stores=[store(2)]))
    role.start_loads(StepCommands(stores=[store(3)]))
    assert link.sent == [("ahead", 2), ("final", 2), ("ahead", 3)]


def test_an_older_daemon_has_them_at_the_end():
    link = AheadLink()
    link.takes_ahead = False
    role = role_with(link)
    step = StepCommands(stores=[store(2)])
    role.start_loads(step)
    assert link.sent == []
    role.start_stores(step)
    assert link.sent == [("store", 2)]


def test_one_that_is_not_taken_ahead_is_tried_at_the_end():
    link = AheadLink()
    role = role_with(link)
    step = StepCommands(stores=[store(2)])
    link.healthy = False
    role.start_loads(step)
    link.healthy = True
    role.start_stores(step)
    assert link.sent == [("ahead", 2), ("store", 2)]


def test_the_event_is_said_before_the_end():
    link = AheadLink()
    role = role_with(link, events=gpuevents.EventRing(torch_with(Event), 3))
    step = StepCommands(loads=[store(1)], stores=[store(2)])
    role.start_loads(step)
    role.start_stores(step)
    assert link.sent == [("After", 0), ("load", 1), ("ahead", 2), ("After", 1), ("final", 2)]


def test_nothing_is_final_of_which_the_daemon_does_not_know_the_event():
    """It was not told, or another was."""
    link = AheadLink()
    role = role_with(link, events=gpuevents.EventRing(torch_with(Event), 3))
    step = StepCommands(stores=[store(2)])
    role.start_loads(step)
    link.healthy = False
    role.start_stores(step)
    assert link.sent == [("ahead", 2), ("cancel", 2)]
    old, new = AheadLink(), AheadLink()
    role = role_with(old, events=gpuevents.EventRing(torch_with(Event), 3))
    role.start_loads(step)
    role.adopt(new)
    role.start_stores(step)
    assert old.sent == [("ahead", 2), ("cancel", 2)] and new.sent == [("After", 0)]


def test_marks_hold_the_end_back_and_nothing_passes_what_is_held():
    made = []

    class Own(Event):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            made.append(self)

    link = AheadLink()
    role = role_with(link, events=gpuevents.Marks(torch_with(Own)))
    first, second = StepCommands(stores=[store(1)]), StepCommands(stores=[store(2)])
    role.start_loads(first)
    role.start_stores(first)
    role.start_loads(second)
    role.start_stores(second)
    role.poll()
    assert link.sent == [("ahead", 1)]
    made[0].done = made[1].done = True
    role.poll()
    assert link.sent == [("ahead", 1), ("final", 1), ("store", 2)]


@pytest.fixture
def rank(start_daemon, runtime_dir):
    daemon = start_daemon()
    made = Rank(runtime_dir)
    yield daemon, made
    made.close()


def begin(rank, blocks=MANY):
    """A step has begun that will store so many blocks."""
    rank.jobs += 1
    ids = list(range(1, blocks + 1))
    for block in ids:
        rank.fill(block, 200)
    step = StepCommands(stores=[store_job(rank.jobs, Request("first", blocks), blocks * 16, ids)])
    rank.role.start_loads(step)
    rank.role.poll()
    return step


def test_the_bytes_are_those_at_the_steps_end(rank):
    daemon, rank = rank
    step = begin(rank)
    rank.offset += 60  # the step's time is not the job's: nothing is late
    rank.role.poll()
    for block in range(1, MANY + 1):
        rank.fill(block, block)
    rank.role.start_stores(step)
    rank.until(lambda: 1 in rank.stores)
    assert not rank.incomplete and daemon.stats()["ahead"] == 1 and daemon.stats()["cancels"] == 0
    rank.load(Request("second", MANY), list(range(MANY + 1, 2 * MANY + 1)))
    rank.until(lambda: rank.received)
    assert [rank.content(MANY + block) for block in range(1, MANY + 1)] == [{block} for block in range(1, MANY + 1)]
    assert 2 * MANY < BLOCKS


def test_from_its_end_on_it_may_be_late(rank):
    daemon, rank = rank
    daemon.order(hold=True)
    step = begin(rank)
    rank.role.start_stores(step)
    rank.role.poll()
    rank.offset += 60
    rank.until(lambda: 1 in rank.stores)
    assert rank.incomplete == {1: {ALL_PARTS}} and daemon.stats()["cancels"] == 1


def test_a_daemon_that_dies_in_the_step(rank):
    daemon, rank = rank
    step = begin(rank)
    daemon.kill()
    rank.role.start_stores(step)
    rank.until(lambda: 1 in rank.stores)
    assert rank.incomplete == {1: {ALL_PARTS}} and rank.stores == {1: 1}


def test_memory_that_goes_in_the_step(rank):
    daemon, rank = rank
    begin(rank)
    assert rank.role.leave(30)
    report = rank.role.take_report()
    assert report.stores == {1: 1} and report.incomplete == {1: {ALL_PARTS}}
