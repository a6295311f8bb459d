"""The worker role's background thread: keeps a registered session available.

It connects, registers and hands a finished ``Link`` over; the hooks take it at
their next run. Then it waits for that session's end (or the daemon's) and
starts again, with growing pauses, starting the daemon when it may.
"""

import logging
import os
import random
import select
import threading
import time
from collections.abc import Callable

from mooncake_sidecar.link import Link

logger = logging.getLogger("vllm.mooncake_sidecar.maintainer")

FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 5.0


class Maintainer:
    """Owns one thread. ``stop`` ends it and waits."""

    def __init__(self, connect: Callable[[threading.Event], Link], what: str) -> None:
        """Args:
        connect: makes a link, blocking up to its own deadlines; raises when it can't.
        what: the daemon's name, for the log.
        """
        self._connect = connect
        self._what = what
        self._stop = threading.Event()
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._lock = threading.Lock()
        self._fresh: Link | None = None
        self.first_attempt = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mooncake-sidecar", daemon=True)

    def start(self) -> None:
        """Begin connecting."""
        self._thread.start()

    def take(self) -> Link | None:
        """A new link, once. Called from the hooks: does not wait."""
        if self._fresh is None:
            return None
        with self._lock:
            link, self._fresh = self._fresh, None
            return link

    def give_up(self) -> None:
        """Have the thread end soon, without waiting for it."""
        self._stop.set()
        os.write(self._wake_write, b"x")

    def stop(self, untaken: Callable[[Link], None] = lambda link: link.close()) -> None:
        """End the thread and wait for it.

        Args:
            untaken: gets the link that nobody took, if there is one.
        """
        self.give_up()
        if self._thread.is_alive():
            self._thread.join()
        if (link := self.take()) is not None:
            untaken(link)
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _run(self) -> None:
        pause = FIRST_PAUSE_S
        warned = False
        while not self._stop.is_set():
            try:
                link = self._connect(self._stop)
            except Exception as error:
                # Whatever it is, the engine goes on without the cache.
                log = logger.debug if warned else logger.warning
                log("no KV store for now: %s (the engine runs without it; trying again in the background)", error)
                warned = True
                self.first_attempt.set()
                # Jitter, so that ranks do not all come at once.
                self._stop.wait(pause * (0.5 + random.random()))
                pause = min(pause * 2, LONGEST_PAUSE_S)
                continue
            if warned:
                logger.warning("%s answers: the KV store is in use again", self._what)
            warned, connected_at = False, time.monotonic()
            descriptors = link.watch_descriptors()
            with self._lock:
                ended, self._fresh = self._fresh, link
            if ended is not None:
                ended.close()  # the engine slept through its whole life
            self.first_attempt.set()
            self._wait_for_end(descriptors)
            if time.monotonic() - connected_at > LONGEST_PAUSE_S:
                pause = FIRST_PAUSE_S
            else:
                # A session that ends at once must not become a busy loop.
                self._stop.wait(pause)
                pause = min(pause * 2, LONGEST_PAUSE_S)

    def _wait_for_end(self, descriptors: tuple[int, int]) -> None:
        """Until the session or the process ends, or stop. Closes the descriptors."""
        poller = select.poll()
        sock, pidfd = descriptors
        poller.register(sock, select.POLLRDHUP)  # no POLLIN: results are the hooks' business
        poller.register(self._wake_read, select.POLLIN)
        if pidfd >= 0:
            poller.register(pidfd, select.POLLIN)
        try:
            poller.poll()
        finally:
            os.close(sock)
            if pidfd >= 0:
                os.close(pidfd)
