"""Clients that repeat prompts for as long as they may, compare what they get, and now and then go away."""

from __future__ import annotations

import http.client
import random
import threading
import time

from harness.client import ApiError
from harness.compare import Noise
from harness.storm import Abandoned

from . import judge
from .gate import Gate
from .limits import REQUEST_LIMIT_S
from .pool import ALONE, LONGEST_OUTPUT, Right
from .tally import Tally

ABORTED = 0.12
ALONE_SHARE = 0.05
LATEST_ABORT_S = 1.5


class Traffic:
    """Owns its threads: `stop` ends them and waits until each has had its answer."""

    def __init__(self, cell, pool: list[Right], noise: Noise, seed: int, clients: int, tally: Tally, gate: Gate):
        self._cell, self._pool, self._noise, self._tally, self._gate = cell, pool, noise, tally, gate
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._client, args=(random.Random(f"{seed}/{n}"),)) for n in range(clients)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _client(self, rng: random.Random) -> None:
        while not self._over.is_set():
            self._gate.wait()
            right = rng.choice(self._pool)
            # Short answers keep prompts coming; long ones meet resets and preemptions.
            tokens = rng.choice((1, 4, 16, LONGEST_OUTPUT))
            aborted, at, alone = rng.random() < ABORTED, rng.uniform(0, LATEST_ABORT_S), rng.random() < ALONE_SHARE
            try:
                if aborted:
                    self._abandon(right, at)
                else:
                    self._complete(right, tokens, ALONE if alone else None)
            except Exception as error:  # whatever it is, the run must tell of it, not end in a thread
                self._tally.fault(f"a request of {len(right.prompt)} tokens failed: {type(error).__name__}: {error}")
                self._over.wait(1)

    def _abandon(self, right: Right, at_s: float) -> None:
        request = Abandoned(self._cell, right.prompt, LONGEST_OUTPUT)
        self._over.wait(at_s)
        request.abort()
        self._tally.add("aborted")

    def _complete(self, right: Right, tokens: int, params: dict | None) -> None:
        begin = time.monotonic()
        try:
            got = self._cell.client.complete(right.prompt, tokens, kv_transfer_params=params)
        except TimeoutError:
            self._tally.fault(f"a request of {len(right.prompt)} tokens is unfinished after {REQUEST_LIMIT_S:.0f} s")
            return
        except (ApiError, OSError, http.client.HTTPException) as error:
            self._tally.fault(f"a request of {len(right.prompt)} tokens ended with {type(error).__name__}: {error}")
            self._over.wait(1)
            return
        self._tally.finished(time.monotonic() - begin)
        if got.finish_reason != "length":
            self._tally.fault(f"a request of {len(right.prompt)} tokens ended with the reason {got.finish_reason!r}")
        elif fault := judge.wrong(right.first(tokens), got, self._noise):
            self._tally.fault(f"a prompt of {len(right.prompt)} tokens, of which {got.cached_tokens} were cached: {fault}")
        else:
            self._tally.moved(judge.moved(right.first(tokens), got))
