"""KV memory of a GPU: how it is shared, and what jobs wait for.

Over the double of the CUDA driver, and a stand-in for torch.
"""

import ctypes
import gc
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import make_geometry
from mooncake_sidecar import config, gpuevents, gpumem, gpunames, paths
from mooncake_sidecar import messages as msg
from mooncake_sidecar.jobs import JobCommand, StepCommands
from mooncake_sidecar.layout import UnsupportedLayout
from mooncake_sidecar.maintainer import Maintainer
from mooncake_sidecar.namespace import Ranks
from mooncake_sidecar.registration import Memory, Registrant, describe
from mooncake_sidecar.worker import WorkerRole

ROOT = Path(__file__).parents[2]
DOUBLE = ROOT / "internal/cuda/cudatest/testdata/double.c"
MIB = 1 << 20
PATIENCE_S = 60


class Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class Properties(ctypes.Structure):
    """``CUmemAllocationProp``."""

    _fields_ = [
        ("type", ctypes.c_int),
        ("handles", ctypes.c_int),
        ("location", Location),
        ("windows", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    ]


class Gpu:
    """An engine's use of the driver."""

    def __init__(self, path):
        self.lib = ctypes.CDLL(path)
        self.driver = gpumem.Driver(path)
        context = ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.call("cuCtxSetCurrent", context)

    def call(self, name, *arguments):
        assert getattr(self.lib, name)(*arguments) == 0, name

    def alloc(self, size):
        address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return address.value

    def map_chunks(self, lengths, shareable=1):
        """Chunks that can be shared by descriptors (1), by fabric handles (8), or not (0)."""
        address = ctypes.c_uint64()
        self.call(
            "cuMemAddressReserve",
            ctypes.byref(address),
            ctypes.c_size_t(sum(lengths)),
            ctypes.c_size_t(0),
            ctypes.c_uint64(0),
            ctypes.c_ulonglong(0),
        )
        at = address.value
        properties = Properties(1, int(shareable), Location(1, 0))
        for length in lengths:
            chunk = ctypes.c_uint64()
            self.call(
                "cuMemCreate",
                ctypes.byref(chunk),
                ctypes.c_size_t(length),
                ctypes.byref(properties),
                ctypes.c_ulonglong(0),
            )
            self.call(
                "cuMemMap",
                ctypes.c_uint64(at),
                ctypes.c_size_t(length),
                ctypes.c_size_t(0),
                chunk,
                ctypes.c_ulonglong(0),
            )
            at += length
        return address.value


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    path = tmp_path_factory.mktemp("double") / "libcuda.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-Wl,-z,now", "-o", path, DOUBLE, "-lpthread"], check=True)
    return str(path)


@pytest.fixture(scope="session")
def gpu(library):
    return Gpu(library)


def open_descriptors():
    gc.collect()  # what other tests have left open is not closed in the midst of one
    return len(os.listdir("/proc/self/fd"))


def test_a_piece_of_an_allocation(gpu):
    base = gpu.alloc(4 * MIB)
    exported = gpumem.export(gpu.driver, base + MIB, 2 * MIB, 3)
    region = exported.region
    assert (region.kind, region.address, region.bytes, len(region.handle)) == ("cuda_ipc", MIB, 2 * MIB, 64)
    assert exported.descriptors == [] and region.chunks == []
    again = gpumem.export(gpu.driver, base + 3 * MIB, MIB, 0).region
    assert again.handle == region.handle, "one allocation has one handle"
    with pytest.raises(UnsupportedLayout, match="spans several"):
        gpumem.export(gpu.driver, base + 3 * MIB, MIB + 1, 0)


def test_mapped_chunks(gpu):
    lengths = [2 * MIB, 4 * MIB, 2 * MIB]
    base = gpu.map_chunks(lengths)
    before = open_descriptors()
    exported = gpumem.export(gpu.driver, base + 3 * MIB, 4 * MIB, 5)
    region = exported.region
    assert (region.kind, region.fd, region.address, region.bytes) == ("cuda_vmm", 5, MIB, 4 * MIB)
    assert region.chunks == lengths[1:], "those that it lies in, and no more"
    assert [os.fstat(fd).st_size for fd in exported.descriptors] == lengths[1:]
    gpumem.close_all(exported.descriptors)
    assert open_descriptors() == before


