"""KV memory of a CPU engine in a memfd, so that the daemon can map it.

vLLM's CPU worker allocates the whole KV cache with one ``torch.zeros`` call, and
lets the connector put a context around it. Inside the context that one call is
answered with a tensor over a sealed memfd; every other call goes through.
"""

import ctypes
import logging
import mmap
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from mooncake_sidecar.board import sealed_memfd
from mooncake_sidecar.resident import HUGE_BYTES, make_resident

logger = logging.getLogger("vllm.mooncake_sidecar.hostmem")

# Of Linux, and not among mmap's constants, or only in later Pythons.
_MAP_FIXED = 0x10
_MAP_NORESERVE = 0x4000


@dataclass
class HostRegion:
    """One memfd and where this process maps it.

    The mapping lives as long as the tensors that point into it.
    """

    fd: int
    address: int
    size: int


class MemfdAllocation(AbstractContextManager["MemfdAllocation"]):
    """Answers ``torch.zeros(size, dtype=int8)`` on the CPU from a memfd.

    Only one dimension, exactly ``size`` elements, int8, CPU, no other options:
    the narrow match keeps every other allocation untouched. When nothing
    matched (a later vLLM allocates differently), ``regions`` stays empty and the
    daemon reaches the memory through the kernel instead.
    """

    def __init__(self, sizes: set[int]) -> None:
        self._sizes = sizes
        self._original: Callable[..., Any] | None = None
        self.regions: list[HostRegion] = []

    def __enter__(self) -> "MemfdAllocation":
        import torch

        original = torch.zeros
        self._original = original

        def zeros(*args: Any, **kwargs: Any) -> Any:
            if (size := self._match(torch, args, kwargs)) is None:
                return original(*args, **kwargs)
            try:
                return self._allocate(torch, size)
            except OSError as error:
                logger.warning(
                    "no shared memory of %d bytes for the KV cache (%s): allocating it privately", size, error
                )
                return original(*args, **kwargs)

        torch.zeros = zeros
        return self

    def __exit__(self, *exc: object) -> None:
        import torch

        torch.zeros = self._original

    def close(self) -> None:
        """Close the descriptors. The memory lives as long as a tensor, or a daemon, maps it."""
        for region in self.regions:
            os.close(region.fd)
        self.regions.clear()

    def _match(self, torch: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
        if len(args) != 1 or not set(kwargs) <= {"dtype", "device"}:
            return None
        size = args[0]
        if isinstance(size, (tuple, list)) and len(size) == 1:
            size = size[0]
        if not isinstance(size, int) or size not in self._sizes:
            return None
        if kwargs.get("dtype") is not torch.int8 or torch.device(kwargs.get("device") or "cpu").type != "cpu":
            return None
        return size

    def _allocate(self, torch: Any, size: int) -> Any:
        fd = sealed_memfd("mooncake-sidecar-kv", size)
        try:
            mapping, offset = _map_aligned(fd, size)
            # The tensor holds the mapping; a memfd starts as zeros.
            tensor = torch.frombuffer(mapping, dtype=torch.int8, count=size, offset=offset)
            make_resident(tensor.data_ptr(), size)
        except (OSError, ValueError) as error:
            os.close(fd)
            raise OSError(str(error)) from error
        self.regions.append(HostRegion(fd, tensor.data_ptr(), size))
        return tensor


def _map_aligned(fd: int, size: int) -> tuple[mmap.mmap, int]:
    """Map a file where its huge pages, if it has any, are huge ones here too.

    Returns:
        What the mapping is a part of, and where it begins in that.

    Raises:
        OSError: it can't be mapped.
    """
    if size < HUGE_BYTES:
        return mmap.mmap(fd, size), 0
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(3 * [ctypes.c_int]), ctypes.c_long)
    # Address space for it and what has to be skipped, given back as one.
    room = mmap.mmap(-1, size + HUGE_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE)
    begin = ctypes.addressof(ctypes.c_char.from_buffer(room))
    offset = -begin % HUGE_BYTES
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    if libc.mmap(begin + offset, size, protection, mmap.MAP_SHARED | _MAP_FIXED, fd, 0) != begin + offset:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return room, offset
