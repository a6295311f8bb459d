"""KV memory of a GPU as another process can map it, by the CUDA driver.

PyTorch hands out pieces of larger allocations, so what travels is the allocation
and where in it the piece lies: by an IPC handle where the memory came from
cudaMalloc, by one descriptor or fabric handle for each physical chunk where it was
mapped (expandable segments, memory pools).
"""

import contextlib
import ctypes
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from mooncake_sidecar import messages as msg
from mooncake_sidecar.layout import UnsupportedLayout

LIBRARY = "libcuda.so.1"
HANDLE_BYTES = 64
MAX_DESCRIPTORS = 252
"""What a registration has room for: a message takes 253, and the job board's is one."""
_POSIX_DESCRIPTOR = 1
_FABRIC = 8


class CudaError(OSError):
    """The driver refused a call."""


class Driver:
    """The few calls of the CUDA driver that are needed. The engine has loaded it and made a context."""

    def __init__(self, path: str = LIBRARY) -> None:
        """Raises:
        OSError: there is no driver.
        """
        self._lib = ctypes.CDLL(path)

    def _call(self, name: str, *arguments: Any) -> None:
        try:
            function = getattr(self._lib, name)
        except AttributeError:
            raise CudaError(f"the CUDA driver has no {name}") from None
        if code := function(*arguments):
            text = ctypes.c_char_p()
            self._lib.cuGetErrorName(code, ctypes.byref(text))
            raise CudaError(f"{name}: {(text.value or b'error').decode()} ({code})")

    def range(self, address: int) -> tuple[int, int]:
        """Where the allocation, or the mapped chunk, around an address begins, and its length."""
        base, size = ctypes.c_uint64(), ctypes.c_size_t()
        self._call("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), ctypes.c_uint64(address))
        return base.value, size.value

    def handle(self, base: int) -> bytes:
        """An allocation's IPC handle."""
        handle = ctypes.create_string_buffer(HANDLE_BYTES)
        self._call("cuIpcGetMemHandle", handle, ctypes.c_uint64(base))
        return handle.raw

    def descriptor(self, base: int) -> int:
        """A descriptor of a mapped chunk; the caller's."""
        fd = ctypes.c_int(-1)
        self._share(base, ctypes.byref(fd), _POSIX_DESCRIPTOR)
        return fd.value

    def fabric(self, base: int) -> bytes:
        """A mapped chunk's fabric handle, which takes a machine whose GPUs are set up for that (IMEX channels)."""
        handle = ctypes.create_string_buffer(HANDLE_BYTES)
        self._share(base, handle, _FABRIC)
        return handle.raw

    def _share(self, base: int, into: Any, kind: int) -> None:
        chunk = ctypes.c_uint64()
        self._call("cuMemRetainAllocationHandle", ctypes.byref(chunk), ctypes.c_void_p(base))
        try:
            self._call("cuMemExportToShareableHandle", into, chunk, ctypes.c_int(kind), ctypes.c_ulonglong(0))
        finally:
            self._call("cuMemRelease", chunk)


@dataclass(frozen=True)
class Exported:
    """One region and its descriptors, whose first is number ``region.fd`` of the message."""

    region: msg.KVRegion
    descriptors: list[int]


def export(driver: Driver, address: int, size: int, first_descriptor: int) -> Exported:
    """Describe ``size`` bytes at ``address`` for another process.

    Raises:
        UnsupportedLayout: the memory can't be shared; the text says why.
    """
    try:
        base, length = driver.range(address)
        try:
            handle = driver.handle(base)
        except CudaError as no_handle:
            return _export_chunks(driver, address, size, first_descriptor, no_handle)
    except CudaError as error:
        raise UnsupportedLayout(f"the KV cache's GPU memory can't be shared: {error}") from error
    if address + size > base + length:
        raise UnsupportedLayout(f"the KV cache of {size} bytes spans several CUDA allocations")
    return Exported(msg.KVRegion("cuda_ipc", 0, address - base, size, handle=handle), [])


def _export_chunks(driver: Driver, address: int, size: int, first: int, no_handle: CudaError) -> Exported:
    descriptors: list[int] = []
    lengths: list[int] = []
    fabric = b""
    begin = at = driver.range(address)[0]
    try:
        while at < address + size:
            base, length = driver.range(at)
            if base != at:
                raise CudaError(f"the chunk at {at:#x} begins at {base:#x}")
            if max(first + len(descriptors), len(lengths)) == MAX_DESCRIPTORS:
                raise UnsupportedLayout(
                    f"the KV cache lies in more than {MAX_DESCRIPTORS} chunks; "
                    "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False"
                )
            if not fabric:
                try:
                    descriptors.append(driver.descriptor(base))
                except CudaError as no_descriptor:
                    if descriptors:  # what an allocator makes is of one kind
                        raise
                    try:
                        fabric = driver.fabric(base)
                    except CudaError as no_fabric:
                        raise CudaError(f"{no_descriptor}; by fabric handle: {no_fabric}") from no_fabric
            else:
                fabric += driver.fabric(base)
            lengths.append(length)
            at += length
    except CudaError as error:
        close_all(descriptors)
        raise UnsupportedLayout(
            f"the KV cache's GPU memory can be shared neither by handle ({no_handle}) nor by chunks ({error}); "
            "do without sleep mode and expandable segments"
        ) from error
    except BaseException:
        close_all(descriptors)
        raise
    if fabric:
        return Exported(msg.KVRegion("cuda_fabric", 0, address - begin, size, handle=fabric, chunks=lengths), [])
    return Exported(msg.KVRegion("cuda_vmm", first, address - begin, size, chunks=lengths), descriptors)


def close_all(descriptors: list[int]) -> None:
    """Close descriptors; the memory lives as long as somebody maps it."""
    for fd in descriptors:
        os.close(fd)
    descriptors.clear()


def device_uuid(torch: Any, index: int) -> bytes:
    """The GPU's name for all processes, whatever numbers they see it by."""
    text = str(torch.cuda.get_device_properties(index).uuid)
    return bytes.fromhex(text.removeprefix("GPU-").removeprefix("MIG-").replace("-", ""))


def plain_allocation(allocator: Any) -> AbstractContextManager[None] | None:
    """A context in which PyTorch allocates by cudaMalloc; None where it does so anyway.

    Memory of expandable segments is hundreds of chunks, and often can't be shared
    at all.

    Args:
        allocator: ``vllm.device_allocator.alloc_conf``.
    """
    before = allocator.current_alloc_conf()
    if not allocator.conf_flag_enabled(before, allocator.EXPANDABLE_SEGMENTS):
        return None

    @contextlib.contextmanager
    def plain() -> Iterator[None]:
        allocator.set_alloc_conf(allocator.with_conf_flag(before, allocator.EXPANDABLE_SEGMENTS, False))
        try:
            yield
        finally:
            allocator.set_alloc_conf(before)

    return plain()
