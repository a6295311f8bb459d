"""Makes shared memory resident before it is used.

vLLM's own KV memory is touched when it is zeroed at start. A memfd begins as
zeros without a page behind them, and then every first load into a block, and
every first read of it by the engine, would wait for its pages: several times the
time of the copy.

Huge pages are asked for first, whatever the kernel's setting for shared memory but
``deny``: copies into 4 KiB pages wait for addresses, and to allocate and enter
these one by one takes several times as long.
"""

import ctypes
import errno
import mmap
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

# From Linux 5.14 and 6.1, and not among mmap's constants.
_MADV_POPULATE_WRITE = 23
_MADV_COLLAPSE = 25
HUGE_BYTES = 2 << 20
"""Of a huge page, where small ones have 4 KiB."""
# Beyond it more threads wait for one another in the kernel.
_THREADS = 4
_STEP = 32 << 20
# A step takes some 20 ms. Of memory that is in so many pieces that the kernel must
# move others' about, the rest stays on small pages.
_PATIENCE_S = 0.2


def make_resident(address: int, size: int, clock: Callable[[], float] = time.monotonic) -> bool:
    """Have the kernel allocate a mapping's pages and enter them for this process; its bytes stay as they are.

    Takes about 0.4 to 1 s a GiB and thread, on small pages several times that.

    Args:
        address: of a page; huge pages need one whose distance from theirs is that in its file.

    Returns:
        False when the kernel is too old for it: the pages come with their use.

    Raises:
        OSError: there is not enough memory.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    small = threading.Event()
    """Huge pages are not to be had, or not soon."""

    def advise(start: int, length: int, advice: int) -> int:
        return 0 if libc.madvise(start, length, advice) == 0 else ctypes.get_errno()

    def collapse(start: int, end: int) -> None:
        # A page of each first: it lies on the node that this process's policy says,
        # and the huge page goes where it lies.
        for page in range(start, end, HUGE_BYTES):
            if small.is_set() or advise(page, mmap.PAGESIZE, _MADV_POPULATE_WRITE):
                return
        began = clock()
        if advise(start, end - start, _MADV_COLLAPSE) or clock() - began > _PATIENCE_S:
            small.set()

    def populate(start: int) -> int:
        end = min(start + _STEP, address + size)
        first, last = -(-start // HUGE_BYTES) * HUGE_BYTES, end // HUGE_BYTES * HUGE_BYTES
        if first < last:
            collapse(first, last)
        return advise(start, end - start, _MADV_POPULATE_WRITE)

    with ThreadPoolExecutor(min(_THREADS, len(os.sched_getaffinity(0)))) as threads:
        try:
            for error in threads.map(populate, range(address, address + size, _STEP)):
                if error == errno.EINVAL:
                    return False
                if error:
                    raise OSError(error, f"{os.strerror(error)}: {size} bytes of shared memory")
        finally:
            threads.shutdown(cancel_futures=True)
    return True
