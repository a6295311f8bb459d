"""A rank whose KV cache is that of vLLM's real allocator, real daemons, the double of the driver."""

import ctypes
import hashlib
import mmap
import os
import signal
import struct
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import make_geometry
from mooncake_sidecar import config, gpusleep
from mooncake_sidecar import messages as msg
from mooncake_sidecar.batch import NO_LIMIT, StoreBatch
from mooncake_sidecar.jobs import JobCommand, StepCommands, block_bytes, load_frame
from mooncake_sidecar.namespace import Ranks
from mooncake_sidecar.presence import Presence
from mooncake_sidecar.registration import Registrant, describe
from mooncake_sidecar.session import Session
from mooncake_sidecar.worker import WorkerRole
from test_gpu import (  # noqa: F401 - fixtures among them
    Location,
    Properties,
    Tensor,
    gpu,
    kv_config,
    library,
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
