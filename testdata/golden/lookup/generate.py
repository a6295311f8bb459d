"""Writes lookup.json: lookup frames and replies as vLLM's in-tree Mooncake
connector encodes them.

    python testdata/golden/lookup/generate.py      # vllm 0.32.0

Requests are captured from the real client class with its socket replaced;
replies come from the real encoder and are decoded again by the real decoder.
"""

import json
import pathlib
import random

import vllm
from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store import (
    protocol,
    worker,
)
from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store.data import (
    MooncakeLookupResult,
    TailKeyBoundary,
)


class CapturingSocket:
    """Stands where the client's REQ socket would."""

    def __init__(self):
        self.sent = None

    def send_multipart(self, frames, copy=True):
        self.sent = [bytes(f) for f in frames]

    def send(self, frame, copy=True):
        self.sent = [bytes(frame)]

    def recv(self):
        return self.reply


def client(reply: bytes):
    c = object.__new__(worker.LookupKeyClient)
    c.socket = CapturingSocket()
    c.socket.reply = reply
    return c


def main():
    rng = random.Random(1)
    requests = []
    for tokens, count, hash_len in [
        (0, 0, 0), (1, 0, 0), (4096, 32, 32), (1000, 7, 16), (2**32 - 1, 3, 32), (128, 1, 32),
    ]:
        hashes = [rng.randbytes(hash_len) for _ in range(count)]
        c = client(b"\0\0\0\0")
        c._lookup(tokens, hashes)
        requests.append({
            "kind": "lookup", "tokens": tokens, "hash_len": hash_len,
            "hashes": b"".join(hashes).hex(), "frames": [f.hex() for f in c.socket.sent],
        })
    c = client(protocol.RESP_OK)
    assert c._reset() is True
    requests.append({"kind": "reset", "frames": [f.hex() for f in c.socket.sent]})
    assert client(protocol.RESP_ERR)._reset() is False

    replies = []
    for hit, tails in [
        (0, ()), (4096, ()), (4096, ((0, 4096),)), (48, ((0, 64), (1, 48), (2, 2**32 - 1))), (2**32 - 1, ((63, 1),)),
    ]:
        result = MooncakeLookupResult(hit, tuple(TailKeyBoundary(g, t) for g, t in tails))
        encoded = protocol.encode_lookup_response(result)
        assert protocol.decode_lookup_response(encoded) == result
        replies.append({"hit": hit, "boundaries": [list(t) for t in tails], "frame": encoded.hex()})

    out = {
        "generator": "testdata/golden/lookup/generate.py",
        "vllm": vllm.__version__,
        "requests": requests,
        "replies": replies,
        "resp_ok": protocol.RESP_OK.hex(),
        "resp_err": protocol.RESP_ERR.hex(),
    }
    path = pathlib.Path(__file__).with_name("lookup.json")
    path.write_text(json.dumps(out, indent=1) + "\n")


if __name__ == "__main__":
    main()