def test_chunks_with_fabric_handles(gpu):
    """What vLLM's allocator makes on a machine with IMEX channels has these alone."""
    lengths = [2 * MIB, 4 * MIB]
    base = gpu.map_chunks(lengths, shareable=8)
    before = open_descriptors()
    exported = gpumem.export(gpu.driver, base + MIB, 4 * MIB, 5)
    region = exported.region
    assert (region.kind, region.fd, region.address, region.bytes) == ("cuda_fabric", 0, MIB, 4 * MIB)
    assert region.chunks == lengths and len(region.handle) == 128 and region.handle[:64] != region.handle[64:]
    assert exported.descriptors == [] and open_descriptors() == before


def test_chunks_that_nobody_may_have(gpu):
    base = gpu.map_chunks([2 * MIB], shareable=0)
    before = open_descriptors()
    with pytest.raises(UnsupportedLayout, match=r"neither by handle \(cuIpcGetMemHandle.* nor by chunks \(cuMemExp.*; by fabric handle: cuMemExp"):
        gpumem.export(gpu.driver, base, MIB, 0)
    with pytest.raises(UnsupportedLayout, match="can't be shared"):
        gpumem.export(gpu.driver, 4096, MIB, 0)
    assert open_descriptors() == before


def test_too_many_chunks(gpu):
    """All that goes with a registration is one message, whatever regions it is of."""
    room = gpumem.MAX_DESCRIPTORS
    base = gpu.map_chunks([4096] * (room + 1))
    before = open_descriptors()
    with pytest.raises(UnsupportedLayout, match="expandable_segments:False"):
        gpumem.export(gpu.driver, base, 4096 * (room + 1), 0)
    exported = gpumem.export(gpu.driver, base, 4096 * room, 0)
    gpumem.close_all(exported.descriptors)
    assert open_descriptors() == before
    half = room // 2 + 2
    first, second = gpu.map_chunks([4096] * half), gpu.map_chunks([4096] * half)
    before = open_descriptors()
    blocks = (half - 1) * 16
    caches = {"a": Tensor(first, blocks, 256), "b": Tensor(second, blocks, 256, before=4096)}
    with pytest.raises(UnsupportedLayout, match="expandable_segments:False"):
        describe(caches, kv_config(blocks, 256, a=0, b=4096), [], 1, driver=gpu.driver)
    assert open_descriptors() == before


def test_no_driver():
    with pytest.raises(OSError, match="libnone"):
        gpumem.Driver("libnone.so.1")


NVML = """
#include <string.h>
static int begun;
int nvmlInit_v2(void) { begun++; return 0; }
int nvmlShutdown(void) { begun--; return 0; }
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
  if (!begun || strcmp(uuid, "GPU-d0d0d0d0-d0d0-d0d0-d0d0-d0d0d0d0d005") != 0) return 6;
  *device = &begun;
  return 0;
}
int nvmlDeviceGetIndex(void *device, unsigned *index) {
  *index = 5;
  return device == &begun ? 0 : 2;
}
"""


@pytest.fixture(scope="session")
def nvml(tmp_path_factory):
    """NVML of a machine whose GPU 5 has the UUID d0...05, and that knows no other."""
    path = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    subprocess.run(["cc", "-x", "c", "-", "-shared", "-fPIC", "-o", path], input=NVML.encode(), check=True)
    return str(path)


def gpu_uuid(last):
    return bytes([0xD0] * 15 + [last])


@pytest.mark.parametrize(
    ("visible", "index", "name"),
    [
        (None, 2, "cuda-2"),
        ("", 1, "cuda-1"),
        ("4,6", 1, "cuda-6"),
        ("GPU-abc, 3", 1, "cuda-3"),
        ("GPU-d0d0, 3", 0, "cuda-5"),
        ("7", 1, "cuda-5"),
    ],
)
def test_device_names(nvml, visible, index, name):
    assert gpunames.device_name(index, visible, gpu_uuid(5), nvml) == name


