"""vLLM takes a GPU's KV cache away and gives it back: its real allocator, real daemons, the double of the driver."""

import ctypes
import hashlib
import mmap
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import make_geometry
from mooncake_sidecar import config, gpuevents, gpusleep, paths, registration
from mooncake_sidecar import messages as msg
from mooncake_sidecar.batch import NO_LIMIT, StoreBatch
from mooncake_sidecar.jobs import JobCommand, StepCommands, block_bytes, load_frame
from mooncake_sidecar.link import Outcome
from mooncake_sidecar.namespace import Ranks
from mooncake_sidecar.presence import Presence
from mooncake_sidecar.registration import Registrant, describe
from mooncake_sidecar.session import Session
from mooncake_sidecar.worker import WorkerRole
from test_gpu import (  # noqa: F401 - fixtures among them
    Event,
    FakeLink,
    Location,
    Properties,
    Tensor,
    gpu,
    kv_config,
    library,
    torch_with,
)

ROOT = Path(__file__).parents[2]
TAG = 1 << 60
PATIENCE_S = 60
# Words of the double's control page (control.go).
GATE, AT_GATE, FAULT_CODE, VIOLATIONS, CONTEXTS, MAPPINGS, CHUNKS, MODULES = 0, 1, 2, 10, 11, 15, 16, 21
FAULT_CALL_AT, VIOLATION_AT = 2048, 2560
HOLD = 1 << 30
BLOCKS, PAGE, TOKENS = 16, 4096, 16
IDS = list(range(1, BLOCKS))


@pytest.fixture
def allocator(gpu, monkeypatch):  # noqa: F811
    """vLLM's allocator over the double."""
    cumem = pytest.importorskip("vllm.device_allocator.cumem")
    handles: dict[int, int] = {}

    def create(device, size, address, _):
        chunk = ctypes.c_uint64()
        properties = Properties(1, made.shareable, Location(1, device))
        gpu.call(
            "cuMemCreate", ctypes.byref(chunk), ctypes.c_size_t(size), ctypes.byref(properties), ctypes.c_ulonglong(0)
        )
        where, length = ctypes.c_uint64(address), ctypes.c_size_t(size)
        gpu.call("cuMemMap", where, length, ctypes.c_size_t(0), chunk, ctypes.c_ulonglong(0))
        gpu.call("cuMemSetAccess", where, length, (ctypes.c_int * 3)(1, device, 3), ctypes.c_size_t(1))
        handles[address] = chunk.value

    def unmap(device, size, address, _):
        gpu.call("cuMemUnmap", ctypes.c_uint64(address), ctypes.c_size_t(size))
        gpu.call("cuMemRelease", ctypes.c_uint64(handles.pop(address)))

    monkeypatch.setattr(cumem, "python_create_and_map", create)
    monkeypatch.setattr(cumem, "python_unmap_and_release", unmap)
    monkeypatch.setattr(cumem.torch.accelerator, "synchronize", lambda device=None: None)
    made = cumem.CuMemAllocator()

    def allocate(size, tag):
        """What ``my_malloc`` does."""
        address = ctypes.c_uint64()
        zero = ctypes.c_uint64(0)
        gpu.call("cuMemAddressReserve", ctypes.byref(address), ctypes.c_size_t(size), zero, zero, zero)
        made.current_tag = tag
        made.python_malloc_callback((0, size, address.value, 0))
        create(0, size, address.value, 0)
        return address.value

    made.allocate = allocate
    made.shareable = 1  # by descriptors; 8: by fabric handles
    yield made
    for address, data in made.pointer_to_data.items():
        if not data.is_asleep:
            unmap(0, data.handle[1], address, 0)


class Control:
    """The control page of the daemons' double."""

    def __init__(self, directory):
        self.path = os.path.join(directory, "double")
        with open(self.path, "w+b") as file:
            file.truncate(mmap.PAGESIZE)
            self._page = mmap.mmap(file.fileno(), mmap.PAGESIZE)

    def get(self, word):
        return struct.unpack_from("=Q", self._page, 8 * word)[0]

    def set(self, word, value):
        struct.pack_into("=Q", self._page, 8 * word, value)

    def hold(self, call):
        """Have a call take until ``release``."""
        self._page[FAULT_CALL_AT : FAULT_CALL_AT + len(call) + 1] = call.encode() + b"\0"
        self.set(FAULT_CODE, HOLD)

    def release(self):
        self.set(FAULT_CODE, 0)

    def forget(self):
        """What a process that was killed had is not there any more."""
        for word in (GATE, AT_GATE, *range(CONTEXTS, MODULES + 1)):
            self.set(word, 0)

    def complaints(self):
        text = bytes(self._page[VIOLATION_AT:]).split(b"\0")[0]
        return self.get(VIOLATIONS), text.decode()


def until(so, what):
    deadline = time.monotonic() + PATIENCE_S
    while not so():
        assert time.monotonic() < deadline, what
        time.sleep(0.002)


class Daemons:
    """mooncake-lookupd and a GPU's worker."""

    def __init__(self, directory, library, control, autostarted=False):  # noqa: F811
        self.directory = directory
        self._flags = ["--autostarted"] if autostarted else []
        self._env = {
            **os.environ,
            "LD_LIBRARY_PATH": os.path.dirname(library),
            "CUDA_DOUBLE_CONTROL": control.path,
        }
        self._all = []
        self._start("mooncake-lookupd", "--store-bytes", "64MiB")
        self.start_worker()

    def start_worker(self):
        self.worker = self._start("mooncake-worker", "--device", "cuda-0", *self._flags)

    def _start(self, program, *flags):
        path = ROOT / "bin" / program
        if not path.exists():
            pytest.skip(f"{path} is not built")
        with open(os.path.join(self.directory, program + ".log"), "ab") as log:
            command = [path, "--runtime-dir", self.directory, *flags]
            self._all.append(subprocess.Popen(command, env=self._env, stdout=log, stderr=log))
        return self._all[-1]

    def close(self):
        for process in self._all:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.terminate()
        for process in self._all:
            process.wait(PATIENCE_S)


