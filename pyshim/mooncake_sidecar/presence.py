"""A rank's KV memory at its daemon, and how it goes and comes back with the engine's sleep."""

import logging
import threading
import time
from collections.abc import Callable

from mooncake_sidecar.layout import UnsupportedLayout
from mooncake_sidecar.link import Link
from mooncake_sidecar.maintainer import Maintainer
from mooncake_sidecar.registration import Memory
from mooncake_sidecar.worker import WorkerRole

logger = logging.getLogger("vllm.mooncake_sidecar.presence")

# What a killed daemon has to be gone, beyond its time to answer.
_DEATH_S = 2.0


class Presence:
    """Keeps the memory registered while it is there. Used by vLLM's worker thread."""

    def __init__(
        self,
        describe: Callable[[], Memory],
        connect: Callable[[Memory, int], Callable[[threading.Event], Link]],
        *,
        waits_s: float,
        patience_s: float,
    ) -> None:
        """Args:
        describe: the memory as it is now; raises UnsupportedLayout when it can't be shared.
        connect: gets a memory and an epoch, and returns what registers it.
        waits_s: how long the engine waits for the first attempt.
        patience_s: how long a daemon has to unmap before it is killed.
        """
        self._describe: Callable[[], Memory] | None = describe
        self._connect: Callable[[Memory, int], Callable[[threading.Event], Link]] | None = connect
        self._waits_s = waits_s
        self._patience_s = patience_s
        self._memory: Memory | None = None
        self._maintainer: Maintainer | None = None
        self.role: WorkerRole | None = None
        """Takes the links; set before the first of the methods below."""

    def start(self, memory: Memory, epoch: int) -> None:
        """Register the memory, whose descriptors are taken over, and keep it so."""
        self._memory = memory
        self._maintainer = Maintainer(self._connect(memory, epoch), "mooncake-worker")
        self._maintainer.start()
        self._maintainer.first_attempt.wait(self._waits_s)

    def take(self) -> Link | None:
        """A newly registered link, once."""
        return self._maintainer.take() if self._maintainer is not None else None

    def leave_memory(self) -> None:
        """Have the daemon through with the memory, and nothing of this process hold it.

        A registration that is under way counts, too: the daemon may map the memory yet.
        """
        until = time.monotonic() + self._patience_s + _DEATH_S
        try:
            if self._maintainer is not None:
                self._maintainer.give_up()
            try:
                self.role.leave(0)  # the daemon's time begins now, and not when the thread has ended
            finally:
                self._stop(untaken=self.role.adopt)
            if not self.role.leave(max(until - time.monotonic(), 0)):
                logger.error(
                    "mooncake-worker does not let go of the engine's GPU memory: it is not free until that process "
                    "answers or ends. Look after it or restart it"
                )
        finally:
            self._drop()

    def memory_gone(self) -> None:
        """What a daemon still does it does to memory that is not the engine's."""
        self.role.disown()

    def memory_back(self) -> None:
        """Register it anew; the chunks are others."""
        try:
            memory = self._describe()
        except UnsupportedLayout as error:
            logger.warning("running without the KV store: %s", error)
            return
        self.start(memory, time.time_ns())

    def close(self) -> None:
        """End the thread; descriptors are given back, and nothing of ours holds the engine's tensors any more.

        vLLM counts on that where an engine ends in a process that goes on.
        """
        self._stop()
        self._drop()
        self._describe = self._connect = self.role = None

    def _stop(self, untaken: Callable[[Link], None] = Link.close) -> None:
        if self._maintainer is not None:
            maintainer, self._maintainer = self._maintainer, None
            maintainer.stop(untaken)

    def _drop(self) -> None:
        if self._memory is not None:
            self._memory.close()
            self._memory = None
