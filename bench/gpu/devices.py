"""Where the stand-in engine has its memory: a GPU, by PyTorch, or the driver's double.

The double shows that the script works, and that bytes are right; its times mean
nothing.
"""

import ctypes
import subprocess
from pathlib import Path

import torch
from mooncake_sidecar import gpuevents, gpumem

TAG = 1 << 60


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

    def ring(self):
        return None

    def noise(self, cache) -> None:
        cache.random_(0, 256)
