"""When nothing runs in the engine, the worker role waits a moment for a load."""

from types import SimpleNamespace

import pytest

from mooncake_sidecar import messages as msg
from mooncake_sidecar.jobs import JobCommand, StepCommands
from mooncake_sidecar.link import Outcome, wait_readable
from mooncake_sidecar.worker import WorkerRole


class SlowLink:
    """Ends its load once it was waited for so often."""

    healthy = store_ready = True
    takes_ahead = done = leaving = False
    number = 7
    readable = True

    def __init__(self, waits):
        self.left = waits
        self.waited = []

    def submit(self, *_):
        return True

    def notify(self, message):
        pass

    def flush(self, now):
        pass

    def descriptor(self):
        return self.number

    def wait(self, descriptors, seconds):
        assert descriptors == [self.number] and seconds > 0
        self.waited.append(seconds)
        self.left -= 1
        return self.readable

    def pump(self, now):
        if self.left > 0:
            return []
        self.left = 1 << 60
        return [Outcome(1, msg.KIND_LOAD, "a", msg.STATUS_OK, b"", None, 0.0)]


def poll(link, step, idle_wait_s=0.002):
    ticks = iter(range(1 << 30))
    links = [link]
    role = WorkerRole(
        lambda: links.pop() if links else None,
        rank=0,
        by_block=True,
        idle_wait_s=idle_wait_s,
        wait=link.wait,
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
    ("step", "idle_wait_s"),
    [(load(), 0.002), (load(idle=True), 0.0), (StepCommands(idle=True), 0.002)],
    ids=["something runs", "other engines compute in lock-step", "no load"],
)
def test_nobody_waits_otherwise(step, idle_wait_s):
    link = SlowLink(1)
    assert poll(link, step, idle_wait_s) == set()
    assert link.waited == []


def impatient_role(waited, clock, **more):
    """A role whose loads do not end; it notes how long it would have waited for them."""
    links = [SlowLink(1 << 30)]
    return WorkerRole(
        lambda: links.pop() if links else None,
        rank=0,
        by_block=True,
        idle_wait_s=0.002,
        wait=lambda _, seconds: waited.append(seconds) or False,
        clock=clock,
        **more,
    )


def test_the_wait_grows_with_the_load():
    """To an eighth of what it has taken, four times the first; another load begins anew."""
    now = 0.0
    waited = []
    role = impatient_role(waited, lambda: now)
    for now, step in [
        (5.0, load(idle=True)),
        (5.008, StepCommands(idle=True)),
        (5.024, StepCommands(idle=True)),
        (9.0, StepCommands(idle=True)),
        (9.5, StepCommands(loads=[JobCommand(2, "b", b"frame")], idle=True)),
        (9.524, StepCommands(idle=True)),
    ]:
        role.start_loads(step)
        assert role.poll().received == set()
    assert waited == pytest.approx([0.002, 0.002, 0.003, 0.008, 0.002, 0.003])


def test_a_load_from_below_the_memory_has_the_longest_wait_at_once():
    waited = []
    role = impatient_role(waited, lambda: 5.0)
    far, near = JobCommand(1, "a", b"frame", far=True), JobCommand(2, "b", b"frame")
    for step in [StepCommands(loads=[near], idle=True), StepCommands(loads=[far], idle=True), StepCommands(idle=True)]:
        role.start_loads(step)
        assert role.poll().received == set()
    assert waited == pytest.approx([0.002, 0.008, 0.008])


