"""KV events of the real thing: what lookupd tells of the store, and what comes out of vLLM's own stream of it."""

import threading
import time
from collections import Counter

import msgspec
import pytest
import zmq
from harness.cell import Cell
from harness.client import PATIENCE_S
from harness.engine import BLOCK
from harness.prompts import block_hashes
from vllm.distributed.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KVEventBatch
from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash


class Heard:
    """A subscription: every event in its order, as (class, medium, group, hash)."""

    def __init__(self, endpoint):
        self.events = []
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.SUB)
        self._socket.subscribe(b"")
        self._socket.connect(endpoint)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        decoder = msgspec.msgpack.Decoder(KVEventBatch)
        while not self._stop.is_set():
            if self._socket.poll(50):
                for event in decoder.decode(self._socket.recv_multipart()[-1]).events:
                    for block_hash in getattr(event, "block_hashes", [None]):
                        self.events.append((type(event), getattr(event, "medium", None), getattr(event, "group_idx", 0), block_hash))

    def close(self):
        self._stop.set()
        self._thread.join()
        self._context.destroy(linger=0)

    def of(self, kind, medium=None):
        return Counter(e[3] for e in list(self.events) if e[0] is kind and e[1] == medium)


@pytest.fixture(scope="module")
def telling(model):
    with Cell(model, "events", store_bytes="512MiB", kv_events=True) as cell:
        yield cell.start()


@pytest.fixture()
def streams(telling, cut):
    store, engine = Heard(f"ipc://{telling.directory}/kv-events.sock"), Heard(f"ipc://{telling.directory}/vllm-events.sock")
    try:
        # Until both subscriptions are in force.
        wait(telling, cut, lambda: store.of(BlockStored, "CPU") and engine.of(BlockStored, "CPU") and engine.of(BlockStored, "GPU"))
        telling.settle()
        yield store, engine
    finally:
        store.close()
        engine.close()


def wait(cell, cut, done):
    """Waits while the engine takes steps: vLLM publishes at the end of a step."""
    deadline = time.monotonic() + PATIENCE_S
    while not done():
        assert time.monotonic() < deadline, "not heard in time"
        cell.client.complete(cut.fresh(BLOCK + 1), 1)


def test_all_that_is_stored_is_told_once_and_a_reset_takes_it_back(telling, cut, streams):
    store, engine = streams
    prompt = cut.fresh(10 * BLOCK + 5)
    wanted = {maybe_convert_block_hash(block_hash) for block_hash in block_hashes(prompt)}
    assert len(wanted) == 10
    telling.client.complete(prompt, 1)
    telling.settle()
    told = ((engine, "GPU"), (engine, "CPU"), (store, "CPU"))
    wait(telling, cut, lambda: all(wanted <= set(heard.of(BlockStored, medium)) for heard, medium in told))
    for heard in (store, engine):
        told = heard.of(BlockStored, "CPU")
        assert {told[h] for h in wanted} == {1}, "a block was told of more than once"
        assert not set(heard.of(BlockRemoved, "CPU")) & wanted

    telling.settle()
    cleared = store.of(AllBlocksCleared)[None]
    assert telling.client.reset_prefix_cache(external=True)
    # Two streams of two processes: nothing says which of them is heard first.
    wait(telling, cut, lambda: wanted <= set(engine.of(BlockRemoved, "CPU")) and store.of(AllBlocksCleared)[None] > cleared)
    telling.settle()
    assert store.of(AllBlocksCleared)[None] == cleared + 1
    assert not store.of(BlockRemoved, "CPU"), "a reset is one event"
    assert {engine.of(BlockRemoved, "CPU")[h] for h in wanted} == {1}
    telling.forget()
