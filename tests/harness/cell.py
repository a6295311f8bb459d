"""A cell: a runtime directory, its daemons, and the engine that uses them."""

from __future__ import annotations

import json
import pathlib
import random
import shutil
import tempfile
import time
import weakref
from typing import Callable, Mapping

from .client import PATIENCE_S, Completion
from .daemons import Daemons
from .engine import BLOCK, OURS, REPOSITORY, Engine, ours
from .segment import KvMemory

# Of the generated checkpoint: tokens x KV heads x (K and V) x head size x bytes of a float.
PAGE_BYTES = BLOCK * 2 * 2 * 64 * 4
LAYERS = 4
SHARD_BYTES = LAYERS * PAGE_BYTES


class Cell:
    """Owns everything it starts; `close` (or leaving the context) ends it all."""

    _open: "weakref.WeakSet[Cell]" = weakref.WeakSet()

    def __init__(
        self,
        model: pathlib.Path,
        name: str,
        *,
        store_bytes: str = "1GiB",
        environment: Mapping[str, str] | None = None,
        binaries: str = "bin",
        **engine_options,
    ):
        self.name, self.model = name, model
        # Under /tmp, for socket paths may have 107 bytes at most.
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix=f"mcs-{name}-"))
        self.daemons = Daemons(self.directory)
        self.extra = {
            "runtime_dir": str(self.directory),
            "store_bytes": store_bytes,
            "binaries_dir": str(REPOSITORY / binaries),
            # Tests expect hits, however busy the machine: the product's deadlines are for those who would rather compute.
            # One that stops a daemon has deadlines of its own.
            "lookup_timeout_ms": 10_000,
            "load_timeout_s": 120,
            "store_timeout_s": 120,
        }
        self.extra |= engine_options.pop("extra", {})
        # From our connector's configuration to the one that the engine is started with, None for none; a test may change it between starts.
        self.connector: Callable[[dict], dict | None] = engine_options.pop("connector", dict)
        self.environment = dict(environment or {})
        if engine_options.pop("kv_events", False):  # those of lookupd, and vLLM's own with lookupd's in them
            self.extra["enable_kv_events"] = True
            wanted = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": f"ipc://{self.directory}/vllm-events.sock"}
            engine_options["arguments"] = [*engine_options.get("arguments", ()), "--kv-events-config", json.dumps(wanted)]
        self.options = engine_options
        self.engine: Engine | None = None
        self._starts = 0
        Cell._open.add(self)

    def __enter__(self) -> "Cell":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self, in_use: bool = True) -> "Cell":
        """Starts the engine, again after `crash`; the daemons are the engine's to start.

        Args:
            in_use: wait for the cache, too, where ours is the only connector.
        """
        self._starts += 1
        connector = self.connector(ours(**self.extra))
        self.engine = Engine(
            self.model,
            self.directory,
            connector=connector,
            environment=self.environment,
            name=f"engine-{self._starts}",
            **self.options,
        )
        self.engine.wait_ready()
        if in_use and connector is not None and connector["kv_connector"] == OURS["kv_connector"]:
            wait_in_use(self.engine)
        return self

    @property
    def client(self):
        return self.engine.client

    def crash(self) -> None:
        """Kills the engine; daemons stay."""
        self.engine.kill()

    def close(self) -> None:
        if self.engine:
            self.engine.kill()
        self.daemons.close()
        Cell._open.discard(self)
        shutil.rmtree(self.directory, ignore_errors=True)

    def settle(self) -> None:
        """Waits until nothing runs and no block is held: what was to be stored is stored."""
        self.engine.wait_idle()

    def forget(self, everywhere: bool = False) -> None:
        """Empties the engine's own cache, so that the next hit is the store's; with everywhere the store, too."""
        self.engine.forget(everywhere)

    def loaded(self, prompt, max_tokens: int = 16) -> tuple[Completion, int]:
        """Runs a prompt alone; returns its output and the tokens that the store brought by the engine's count."""
        before = self.client.metrics().external_hit_tokens
        answer = self.client.complete(prompt, max_tokens)
        return answer, self.client.metrics().external_hit_tokens - before

    def wait_serving(self, cut, length: Callable[[list[int]], int] | None = None) -> None:
        """Waits until the cache works from end to end: a new prompt is stored, and comes back whole."""
        self.wait_stored(lambda: cut.fresh(4 * BLOCK + 1), length)

    def wait_stored(self, prompts: Callable[[], list[int]], length: Callable[[list[int]], int] | None = None) -> None:
        """Asks until what was asked is stored and comes back whole: a job may miss its deadline, or find no daemon.

        Args:
            prompts: gives the prompt of each try.
            length: tokens of a prompt that a store can bring.
        """
        deadline = time.monotonic() + PATIENCE_S
        while True:
            prompt = prompts()
            self.client.complete(prompt, 1)
            self.forget()
            _, tokens = self.loaded(prompt, 1)
            self.forget()
            if tokens == (length or whole)(prompt):
                return
            if time.monotonic() > deadline:
                raise AssertionError(f"the cache does not serve after {PATIENCE_S:.0f} s: {tokens} tokens\n" + self.daemons.logs())
            time.sleep(0.2)

    def kv_memory(self) -> KvMemory:
        return KvMemory(self.engine.process.pid, LAYERS, PAGE_BYTES)

    @classmethod
    def last_words(cls) -> list[tuple[str, str]]:
        """Ends of the logs of every open cell, for a failing test's report."""
        return [(c.name, c.daemons.logs() + ("\n--- engine\n" + c.engine.log_tail(25) if c.engine else "")) for c in list(cls._open)]


def wait_in_use(engine: Engine) -> None:
    """Until the engine asks the store and its worker has a daemon; nothing is stored by that.

    An engine waits some seconds for daemons that are slow to start, and goes on: what is asked then is neither found nor kept.
    """
    rng, row, deadline = random.Random(0), 0, time.monotonic() + PATIENCE_S
    while row < 2:  # the second is asked about only if the worker was ready at the first
        registered = "registered with mooncake-worker" in engine.log()
        before = _answered_lookups(engine)
        engine.client.complete([rng.randrange(2, 4096) for _ in range(400)], 4, kv_transfer_params={"skip_save": True})
        row = row + 1 if registered and _answered_lookups(engine) > before else 0
        if time.monotonic() > deadline:
            raise AssertionError(f"the engine does not use its cache after {PATIENCE_S:.0f} s:\n{engine.log_tail()}")
        time.sleep(0 if row else 0.1)
    engine.forget()


def _answered_lookups(engine: Engine) -> float:
    return engine.client.metrics().value("vllm:mooncake_store_operation_total", 'operation="lookup_exists"', 'status="ok"')


def whole(prompt) -> int:
    """Tokens of a prompt that a store can bring: whole blocks before the last token, which vLLM computes itself."""
    return (len(prompt) - 1) // BLOCK * BLOCK