class Rank:
    """A rank's worker side whose KV cache is the allocator's."""

    def __init__(self, gpu, allocator, directory, patience_s=60.0):  # noqa: F811
        self.address = allocator.allocate(BLOCKS * PAGE, "kv_cache")
        self.weights = allocator.allocate(PAGE, "weights")
        self.generation = 0
        self.seen = {}
        self.epochs = []
        self._jobs = 0
        settings = config.parse({"runtime_dir": directory, "autostart": False, "fence_kill_after_s": patience_s})
        tensors = {"a": Tensor(self.address, BLOCKS, PAGE)}

        def describe_now():
            memory = describe(tensors, kv_config(BLOCKS, PAGE), [], 1, driver=gpu.driver)
            vars(memory)["device_uuid"] = bytes([0xD0] * 15 + [0])
            return memory

        def connect(memory, epoch):
            self.epochs.append(epoch)
            registrant = Registrant(
                settings,
                make_geometry(TOKENS, page=PAGE),
                Ranks(1, 1, 1, 1),
                memory,
                num_blocks=BLOCKS,
                engine_id="engine",
                epoch=epoch,
                device="cuda-0",
            )
            return registrant.connect

        self.presence = Presence(describe_now, connect, waits_s=5.0, patience_s=patience_s)
        self.role = self.presence.role = WorkerRole(self.presence.take, rank=0, by_block=True)
        memory = describe_now()
        self.watch = gpusleep.Watch(allocator, "cumem", memory, self.presence)
        self.presence.start(memory, 1)

    def await_ready(self):
        def ready():
            self.role.poll()
            return self.role.ready

        until(ready, "the worker has the registration")

    def write(self, block, content):
        ctypes.memmove((self.address & ~TAG) + block * PAGE, content, PAGE)

    def read(self, block):
        return ctypes.string_at((self.address & ~TAG) + block * PAGE, PAGE)

    def fill(self, seed):
        content = {block: hashlib.shake_128(f"{seed}/{block}".encode()).digest(PAGE) for block in IDS}
        for block, data in content.items():
            self.write(block, data)
        return content

    @staticmethod
    def request(name):
        hashes = [hashlib.sha256(f"{name}/{i}".encode()).digest() for i in IDS]
        return SimpleNamespace(request_id=name, cache_salt=None, block_hashes=hashes)

    def begin_store(self, name):
        self._jobs += 1
        tokens = len(IDS) * TOKENS
        batch = StoreBatch(self._jobs, 1)
        sizes = (tokens, tokens, tokens, tokens)
        batch.add(name, sizes, NO_LIMIT, ("", 0, 0), 0, self.request(name).block_hashes, [(0, block_bytes(IDS))], [])
        return batch.command(1, self.generation)

    def store(self, name):
        """Store all blocks; whether that was done whole."""
        command = self.begin_store(name)
        self.role.start_stores(StepCommands(stores=[command]))
        found = []

        def ended():
            self.role.poll()
            report = self.role.take_report()
            if report is not None and command.job in report.stores:
                found.append(command.job not in report.incomplete)
            return bool(found)

        until(ended, "the store has ended")
        return found[0]

    def load_command(self, name):
        self._jobs += 1
        table = block_bytes(IDS)
        frame = load_frame(self._jobs, 1, self.request(name), len(IDS) * TOKENS, 0, [table], [], TOKENS)
        return JobCommand(self._jobs, f"{name}-{self._jobs}", frame, table)

    def begin_load(self, name):
        command = self.load_command(name)
        self.role.start_loads(StepCommands(loads=[command]))
        return command

    def end_load(self, command):
        """The blocks that a load has not filled."""
        received = []

        def ended():
            received.extend(self.role.poll().received)
            return bool(received)

        until(ended, "the load has ended")
        assert received == [command.request]
        return self.role.take_bad_blocks()

    def load(self, name):
        return self.end_load(self.begin_load(name))

    def close(self):
        self.watch.close()
        self.presence.close()
        self.role.close()


@pytest.fixture
def rig(gpu, library, allocator, runtime_dir, monkeypatch):  # noqa: F811
    """Makes a rank and its daemons."""
    control = Control(runtime_dir)
    made = []
    receive = Session.answer

    def noted(session, timeout, stop):
        answer = receive(session, timeout, stop)
        if isinstance(answer, msg.Registered):
            made[1].generation = answer.generation or 0
        return answer

    monkeypatch.setattr(Session, "answer", noted)

    def make(autostarted=False, patience_s=60.0):
        made.append(Daemons(runtime_dir, library, control, autostarted))
        rank = Rank.__new__(Rank)
        made.append(rank)
        rank.__init__(gpu, allocator, runtime_dir, patience_s)
        rank.await_ready()
        return rank, made[0], control

    yield make
    control.set(GATE, 0)
    control.release()
    if made:
        if len(made) > 1:
            made[1].close()
        made[0].close()
        assert control.complaints() == (0, "")


def chunks_here(allocator):  # noqa: F811
    return sum(not data.is_asleep for data in allocator.pointer_to_data.values())


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
