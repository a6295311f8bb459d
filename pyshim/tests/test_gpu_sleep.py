"""vLLM takes a GPU's KV cache away and gives it back: its real allocator, real daemons, the double of the driver."""

import os
import signal
import subprocess
import sys
import threading

import pytest
from gpurig import (  # noqa: F401 - fixtures among them
    AT_GATE,
    CHUNKS,
    CONTEXTS,
    FAULT_CODE,
    GATE,
    IDS,
    MAPPINGS,
    PAGE,
    PATIENCE_S,
    ROOT,
    Control,
    Daemons,
    allocator,
    chunks_here,
    gpu,
    library,
    rig,
    until,
)
from mooncake_sidecar import gpuevents, paths, registration
from mooncake_sidecar import messages as msg
from mooncake_sidecar.jobs import JobCommand, StepCommands, block_bytes
from mooncake_sidecar.link import Outcome
from mooncake_sidecar.worker import WorkerRole
from test_gpu import Event, FakeLink, torch_with


@pytest.mark.parametrize("shareable", [1, 8])
def test_the_cache_is_as_it_was_after_each_sleep(rig, allocator, shareable):
    """Two cycles: nothing of the GPU's is held meanwhile, and each wake-up registers anew."""
    allocator.shareable = shareable
    rank, _, control = rig()
    assert control.get(CHUNKS) == 1 and rank.epochs == [1]
    content = rank.fill("a")
    assert rank.store("a")
    for cycle in range(2):
        before = len(os.listdir("/proc/self/fd"))
        allocator.sleep(offload_tags=())
        assert chunks_here(allocator) == 0 and control.get(CHUNKS) == 0, "the memory is free when sleep returns"
        assert len(os.listdir("/proc/self/fd")) < before, "a descriptor would keep it"
        assert not rank.role.ready
        assert rank.load("a") == set(IDS), "an engine that sleeps has no store"
        until(lambda: control.get(CONTEXTS) == 0, "the GPU's context is given back")
        allocator.wake_up(["weights"])
        assert control.get(CHUNKS) == 0 and not rank.role.ready, "the KV cache is not there yet"
        allocator.wake_up(["kv_cache"])
        rank.await_ready()
        assert control.get(CHUNKS) == 1
        assert rank.epochs[-1] > rank.epochs[-2] and len(rank.epochs) == cycle + 2
        assert rank.read(1) == bytes(PAGE), "what was there has gone"
        assert rank.load("a") == set()
        assert {block: rank.read(block) for block in IDS} == content
        again = rank.fill(f"b{cycle}")
        assert rank.store(f"b{cycle}")
        rank.fill("other")
        assert rank.load(f"b{cycle}") == set() and rank.read(3) == again[3]
    # The KV cache alone, as between two updates of the weights.
    allocator.discard(("kv_cache",))
    assert control.get(CHUNKS) == 0 and chunks_here(allocator) == 1
    allocator.wake_up(None)
    rank.await_ready()
    assert rank.load("a") == set() and rank.read(5) == content[5]


def test_a_copy_under_way_is_ended_before_the_memory_goes(rig, allocator):
    rank, _, control = rig()
    rank.fill("a")
    assert rank.store("a")
    control.set(GATE, 1)
    load = rank.begin_load("a")
    until(lambda: control.get(AT_GATE) > 0, "the GPU copies")
    later = rank.load_command("a")
    rank.role.start_loads(StepCommands(loads=[later]))
    owed = StepCommands(stores=[rank.begin_store("never")])
    rank.role.start_loads(owed)  # a step without the hook behind it
    seen = []

    link = rank.role._link

    def given_up(job):
        return job in link._unfenced or job not in link._jobs  # answered by then

    def open_the_gate():
        until(lambda: load.job in link._unfenced and given_up(later.job), "both loads are given up")
        seen.append(chunks_here(allocator))
        control.set(GATE, 0)

    helper = threading.Thread(target=open_the_gate)
    helper.start()
    allocator.sleep(offload_tags=())
    helper.join()
    assert seen == [2], "sleep waits for what the GPU copies"
    assert control.get(CHUNKS) == 0
    assert rank.role.poll().received == {load.request, later.request}
    assert rank.role.take_bad_blocks() == set(IDS)
    report = rank.role.take_report()
    assert report.stores == {owed.stores[0].job: 1} and owed.stores[0].job in report.incomplete
    allocator.wake_up()
    rank.await_ready()
    assert rank.load("never") == set(IDS), "what was computed before is not stored as what lies there now"
    assert rank.load("a") == set()


