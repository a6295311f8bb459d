"""Where the stand-in engine has its memory: a GPU, by PyTorch, or the driver's double.

The double shows that the script works, and that bytes are right; its times mean
nothing.
"""

import ctypes
import os
import struct
import subprocess
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import torch
from mooncake_sidecar import gpuevents, gpumem

TAG = 1 << 60
STEP = 2 << 20
"""Chunks are multiples of it."""


class _Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class _Properties(ctypes.Structure):
    """``CUmemAllocationProp``."""

    _fields_ = [
        ("type", ctypes.c_int),
        ("handles", ctypes.c_int),
        ("location", _Location),
        ("windows", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    ]


class Chunk:
    """GPU memory as an engine's that sleeps: one chunk, which goes, and comes as another at the same address."""

    def __init__(self, lib: ctypes.CDLL, device: int, size: int) -> None:
        self._lib, self._device = lib, device
        self.size = -(-size // STEP) * STEP
        self._handle = ctypes.c_uint64()
        self._at = ctypes.c_uint64()
        none = ctypes.c_uint64(0)
        self._call("cuMemAddressReserve", ctypes.byref(self._at), ctypes.c_size_t(self.size), none, none, none)
        self.give()

    @property
    def address(self) -> int:
        return self._at.value

    def _call(self, name: str, *arguments) -> None:
        if code := getattr(self._lib, name)(*arguments):
            raise OSError(f"{name}: {code}")

    def give(self) -> None:
        """The engine wakes up."""
        size, zero = ctypes.c_size_t(self.size), ctypes.c_uint64(0)
        properties = _Properties(1, 1, _Location(1, self._device))
        self._call("cuMemCreate", ctypes.byref(self._handle), size, ctypes.byref(properties), zero)
        self._call("cuMemMap", self._at, size, ctypes.c_size_t(0), self._handle, zero)
        self._call("cuMemSetAccess", self._at, size, (ctypes.c_int * 3)(1, self._device, 3), ctypes.c_size_t(1))

    def take(self) -> None:
        """It falls asleep."""
        self._call("cuMemUnmap", self._at, ctypes.c_size_t(self.size))
        self._call("cuMemRelease", self._handle)


class Gpu:
    """PyTorch's current CUDA device."""

    real = True
    unit = 1 << 30
    """Bytes that are much for it."""

    def __init__(self) -> None:
        torch.cuda.init()
        self.driver = gpumem.Driver()
        self.index = torch.cuda.current_device()
        self.uuid = gpumem.device_uuid(torch, self.index)
        self.name = torch.cuda.get_device_name(self.index)
        self.environment: dict[str, str] = {}

    def allocate(self, size: int):
        """A tensor of bytes, and its address for the driver."""
        cache = torch.empty(size, dtype=torch.uint8, device="cuda")
        return cache, cache.data_ptr()

    def chunk(self, size: int):
        """Memory that can be taken away, and a tensor of it."""
        made = Chunk(ctypes.CDLL(gpumem.LIBRARY), self.index, size)
        described = {"shape": (size,), "typestr": "|u1", "data": (made.address, False), "version": 2}
        return made, torch.as_tensor(SimpleNamespace(__cuda_array_interface__=described), device="cuda")

    def ring(self) -> gpuevents.EventRing:
        return gpuevents.EventRing(torch)

    def noise(self, cache) -> None:
        cache.random_(0, 256)
        torch.cuda.synchronize()

    def slow_fill(self, cache, value: int, seconds: float = 0.5) -> None:
        """Fill after that time or more, without waiting for it."""
        torch.cuda._sleep(int(seconds * 2e9))  # cycles
        cache.fill_(value)

    def synchronize(self) -> None:
        torch.cuda.synchronize()

    def pinned(self, size: int):
        """Host memory that is copied fast."""
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)

    def work(self, side: int) -> Callable[[], None]:
        """What an engine computes: enqueues a multiplication of two matrices."""
        a = torch.randn(side, side, dtype=torch.bfloat16, device="cuda")
        return lambda: torch.mm(a, a)

    def worker_died(self) -> None:
        """The driver sees to it."""

    def free_bytes(self) -> int:
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info()[0]


class DoubleRing:
    """Events as the double knows them: what is recorded, and what of it is done."""

    def __init__(self, device: "Double", count: int = 8) -> None:
        self._device, self._next = device, 0
        self._files = [os.memfd_create("bench-event") for _ in range(count)]
        for file in self._files:
            os.ftruncate(file, 4096)
        self.handles = [
            struct.pack("=8siiiiQ32x", b"cudadbl", 2, os.getpid(), file, 0, 4096) for file in self._files
        ]
        self._recorded = [0] * count

    def record(self) -> int:
        slot = self._next
        self._next = (slot + 1) % len(self._files)
        self._recorded[slot] += 1
        number, file = struct.pack("=Q", self._recorded[slot]), self._files[slot]
        os.pwrite(file, number, 0)
        self._device.then(lambda: os.pwrite(file, number, 8))
        return slot

    def __del__(self) -> None:
        for file in self._files:
            os.close(file)


class Double:
    """The double of the driver, compiled to a directory."""

    real = False
    unit = 32 << 20

    def __init__(self, directory: Path) -> None:
        self.library = directory / "libcuda.so.1"
        source = Path(__file__).parents[2] / "internal/cuda/cudatest/testdata/double.c"
        if not self.library.exists():
            subprocess.run(
                ["cc", "-shared", "-fPIC", "-O1", "-Wl,-z,now", "-o", self.library, source, "-lpthread"], check=True
            )
        self.lib = ctypes.CDLL(str(self.library))
        self.driver = gpumem.Driver(str(self.library))
        context = ctypes.c_void_p()
        self.lib.cuInit(0)
        self.lib.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
        self.lib.cuCtxSetCurrent(context)
        self.uuid, self.name = bytes([0xD0] * 15 + [0]), "double"
        self.control = directory / "control"
        self.control.touch()
        os.truncate(self.control, 4096)
        self.environment = {"LD_LIBRARY_PATH": str(directory), "CUDA_DOUBLE_CONTROL": str(self.control)}
        self._under_way: threading.Thread | None = None
        self._behind: list[Callable[[], object]] = []
        self._lock = threading.Lock()

    def allocate(self, size: int):
        address = ctypes.c_uint64()
        assert self.lib.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size)) == 0
        memory = (ctypes.c_uint8 * size).from_address(address.value & ~TAG)
        weakref.finalize(memory, self.lib.cuMemFree_v2, address).atexit = False  # the tensor holds it
        return torch.frombuffer(memory, dtype=torch.uint8), address.value

    def chunk(self, size: int):
        made = Chunk(self.lib, 0, size)
        memory = (ctypes.c_uint8 * size).from_address(made.address & ~TAG)
        return made, torch.frombuffer(memory, dtype=torch.uint8)

    def ring(self) -> DoubleRing:
        return DoubleRing(self)

    def noise(self, cache) -> None:
        cache.random_(0, 256)

    def slow_fill(self, cache, value: int, seconds: float = 0.5) -> None:
        def fill() -> None:
            time.sleep(seconds)
            cache.fill_(value)
            with self._lock:
                self._under_way = None
                for do in self._behind:
                    do()
                self._behind.clear()

        with self._lock:
            self._under_way = threading.Thread(target=fill, daemon=True)
        self._under_way.start()

    def then(self, do: Callable[[], object]) -> None:
        """Do it when what is under way is done."""
        with self._lock:
            if self._under_way is not None:
                self._behind.append(do)
                return
        do()

    def synchronize(self) -> None:
        if (thread := self._under_way) is not None:
            thread.join()

    def pinned(self, size: int):
        return torch.empty(size, dtype=torch.uint8)

    def work(self, side: int) -> Callable[[], None]:
        a = torch.randn(side // 64, side // 64)
        return lambda: torch.mm(a, a)

    def free_bytes(self) -> int:
        """Minus what processes of ours map of the double's memory."""
        there: dict[int, int] = {}
        for process in filter(str.isdecimal, os.listdir("/proc")):
            try:
                if os.getpgid(int(process)) != os.getpgid(0):
                    continue  # another run's
                with open(f"/proc/{process}/maps") as maps:
                    for line in maps:
                        where, _, _, _, inode, *name = line.split(None, 5)
                        if name and name[0].startswith(("/memfd:cuda-double ", "/memfd:cuda-double-chunk ")):
                            begin, end = (int(x, 16) for x in where.split("-"))
                            there[int(inode)] = max(there.get(int(inode), 0), end - begin)
            except OSError:
                continue  # it has ended, or is not ours
        return -sum(there.values())

    def worker_died(self) -> None:
        """What a process that was killed had is not there any more."""
        with open(self.control, "r+b") as page:
            page.seek(8 * 11)
            page.write(bytes(8 * 11))  # from its contexts to its modules

    def faults(self) -> tuple[int, str]:
        """How often the daemons misused the driver, and how first."""
        page = self.control.read_bytes()
        return struct.unpack_from("=Q", page, 80)[0], page[2560:].split(b"\0")[0].decode()
