"""Where the stand-in engine has its memory: a GPU, by PyTorch, or the driver's double.

The double shows that the script works, and that bytes are right; its times mean
nothing.
"""

import ctypes
import subprocess
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

    def slow_fill(self, cache, value: int) -> None:
        """Fill after some milliseconds, without waiting for it."""
        torch.cuda._sleep(200_000_000)
        cache.fill_(value)

    def free_bytes(self) -> int:
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info()[0]


class Double:
    """The double of the driver, compiled to a directory."""

    real = False

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
        self.environment = {"LD_LIBRARY_PATH": str(directory)}

    def allocate(self, size: int):
        address = ctypes.c_uint64()
        assert self.lib.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size)) == 0
        memory = (ctypes.c_uint8 * size).from_address(address.value & ~TAG)
        return torch.frombuffer(memory, dtype=torch.uint8), address.value

    def chunk(self, size: int):
        made = Chunk(self.lib, 0, size)
        memory = (ctypes.c_uint8 * size).from_address(made.address & ~TAG)
        return made, torch.frombuffer(memory, dtype=torch.uint8)

    def ring(self):
        return None

    def noise(self, cache) -> None:
        cache.random_(0, 256)