@pytest.mark.parametrize("autostarted", [False, True])
def test_a_daemon_that_does_not_answer_holds_nobody_up(rig, allocator, autostarted):
    """One that may be killed is; the other keeps its mapping, of memory that is nobody's."""
    rank, daemons, control = rig(autostarted, patience_s=0.5)
    content = rank.fill("a")
    assert rank.store("a")
    control.set(GATE, 1)
    load = rank.begin_load("a")
    until(lambda: control.get(AT_GATE) > 0, "the GPU copies")
    os.kill(daemons.worker.pid, signal.SIGSTOP)
    allocator.sleep(offload_tags=())
    assert chunks_here(allocator) == 0
    assert rank.role.poll().received == {load.request}
    assert rank.role.take_bad_blocks() == set(IDS)
    if autostarted:
        assert daemons.worker.wait(PATIENCE_S) == -signal.SIGKILL
        control.forget()
        daemons.start_worker()
    allocator.wake_up()
    if not autostarted:
        other = rank.fill("other")
        os.kill(daemons.worker.pid, signal.SIGCONT)
        control.set(GATE, 0)
        until(lambda: control.get(AT_GATE) == 0, "the copy of before has ended")
        until(lambda: rank.role.poll() is not None and rank.role.ready, "the worker has the registration")
        assert {block: rank.read(block) for block in IDS} == other, "it wrote to memory of before"
    rank.await_ready()
    assert rank.load("a") == set()
    assert {block: rank.read(block) for block in IDS} == content
    assert control.get(CHUNKS) == 1


def test_a_slow_registration_is_waited_for(rig, allocator, monkeypatch):
    """In the background, until it is through; and before the memory goes, because it maps that yet."""
    rank, _, control = rig()
    content = rank.fill("a")
    assert rank.store("a")
    monkeypatch.setattr(registration, "_REGISTER_S", 0.1)
    for sleeps in (False, True):
        allocator.sleep(offload_tags=())
        epochs = len(rank.epochs)
        control.hold("cuMemMap")
        allocator.wake_up()
        assert rank.role.poll() is not None and not rank.role.ready
        assert rank.load("a") == set(IDS), "no job is given to a daemon that has not answered"
        if not sleeps:
            control.release()
            rank.await_ready()
            assert len(rank.epochs) == epochs + 1 and control.get(CHUNKS) == 1
            assert rank.load("a") == set() and {block: rank.read(block) for block in IDS} == content
            continue
        held = []

        def let_go(held=held):
            until(lambda: any(link.leaving for link in rank.role._old), "the engine leaves")
            held.append(chunks_here(allocator))
            control.release()

        helper = threading.Thread(target=let_go)
        helper.start()
        allocator.sleep(offload_tags=())
        helper.join()
        assert held == [2] and control.get(CHUNKS) == 0, "sleep waits for what is being mapped"
    allocator.wake_up()
    rank.await_ready()
    assert rank.load("a") == set()


@pytest.mark.parametrize("autostarted", [False, True])
def test_a_registration_that_never_ends_holds_nobody_up(rig, allocator, monkeypatch, autostarted):
    rank, daemons, control = rig(autostarted, patience_s=0.5)
    monkeypatch.setattr(registration, "_REGISTER_S", 0.1)
    allocator.sleep(offload_tags=())
    control.hold("cuMemMap")
    allocator.wake_up()
    allocator.sleep(offload_tags=())
    assert chunks_here(allocator) == 0
    if autostarted:
        assert daemons.worker.wait(PATIENCE_S) == -signal.SIGKILL
        control.forget()
        daemons.start_worker()
    control.release()
    allocator.wake_up()
    rank.await_ready()
    rank.fill("a")
    assert rank.store("a") and rank.load("a") == set() and control.get(CHUNKS) == 1


def test_a_refusal_that_comes_late_is_tried_anew(rig, allocator, monkeypatch):
    rank, _, control = rig()
    rank.fill("a")
    assert rank.store("a")
    allocator.sleep(offload_tags=())
    monkeypatch.setattr(registration, "_REGISTER_S", 0.1)
    control.hold("cuMemMap")
    allocator.wake_up()
    assert not rank.role.ready
    control.set(FAULT_CODE, 2)  # out of memory, once
    rank.await_ready()
    assert rank.load("a") == set()


def test_the_daemon_dies_while_the_engine_sleeps(rig, allocator):
    rank, daemons, control = rig()
    content = rank.fill("a")
    assert rank.store("a")
    allocator.sleep(offload_tags=())
    until(lambda: control.get(CONTEXTS) == 0, "the GPU's context is given back")
    daemons.worker.kill()
    daemons.worker.wait()
    daemons.start_worker()
    allocator.wake_up()
    rank.await_ready()
    assert rank.load("a") == set() and rank.read(2) == content[2]


