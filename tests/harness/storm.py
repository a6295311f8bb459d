"""Requests that run while something befalls a daemon, and what must hold afterwards."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from .cell import Cell
from .client import PATIENCE_S, Completion
from .compare import Noise, assert_right
from .daemons import LOOKUPD


class Storm:
    """Collects requests in flight with the outputs that they must give."""

    def __init__(self, cell: Cell, reference, noise: Noise):
        self.cell, self._reference, self._noise = cell, reference, noise
        self._pool = ThreadPoolExecutor(32)
        self._flying: list[tuple[Completion, object]] = []

    def __enter__(self) -> "Storm":
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=True)

    def expect(self, prompts, max_tokens: int) -> None:
        """Computes right outputs now, so that `send` need not while time matters."""
        self._reference(prompts, max_tokens, at_once=len(prompts))

    def send(self, prompts, max_tokens: int) -> list:
        """Sends prompts whose right outputs `expect` has computed before; returns futures."""
        futures = []
        for prompt in prompts:
            (want,) = self._reference([prompt], max_tokens)
            future = self._pool.submit(self.cell.client.complete, prompt, max_tokens)
            self._flying.append((want, future))
            futures.append(future)
        return futures

    def check(self, limit_s: float = PATIENCE_S) -> int:
        """Waits for all, and fails unless each gave what it must; returns how many there were."""
        done = [(want, future.result(limit_s)) for want, future in self._flying]
        self._flying.clear()
        assert_right([want for want, _ in done], [got for _, got in done], self._noise)
        return len(done)


# For so long nothing is under way when what was to be seen is over. A request that is on its way to the engine takes less; if not,
# it is sent twice, which harms nothing.
_OVER_S = 1.0


def wait_load_in_flight(cell: Cell, again: Callable[[], object]) -> None:
    """Until a request waits for its KV from the store: it holds blocks and does not run.

    Args:
        again: sends the request once more. A load may be over before it is seen, on a machine that is busy; the engine's
            own cache is emptied first.
    """

    def once_more():
        cell.forget()
        again()

    _see(cell, lambda m: m.running == 0 and m.waiting > 0 and m.kv_usage > 0, "a load in flight", once_more)


def step_load_in_flight(cell: Cell, send: Callable[[], object]) -> None:
    """Sends a request that is stored, and returns while its load is part of a step: the store has readers, and the engine says nothing.

    In between the engine's metrics stand still; lookupd knows who holds references.
    """
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        cell.settle()
        cell.forget()
        send()
        over = time.monotonic() + _OVER_S
        while time.monotonic() < over:
            if cell.daemons.status(LOOKUPD)["store"]["open_reads"]:
                return
    raise AssertionError("never saw a load in a step")


def store_in_flight(cell: Cell, prompt) -> None:
    """Has the prompt computed, and returns while no request is left and blocks are still held: a store job reads them."""

    def once_more():
        cell.forget(everywhere=True)
        cell.client.complete(prompt, 1)

    cell.client.complete(prompt, 1)
    _see(cell, lambda m: m.running == m.waiting == 0 and m.kv_usage > 0, "a store in flight", once_more)


def _see(cell: Cell, holds, what: str, once_more: Callable[[], None], limit_s: float = PATIENCE_S) -> None:
    """Looks until the engine's metrics show it, and lets it happen once more where it was over before it was seen."""
    begin = idle_since = time.monotonic()
    while not holds(metrics := cell.client.metrics()):
        now = time.monotonic()
        if now - begin > limit_s:
            raise AssertionError(
                f"never saw {what}: {metrics.running} running, {metrics.waiting} waiting, {metrics.kv_usage:.2%} of the blocks held"
            )
        if metrics.running or metrics.waiting or metrics.kv_usage:
            idle_since = now
        elif now - idle_since > _OVER_S:
            once_more()
            idle_since = time.monotonic()
        time.sleep(0.005)


class Abandoned:
    """A request whose client goes away: `abort` closes the connection, and vLLM aborts the request."""

    def __init__(self, cell: Cell, prompt, max_tokens: int = 16):
        self._connection = http.client.HTTPConnection("127.0.0.1", cell.client.port, timeout=60)
        body = {"model": cell.client.model, "prompt": list(prompt), "max_tokens": max_tokens, "temperature": 0, "stream": True}
        self._connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})

    def abort(self) -> None:
        self._connection.close()