def test_a_gpu_that_nobody_can_number_is_refused(nvml):
    with pytest.raises(UnsupportedLayout, match=r"MIG-1.*NVML error 6.*nvidia-smi"):
        gpunames.device_name(0, "MIG-1", gpu_uuid(6), nvml)
    with pytest.raises(UnsupportedLayout, match=r"libnone.*give the GPU's number"):
        gpunames.device_name(0, "GPU-1", gpu_uuid(5), "libnone.so.1")


def test_the_gpus_name():
    text = "4a5b0102-0304-0506-0708-090a0b0c0d0e"
    torch = SimpleNamespace(cuda=SimpleNamespace(get_device_properties=lambda index: SimpleNamespace(uuid=text)))
    assert gpumem.device_uuid(torch, 0) == bytes.fromhex(text.replace("-", ""))


class Allocator:
    """``vllm.device_allocator.alloc_conf`` with settings of its own."""

    EXPANDABLE_SEGMENTS = "expandable_segments"

    def __init__(self, conf):
        self.conf = conf

    def current_alloc_conf(self):
        return self.conf

    def set_alloc_conf(self, conf):
        self.conf = conf

    def conf_flag_enabled(self, conf, key):
        return f"{key}:True" in conf

    def with_conf_flag(self, conf, key, enabled):
        return conf.replace(f"{key}:{not enabled}", f"{key}:{enabled}")


def test_expandable_segments_are_off_for_the_kv_cache_alone():
    allocator = Allocator("max_split_size_mb:512,expandable_segments:True")
    with gpumem.plain_allocation(allocator):
        assert allocator.conf == "max_split_size_mb:512,expandable_segments:False"
    with pytest.raises(KeyError), gpumem.plain_allocation(allocator):
        raise KeyError
    assert allocator.conf == "max_split_size_mb:512,expandable_segments:True"
    assert gpumem.plain_allocation(Allocator("max_split_size_mb:512")) is None


class Event:
    """``torch.cuda.Event``: done when the test says so."""

    made = 0

    def __init__(self, enable_timing=True, interprocess=False):
        assert not enable_timing
        type(self).made += 1
        self.number, self.interprocess = type(self).made, interprocess
        self.recorded, self.done = 0, False

    def ipc_handle(self):
        assert self.interprocess
        return self.number.to_bytes(64, "big")

    def record(self):
        self.recorded += 1

    def query(self):
        return self.done


def torch_with(event):
    return SimpleNamespace(cuda=SimpleNamespace(Event=event))


def test_the_ring_goes_round():
    ring = gpuevents.make(torch_with(Event))
    assert isinstance(ring, gpuevents.EventRing)
    assert len(set(ring.handles)) == gpuevents.RING and {len(handle) for handle in ring.handles} == {64}
    assert [ring.record() for _ in range(gpuevents.RING + 2)] == [*range(gpuevents.RING), 0, 1]


def test_without_shared_events_there_are_marks():
    class Private(Event):
        def ipc_handle(self):
            raise RuntimeError("CUDA error: invalid argument")

    assert isinstance(gpuevents.make(torch_with(Private)), gpuevents.Marks)


class FakeLink:
    """Takes everything; knows what came, in order."""

    healthy = store_ready = sees_events = True
    takes_ahead = done = leaving = False

    def __init__(self):
        self.sent = []

    def notify(self, message):
        self.sent.append((type(message).__name__, getattr(message, "event", None)))

    def submit(self, job, kind, request, frame, now):
        self.sent.append((kind, job))
        return True

    def descriptor(self):
        return -1

    def flush(self, now):
        pass

    def pump(self, now):
        return []

    def close(self):
        pass


def role_with(events, sees_events=True):
    link = FakeLink()
    link.sees_events = sees_events
    links = [link]
    return WorkerRole(lambda: links.pop() if links else None, rank=0, by_block=True, events=events), link


def command(job):
    return JobCommand(job, f"r{job}", b"frame")


def test_jobs_name_what_they_wait_for():
    role, link = role_with(gpuevents.EventRing(torch_with(Event), 3))
    role.start_loads(StepCommands(loads=[command(1), command(2)], stores=[], finished=["r9"]))
    assert link.sent == [("After", 0), ("Finished", None), ("load", 1), ("load", 2)]
    link.sent.clear()
    step = StepCommands(stores=[command(3)])
    role.start_loads(step)
    role.start_stores(step)
    role.poll()
    assert link.sent == [("After", 1), ("store", 3)], "one event a step, and none without jobs"
    link.sent.clear()
    link.healthy = False
    role.start_stores(StepCommands(stores=[command(4)]))
    assert ("After", 2) not in link.sent, "a daemon that does not read is told nothing"