def test_the_daemon_is_killed_in_the_middle_of_it(rig, allocator):
    rank, daemons, control = rig()
    rank.fill("a")
    assert rank.store("a")
    control.set(GATE, 1)
    load = rank.begin_load("a")
    until(lambda: control.get(AT_GATE) > 0, "the GPU copies")
    killer = threading.Timer(0.2, daemons.worker.kill)
    killer.start()
    allocator.sleep(offload_tags=())
    killer.join()
    assert daemons.worker.wait(PATIENCE_S) == -signal.SIGKILL
    assert rank.role.poll().received == {load.request} and rank.role.take_bad_blocks() == set(IDS)
    control.forget()


@pytest.mark.parametrize("end", ["leave", "disown"])
def test_nothing_of_before_is_sent_after(end):
    """What was held back for the GPU, or for a hook that was left out, would be of other bytes by then."""

    class Leaving(FakeLink):
        connected = True

        def leave(self, now):
            self.connected, self.leaving = False, True

        def disown(self, now):
            return []

    made = []

    class Pending(Event):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            made.append(self)

    links = [Leaving()]
    role = WorkerRole(
        lambda: links.pop() if links else None, rank=0, by_block=True, events=gpuevents.Marks(torch_with(Pending))
    )
    loads = JobCommand(1, "a", b"frame", block_bytes([5, 6]))
    role.start_loads(StepCommands(loads=[loads]))
    role.start_stores(StepCommands(stores=[JobCommand(2, "b", b"frame")]))
    role.start_loads(StepCommands(stores=[JobCommand(3, "c", b"frame")]))
    first = role._link
    assert first.sent == [] and made
    if end == "leave":
        assert role.leave(1.0)
    else:
        role.disown()
    links.append(Leaving())
    for event in made:
        event.done = True
    found, report = role.poll(), role.take_report()
    role.start_loads(StepCommands())
    assert first.sent == [] and role._link.sent == []
    assert found.received == {"a"} and role.take_bad_blocks() == {5, 6}
    assert report.stores == {2: 1, 3: 1} and set(report.incomplete) == {2, 3}


ENGINE = """
import subprocess, sys, time
from pathlib import Path
sys.path[:0] = sys.argv[1:3]
from devices import Double
from engine import Engine
from shapes import Shape
engine = Engine(Double(Path(sys.argv[4])), sys.argv[3], Shape("m", 2, 256, 16, "layers"), 8)
child = subprocess.Popen(["sleep", "600"], pass_fds=[engine.session.sock.fileno()])
print(child.pid, flush=True)
time.sleep(600)
"""


def test_an_engine_that_is_killed_leaves_nothing_mapped(library, runtime_dir):  # noqa: F811
    """Also when a child of its has the session's socket, so that this does not end with it."""
    control = Control(runtime_dir)
    daemons = Daemons(runtime_dir, library, control)
    try:
        until(lambda: os.path.exists(paths.worker_socket(runtime_dir, "cuda-0")), "the worker listens")
        command = [sys.executable, "-c", ENGINE, ROOT / "bench/gpu", ROOT / "pyshim", runtime_dir]
        engine = subprocess.Popen([*command, os.path.dirname(library)], stdout=subprocess.PIPE, text=True)
        child = int(engine.stdout.readline())
        try:
            assert control.get(MAPPINGS) == 1
            engine.kill()
            engine.wait()
            engine.stdout.close()
            until(lambda: control.get(MAPPINGS) == 0, "the engine's memory is unmapped")
            os.kill(child, 0)
        finally:
            os.kill(child, signal.SIGKILL)
    finally:
        daemons.close()
    assert control.complaints() == (0, "")


def test_what_a_daemon_says_after_it_was_left_does_not_count():
    """A sleep that fails half-way brings other chunks: what it loaded went where the old ones were."""

    class Stuck(FakeLink):
        connected, leaving_descriptor, ended = True, -1, False

        def leave(self, now):
            self.leaving = True

        def pump(self, now):
            return [Outcome(1, "load", "a", msg.STATUS_OK, b"")] if self.ended else []

    stuck = Stuck()
    links = [stuck]
    role = WorkerRole(lambda: links.pop() if links else None, rank=0, by_block=True, events=None)
    role.start_loads(StepCommands(loads=[JobCommand(1, "a", b"frame", block_bytes([5, 6]))]))
    assert not role.leave(0.0)
    stuck.ended = True
    assert role.poll().received == {"a"} and role.take_bad_blocks() == {5, 6}
