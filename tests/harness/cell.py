"""A cell: a runtime directory, its daemons, and the engine that uses them."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import tempfile
import time
import weakref
from typing import Callable, Mapping

from .client import Completion
from .daemons import Daemons
from .engine import BLOCK, REPOSITORY, Engine, ours
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
            # Tests expect hits; on a busy machine of two cores the product's 50 ms are sometimes not enough, and less so
            # where two engines of pytest-xdist's share them.
            "lookup_timeout_ms": 2000 if "PYTEST_XDIST_WORKER" in os.environ else 500,
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

    def start(self) -> "Cell":
        """Starts the engine, again after `crash`; the daemons are the engine's to start."""
        self._starts += 1
        self.engine = Engine(
            self.model,
            self.directory,
            connector=self.connector(ours(**self.extra)),
            environment=self.environment,
            name=f"engine-{self._starts}",
            **self.options,
        )
        self.engine.wait_ready()
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

    def forget(self) -> None:
        """Empties the engine's own cache, so that the next hit is the store's."""
        self.settle()
        self.client.reset_prefix_cache()

    def loaded(self, prompt, max_tokens: int = 16) -> tuple[Completion, int]:
        """Runs a prompt alone; returns its output and the tokens that the store brought by the engine's count."""
        before = self.client.metrics().external_hit_tokens
        answer = self.client.complete(prompt, max_tokens)
        return answer, self.client.metrics().external_hit_tokens - before

    def wait_serving(self, cut, limit_s: float = 60) -> None:
        """Waits until the cache works from end to end: a new prompt is stored, and comes back whole."""
        deadline = time.monotonic() + limit_s
        while True:
            prompt = cut.fresh(4 * BLOCK + 1)
            self.client.complete(prompt, 1)
            self.forget()
            _, tokens = self.loaded(prompt, 1)
            if tokens == whole(prompt):
                return
            if time.monotonic() > deadline:
                raise AssertionError(f"the cache does not serve again after {limit_s:.0f} s: {tokens} tokens\n" + self.daemons.logs())
            time.sleep(0.2)

    def kv_memory(self) -> KvMemory:
        return KvMemory(self.engine.process.pid, LAYERS, PAGE_BYTES)

    @classmethod
    def last_words(cls) -> list[tuple[str, str]]:
        """Ends of the logs of every open cell, for a failing test's report."""
        return [(c.name, c.daemons.logs() + ("\n--- engine\n" + c.engine.log_tail(25) if c.engine else "")) for c in list(cls._open)]


def whole(prompt) -> int:
    """Tokens of a prompt that a store can bring: whole blocks before the last token, which vLLM computes itself."""
    return (len(prompt) - 1) // BLOCK * BLOCK