def test_jobs_are_held_back_until_the_gpu_is_through():
    made = []

    class Own(Event):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            made.append(self)

    role, link = role_with(gpuevents.Marks(torch_with(Own)))
    role.start_loads(StepCommands(loads=[command(1)]))
    role.start_stores(StepCommands(stores=[command(2)]))
    role.start_loads(StepCommands(finished=["r2"]))
    role.poll()
    assert link.sent == []
    made[1].done = True
    role.poll()
    assert link.sent == [], "nothing passes what was before it"
    made[0].done = True
    role.poll()
    assert link.sent == [("load", 1), ("store", 2), ("Finished", None)]
    assert len(made) == 2


def test_a_daemon_without_the_events_is_told_when_the_gpu_is_through():
    made = []

    class Own(Event):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            made.append(self)

    role, link = role_with(gpuevents.EventRing(torch_with(Own), 3), sees_events=False)
    del made[:]
    role.start_loads(StepCommands(loads=[command(1)]))
    assert link.sent == [] and len(made) == 1 and not made[0].interprocess
    # Another daemon comes, which has them: what was before goes first, and then it is asked to wait.
    new = FakeLink()
    role.adopt(new)
    role.start_stores(StepCommands(stores=[command(2)]))
    assert new.sent == [] and len(made) == 2
    made[0].done = made[1].done = True
    role.poll()
    assert new.sent == [("load", 1), ("store", 2)] and link.sent == []
    role.start_loads(StepCommands(loads=[command(3)]))
    assert new.sent[2:] == [("After", 0), ("load", 3)] and len(made) == 2


class Tensor:
    """A KV cache on a GPU, some bytes behind its storage's beginning: as much of a tensor as a description reads."""

    def __init__(self, address, blocks, page, before=0):
        self.shape, self._page = (blocks, 1, page), page
        self._address, self._bytes = address + before, before + blocks * page
        self._storage = SimpleNamespace(
            device=SimpleNamespace(type="cuda"), data_ptr=lambda: address, nbytes=lambda: self._bytes
        )

    def stride(self, dimension=None):
        strides = (self._page, self._page, 1)
        return strides if dimension is None else strides[dimension]

    def element_size(self):
        return 1

    def data_ptr(self):
        return self._address

    def untyped_storage(self):
        return self._storage

    def __getitem__(self, block):
        return SimpleNamespace(shape=self.shape[1:], stride=lambda: self.stride()[1:])


def kv_config(blocks, page, **before):
    """Layers, each in a tensor of its own, and the bytes before them there."""
    tensors = [
        SimpleNamespace(layers=[layer], block_stride=page, size=offset + blocks * page, offset=offset, layer_stride=0)
        for layer, offset in (before or {"a": 0}).items()
    ]
    return SimpleNamespace(
        prefix_cacheable_groups=[SimpleNamespace(layer_names=[tensor.layers[0] for tensor in tensors])],
        num_blocks=blocks,
        kv_cache_tensors=tensors,
        kv_cache_layout="x",
    )


def test_a_gpu_without_a_driver_is_not_described(gpu):
    base = gpu.alloc(MIB)
    with pytest.raises(UnsupportedLayout, match="CPU and CUDA engines"):
        describe({"a": Tensor(base, 16, 256)}, kv_config(16, 256), [], 1)
    memory = describe({"a": Tensor(base + 512, 16, 256)}, kv_config(16, 256), [], 2, driver=gpu.driver)
    assert [(region.kind, region.address, region.bytes) for region in memory.regions] == [("cuda_ipc", 512, 16 * 256)]
    assert [segment.group for segment in memory.segments] == [0, 1]
    assert not memory.by_address


