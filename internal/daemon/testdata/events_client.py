"""Follows KV events as an indexer does, with vLLM's own types.

    python events_client.py ENDPOINT REPLAY

Prints a JSON list for every batch, [topic, number, [[event, medium, group, hashes], ...]]: first what a replay from 0
brings, then "live", then what comes, with what it has missed before. Batches that it has had are left out.
"""

import json
import sys

import msgspec
import zmq
from vllm.distributed.kv_events import KVEventBatch, ZmqEventPublisher


def main() -> None:
    endpoint, replay = sys.argv[1:]
    context = zmq.Context()
    live = context.socket(zmq.SUB)
    live.subscribe(b"")
    live.connect(endpoint)
    seen: set[tuple[bytes, bytes]] = set()

    def ask() -> None:
        asking = context.socket(zmq.DEALER)
        asking.connect(replay)
        asking.send_multipart((b"", (0).to_bytes(8, "big")))
        while True:
            _, topic, number, payload = asking.recv_multipart()
            if number == ZmqEventPublisher.END_SEQ:
                asking.close()
                return
            tell(topic, number, payload)

    def tell(topic: bytes, number: bytes, payload: bytes) -> None:
        if (topic, number) in seen:
            return
        seen.add((topic, number))
        batch = msgspec.msgpack.Decoder(KVEventBatch).decode(payload)
        assert batch.ts > 1.7e9 and batch.data_parallel_rank is None
        events = [
            [type(e).__name__, getattr(e, "medium", None), getattr(e, "group_idx", None), getattr(e, "block_hashes", [])]
            for e in batch.events
        ]
        print(json.dumps([topic.decode(), int.from_bytes(number, "big"), events]), flush=True)

    while not live.poll(100):  # until the subscription is in force, what comes is in the buffer
        ask()
        print(json.dumps("live"), flush=True)
    ask()
    while True:
        topic, number, payload = live.recv_multipart()
        if (topic, (int.from_bytes(number, "big") - 1).to_bytes(8, "big")) not in seen:
            ask()  # something was missed: of a new lookupd, all before the connection was there again
        tell(topic, number, payload)


main()
