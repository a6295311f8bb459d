"""Carries a plan out: strikes on daemons, resets. One thread each, for either may take its time."""

from __future__ import annotations

import http.client
import os
import signal
import threading
import time
from typing import Callable, Sequence

from harness.client import ApiError
from harness.daemons import LOOKUPD, WORKER, wait_gone

from . import remains
from .counters import ANSWER_LIMIT_S
from .gate import Gate
from .plan import Reset, Strike
from .tally import Tally

_NAMES = {"lookupd": LOOKUPD, "worker": WORKER}
# A daemon that was killed is there again within this, as the engine's shim starts it.
BACK_WITHIN_S = 60.0
# So long a strike at a worker waits for a load that it can meet.
LOAD_WITHIN_S = 10.0
# So long a reset that preempts is repeated until it has preempted something.
PREEMPTING_FOR_S = 30.0
# A preemption is counted with the request's next output, before which all that was preempted is computed again.
COUNTED_WITHIN_S = 15.0
# What vLLM says when blocks are held that no preemption frees: those of our loads and stores.
REFUSED = "Failed to reset KV cache even when all the running requests are preempted"


class Events:
    """Owns its threads: `stop` ends them, waits, and leaves every daemon running."""

    def __init__(self, cell, strikes: Sequence[Strike], resets: Sequence[Reset], tally: Tally, gate: Gate):
        self._cell, self._tally, self._gate = cell, tally, gate
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._follow, args=(strikes, self._strike)),
            threading.Thread(target=self._follow, args=(resets, self._reset)),
        ]
        self._begin = 0.0

    def start(self) -> None:
        self._begin = time.monotonic()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _follow(self, plan: Sequence, act: Callable) -> None:
        for step in plan:
            if self._over.wait(max(0.0, self._begin + step.at_s - time.monotonic())):
                return
            try:
                act(step)
            except Exception as error:  # told of, not lost in a thread
                self._tally.fault(f"{step}: {type(error).__name__}: {error}")

    def _strike(self, strike: Strike) -> None:
        if strike.daemon == "worker":
            self._await_load()
        pid = self._cell.daemons.wait(_NAMES[strike.daemon], BACK_WITHIN_S)
        try:
            if strike.signal == "kill":
                os.kill(pid, signal.SIGKILL)
                wait_gone(pid)
            else:
                os.kill(pid, signal.SIGSTOP)
                try:
                    self._over.wait(strike.stop_s)
                finally:
                    os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            pass  # the shim has killed it, for it left a cancel unanswered
        self._tally.add(f"{strike.signal} {strike.daemon}")

    def _await_load(self) -> None:
        """Until a worker copies for a load, by what lookupd says is read: a strike by the clock alone meets one in three.

        For some seconds only. Where clients wait, or lookupd is not there, no load comes, and the strike meets something else.
        """
        until = time.monotonic() + LOAD_WITHIN_S
        while time.monotonic() < until and not self._over.is_set():
            try:
                if remains.daemon_metrics(self._cell, LOOKUPD, ANSWER_LIMIT_S).value("mooncake_sidecar_store_open_reads"):
                    return
            except (OSError, http.client.HTTPException):
                pass
            self._over.wait(0.02)

    def _reset(self, reset: Reset) -> None:
        done = {"own": self._reset_own, "store": self._reset_store, "preempting": self._reset_preempting}[reset.kind]()
        self._tally.add(f"reset {reset.kind}" if done else f"refused {reset.kind}")

    def _reset_own(self) -> bool:
        """Nothing runs: then no block may be held, and the pool must agree."""
        with self._gate.closed():
            if held := remains.blocks_held(self._cell):
                self._tally.fault(held)
                return False
        return True

    def _reset_store(self) -> bool:
        """The store's chunks are dropped whatever runs. vLLM's answer speaks of its own cache too, so lookupd is asked."""
        pid, before = self._cell.daemons.pid(LOOKUPD), self._resets()
        self._cell.client.reset_prefix_cache(external=True)
        return self._cell.daemons.pid(LOOKUPD) == pid and self._resets() > before >= 0

    def _resets(self) -> float:
        """Resets that lookupd has carried out, -1 when it does not answer."""
        try:
            return remains.daemon_metrics(self._cell, LOOKUPD).value("mooncake_sidecar_lookup_resets_total")
        except (OSError, http.client.HTTPException):
            return -1

    def _reset_preempting(self) -> bool:
        """All that runs is preempted; whether the cache is emptied too is another matter.

        vLLM refuses that, after it has preempted, while a load or a store of ours holds blocks.
        """
        until = time.monotonic() + PREEMPTING_FOR_S
        while time.monotonic() < until and not self._over.is_set():
            before = self._cell.client.metrics()
            if before.running == 0:
                self._over.wait(0.1)
                continue
            try:
                self._cell.client.call("POST", "/reset_prefix_cache?reset_running_requests=true")
            except ApiError as error:
                if REFUSED not in str(error):
                    raise
                self._tally.add("refused emptying")
            counted_until = time.monotonic() + COUNTED_WITHIN_S
            while time.monotonic() < counted_until and not self._over.is_set():
                if self._cell.client.metrics().preemptions > before.preemptions:
                    return True
                self._over.wait(0.1)
        return False
