"""The job board: a sealed memfd of u64 words through which jobs are cancelled.

Job ``j`` uses word ``j mod slots``. The word holds ``j`` while the job may run;
a daemon that finds anything else there stops. The board works while the daemon
does not read its socket, and a daemon that was stopped sees it first thing when
it wakes: it looks before every batch of copies.
"""

import fcntl
import mmap
import os

CANCELLED = 1 << 63
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def sealed_memfd(name: str, size: int) -> int:
    """A memfd of exactly ``size`` bytes whose size can't change any more: no SIGBUS for who maps it."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, size)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(fd)
        raise
    return fd


class JobBoard:
    """One board for one session. A new session gets a new board, so that a
    daemon left over from an old one can never take a word for its own."""

    def __init__(self, slots: int = 1 << 14) -> None:
        self.slots = slots
        self.fd = sealed_memfd("mooncake-sidecar-jobs", slots * 8)
        self._map = mmap.mmap(self.fd, slots * 8)
        # A cast view writes a word with one aligned store.
        self._words = memoryview(self._map).cast("Q")
        self._used: dict[int, int] = {}

    def arm(self, job: int) -> bool:
        """Take the job's word. False: an unanswered job still has it."""
        slot = job % self.slots
        if slot in self._used:
            return False
        self._used[slot] = job
        self._words[slot] = job
        return True

    def cancel(self, job: int) -> None:
        """Mark the job cancelled. REQUIRES: it is armed."""
        self._words[job % self.slots] = job | CANCELLED

    def release(self, job: int) -> None:
        """Give the word back: the job has been answered or its daemon is dead."""
        slot = job % self.slots
        if self._used.get(slot) == job:
            del self._used[slot]

    def word(self, job: int) -> int:
        """The job's word as the daemon sees it."""
        return self._words[job % self.slots]

    def close(self) -> None:
        """Unmap and close. The daemon's own mapping stays."""
        self._words.release()
        self._map.close()
        os.close(self.fd)