def test_where_the_cores_copy_the_wait_is_long():
    """The steps between two waits would take a core from the copies; a step without a load still does not wait. What
    comes from below takes long, and others' lookups wait for the next step."""
    waited = []
    role = impatient_role(waited, lambda: 5.0, on_cpu=True)
    far = StepCommands(loads=[JobCommand(2, "b", b"frame", far=True)], idle=True)
    for step in [StepCommands(idle=True), load(idle=True), StepCommands(idle=True), StepCommands(), far]:
        role.start_loads(step)
        assert role.poll().received == set()
    assert waited == pytest.approx([0.032, 0.032, 0.008])


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_cores_copy_for_an_engine_on_the_cpu(device):
    pytest.importorskip("vllm")
    from mooncake_sidecar.connector import MooncakeSidecarConnector

    config = SimpleNamespace(device_config=SimpleNamespace(device_type=device))
    connector = SimpleNamespace(
        _vllm_config=config,
        _by_block=True,
        _stats=SimpleNamespace(add=None),
        _idle_wait_s=lambda: 0.002,
        _sync_tokens=lambda: 0,
    )
    role = MooncakeSidecarConnector._make_worker(connector, lambda: None, 0, None)
    assert role._grown(0) == (16 if device == "cpu" else 1)


@pytest.mark.parametrize("left", [0, 1, 2], ids=["before the wait", "with the process", "after the process"])
def test_the_end_of_the_session_ends_the_wait(left):
    """A link is waited for on its socket, then on its daemon's process, then no more."""
    link = SlowLink(1 << 30)
    descriptors = [link.number, 8][:left]
    waited = []

    def wait(watched, seconds):
        assert len(watched) == 1
        waited.append(watched[0])
        return True

    link.wait = wait
    link.descriptor = lambda: descriptors[0] if descriptors else -1
    link.pump = lambda now: [] if not waited else descriptors.pop(0) and []
    assert poll(link, load(idle=True)) == set()
    assert waited == [link.number, 8][:left]


def test_a_wait_in_vain_ends_it():
    link = SlowLink(1)
    link.readable = False
    assert poll(link, load(idle=True)) == set()
    assert len(link.waited) == 1


def test_a_load_that_a_session_of_before_has_is_waited_for():
    """A new session took the first one's place while its load was under way."""
    old, fresh = SlowLink(1), SlowLink(0)
    fresh.number, fresh.descriptor, fresh.pump = 8, lambda: -1, lambda now: []  # no jobs there
    links = [old]
    role = WorkerRole(lambda: links.pop() if links else None, rank=0, by_block=True, wait=old.wait, clock=lambda: 0.0)
    role.start_loads(load())
    links.append(fresh)
    role.start_stores(StepCommands())
    assert role.poll().received == set()  # takes the new session
    role.start_loads(StepCommands(idle=True))
    old.left = 2
    assert role.poll().received == {"a"} and old.waited


@pytest.mark.parametrize(
    ("concurrent", "engines", "expected"), [(1, 1, 0.002), (2, 1, 0.001), (4, 1, 0.0005), (1, 2, 0.0)]
)
def test_steps_that_lie_one_behind_the_other_share_the_wait(concurrent, engines, expected):
    pytest.importorskip("vllm")
    from mooncake_sidecar.connector import MooncakeSidecarConnector

    parallel = SimpleNamespace(data_parallel_size=engines)
    config = SimpleNamespace(max_concurrent_batches=concurrent, parallel_config=parallel)
    assert MooncakeSidecarConnector._idle_wait_s(SimpleNamespace(_vllm_config=config)) == expected


@pytest.mark.parametrize("limit", [1024, 0], ids=["select", "poll"])
def test_the_wait_is_never_rounded_up(monkeypatch, limit):
    """poll takes a part of a millisecond for a whole one."""
    asked = []

    class Poller:
        def register(self, *_):
            pass

        def poll(self, milliseconds):
            asked.append(milliseconds / 1000)
            return []

    monkeypatch.setattr("mooncake_sidecar.link._SELECT_LIMIT", limit)
    monkeypatch.setattr("select.poll", Poller)
    monkeypatch.setattr("select.select", lambda fds, w, x, seconds: asked.append(seconds) or ([], [], []))
    for seconds in (0.0004, 0.0019, 0.002):
        assert not wait_readable([5], seconds)
        assert asked[-1] <= seconds and isinstance(asked[-1], float)
    assert len(asked) == 3