@contextmanager
def daemons(runtime_dir, library):
    """mooncake-lookupd and a GPU's worker over the double."""
    env = {**os.environ, "LD_LIBRARY_PATH": os.path.dirname(library)}
    started = []
    try:
        for program, *more in (
            ("mooncake-lookupd", "--store-bytes", "64MiB"),
            ("mooncake-worker", "--device", "cuda-0"),
        ):
            path = ROOT / "bin" / program
            if not path.exists():
                pytest.skip(f"{path} is not built")
            with open(os.path.join(runtime_dir, program + ".log"), "wb") as log:
                started.append(
                    subprocess.Popen([path, "--runtime-dir", runtime_dir, *more], env=env, stdout=log, stderr=log)
                )
        yield started
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait()


@pytest.mark.parametrize("shareable", [None, 1, 8])
def test_a_real_worker_takes_the_registration(gpu, library, runtime_dir, shareable):
    size = 64 * 256
    base = gpu.map_chunks([8192, 8192], shareable) if shareable else gpu.alloc(2 * size)
    memory = describe({"a": Tensor(base, 64, 256)}, kv_config(64, 256), [], 1, driver=gpu.driver)
    # An event that the worker can't open: of fabric memory's engine.
    memory = replace(memory, device_uuid=bytes([0xD0] * 15 + [0]), events=[bytes(64)] if shareable == 8 else [])
    registrant = Registrant(
        config.parse({"runtime_dir": runtime_dir, "autostart": False}),
        make_geometry(16, page=256),
        Ranks(1, 1, 1, 1),
        memory,
        num_blocks=64,
        engine_id="engine",
        epoch=1,
        device="cuda-0",
    )
    log = Path(runtime_dir, "mooncake-worker.log")
    with daemons(runtime_dir, library):
        deadline = time.monotonic() + PATIENCE_S
        while not os.path.exists(paths.worker_socket(runtime_dir, "cuda-0")):
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.01)
        maintainer = Maintainer(registrant.connect, "mooncake-worker")
        maintainer.start()
        try:
            # The first attempt may be too early: the socket is there before the worker reads it.
            deadline = time.monotonic() + PATIENCE_S
            while (link := maintainer.take()) is None:
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.01)
            assert link.sees_events == (shareable != 8)
            link.close()
        finally:
            maintainer.stop()
            memory.close()
    assert "the engine's GPU memory is mapped" in log.read_text()


def test_a_worker_without_a_driver_starts_and_refuses(gpu, library, runtime_dir):
    nothing = os.path.join(runtime_dir, "empty", "libcuda.so.1")
    with daemons(runtime_dir, nothing) as started:
        deadline = time.monotonic() + PATIENCE_S
        log = Path(runtime_dir, "mooncake-worker.log")
        while "mooncake-worker is ready" not in log.read_text():
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.01)
        assert started[1].poll() is None
    assert "no CUDA driver" in log.read_text()


def test_messages_of_cpu_engines_are_as_they_were():
    region = msg.KVRegion("memfd", 1, 0, 4096)
    assert msg.msgspec.to_builtins(region) == {"kind": "memfd", "fd": 1, "address": 0, "bytes": 4096}
    assert Memory([region], [], []).events == []


def test_the_checks_for_a_real_gpu_run_over_the_double():
    """Every layout through real daemons, by the command that is run where a GPU is."""
    for program in ("mooncake-lookupd", "mooncake-worker"):
        if not (ROOT / "bin" / program).exists():
            pytest.skip(f"bin/{program} is not built")
    run = subprocess.run(
        [sys.executable, ROOT / "bench/gpu/check.py", "--double"], capture_output=True, text=True, timeout=600
    )
    assert run.returncode == 0, run.stdout + run.stderr
    lines = run.stdout.splitlines()
    assert all(line.startswith("ok   ") for line in lines)
    assert run.stdout.count("ok   bytes, ") == run.stdout.count("ok   bandwidth, ") == 14
    for check in (
        "sleep and wake",
        "an event",
        "the engine writes first",
        "matrix multiplications beside",
        "kill -9 of an engine that computes",
        "kill -9 {",
        "the driver's rules",
    ):
        assert any(line.startswith("ok   " + check) for line in lines), check
    script = ROOT / "bench/gpu/remote.sh"
    helped = subprocess.run([script, "--help"], capture_output=True, text=True)
    assert helped.returncode == 0 and "[-p PYTHON] HOST" in helped.stdout and helped.stderr == ""
    assert subprocess.run([script], capture_output=True).returncode == 2
