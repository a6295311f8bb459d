"""When nothing runs in the engine, the worker role waits a moment for a load."""

import pytest

from mooncake_sidecar import messages as msg
from mooncake_sidecar.jobs import JobCommand, StepCommands
from mooncake_sidecar.link import Outcome
from mooncake_sidecar.worker import WorkerRole


class SlowLink:
    """Ends its load once it was waited for so often."""

    healthy = store_ready = True
    done = False

    def __init__(self, waits):
        self.left = waits
        self.waited = []

    def submit(self, *_):
        return True

    def notify(self, message):
        pass

    def flush(self, now):
        pass

    def wait(self, seconds):
        if seconds <= 0:
            return False
        self.waited.append(seconds)
        self.left -= 1
        return True

    def pump(self, now):
        if self.left > 0:
            return []
        self.left = 1 << 60
        return [Outcome(1, msg.KIND_LOAD, "a", msg.STATUS_OK, b"", None, 0.0)]


def poll(link, step, may_wait=True):
    ticks = iter(range(1 << 30))
    links = [link]
    role = WorkerRole(
        lambda: links.pop() if links else None,
        rank=0,
        by_block=True,
        may_wait=may_wait,
        clock=lambda: next(ticks) * 1e-4,
    )
    role.start_loads(step)
    role.start_stores(step)
    return role.poll().received


def load(**step):
    return StepCommands(loads=[JobCommand(1, "a", b"frame")], **step)


def test_an_idle_step_sees_its_load_end():
    link = SlowLink(3)
    assert poll(link, load(idle=True)) == {"a"}
    assert len(link.waited) == 3


def test_the_wait_is_short():
    link = SlowLink(1 << 30)
    assert poll(link, load(idle=True)) == set()
    assert link.waited and max(link.waited) <= 0.002 and len(link.waited) < 20


@pytest.mark.parametrize(
    ("step", "may_wait"),
    [(load(), True), (load(idle=True), False), (StepCommands(idle=True), True)],
    ids=["something runs", "other engines compute in lock-step", "no load"],
)
def test_nobody_waits_otherwise(step, may_wait):
    link = SlowLink(1)
    assert poll(link, step, may_wait) == set()
    assert link.waited == []


def test_the_end_of_the_session_ends_the_wait():
    link = SlowLink(1)
    link.wait = lambda seconds: False
    assert poll(link, load(idle=True)) == set()
