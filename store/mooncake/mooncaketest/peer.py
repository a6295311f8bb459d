"""A client of Mooncake's wheel, as the in-tree connector uses it, on request.

Takes a JSON object a line and answers with one: for tests that the daemon's way
to a cluster and Python's are one. argv: metadata server, master, bytes lent.
"""

import ctypes
import json
import mmap
import os
import sys
import time

from mooncake.store import MooncakeDistributedStore, ReplicateConfig

LAYERS = 4
SIZE = 64 << 20


class Peer:
    def __init__(self, metadata, master, lent):
        self.store = MooncakeDistributedStore()
        code = self.store.setup("127.0.0.1", metadata, int(lent), 16 << 20, "tcp", "", master)
        if code != 0:
            raise SystemExit(f"setup: {code}")
        self.map = mmap.mmap(-1, SIZE)
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        if self.store.register_buffer(self.base, SIZE) != 0:
            raise SystemExit("register")

    def segment(self):
        return self.store.get_hostname()

    def put(self, key, data):
        """One buffer of bytes."""
        return self.store.put(key, bytes.fromhex(data))

    def get(self, key):
        return self.store.get(key).hex()

    def put_parts(self, key, data, parts):
        """As the in-tree connector puts a block: a buffer for each layer, in several places."""
        raw = bytes.fromhex(data)
        step = len(raw) // parts
        pointers, sizes = [], []
        for part in range(parts):
            at = (parts - part) * 2 * step + 64
            self.map[at : at + step] = raw[part * step : (part + 1) * step]
            pointers.append(self.base + at)
            sizes.append(step)
        return self.store.batch_put_from_multi_buffers([key], [pointers], [sizes], ReplicateConfig())[0]

    def get_parts(self, key, size, parts):
        """As the in-tree connector gets a block."""
        step = size // parts
        places = [(parts - part) * 2 * step + 64 for part in range(parts)]
        code = self.store.batch_get_into_multi_buffers([key], [[self.base + at for at in places]], [[step] * parts])[0]
        return {"code": code, "data": b"".join(self.map[at : at + step] for at in places).hex()}

    def exist(self, keys):
        return self.store.batch_is_exist(keys)

    def remove(self, key):
        return self.store.batch_remove([key], True)[0]

    def remove_all(self, keys):
        """Also what is leased, as all is that was just asked for or got. 0, or the first code of a failure."""
        return next((code for code in self.store.batch_remove(keys, True) if code != 0), 0)

    def replicas(self, key):
        """The segments that have copies."""
        found = self.store.get_replica_desc(key)
        return [one.get_memory_descriptor().buffer_descriptor.transport_endpoint for one in found]

    def time(self, run, keys, size, parts, rounds):
        """Microseconds of put, get, exist of present and of absent keys, each the median of rounds."""
        step = size // parts
        names = [f"{run}@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0@{i:064x}" for i in range(keys)]
        absent = [name + "0" for name in names]
        pointers = [[self.base + i * size + p * step for p in range(parts)] for i in range(keys)]
        sizes = [[step] * parts] * keys
        times = {"put": [], "get": [], "present": [], "absent": []}

        def timed(name, call, want):
            begun = time.perf_counter()
            answers = call()
            times[name].append((time.perf_counter() - begun) * 1e6)
            if any(answer != want for answer in answers):
                raise SystemExit(f"{name}: {answers[:4]}")

        for _ in range(rounds):
            timed("absent", lambda: self.store.batch_is_exist(absent), 0)
            if size:
                timed("put", lambda: self.store.batch_put_from_multi_buffers(names, pointers, sizes, ReplicateConfig()), 0)
                timed("get", lambda: self.store.batch_get_into_multi_buffers(names, pointers, sizes), size)
                timed("present", lambda: self.store.batch_is_exist(names), 1)
                if code := self.remove_all(names):
                    raise SystemExit(f"remove: {code}")
        return {name: sorted(of)[len(of) // 2] for name, of in times.items() if of}


def main():
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    peer = Peer(*sys.argv[1:4])
    print(json.dumps({"ok": peer.segment()}), file=out, flush=True)
    for line in iter(sys.stdin.readline, ""):
        request = json.loads(line)
        try:
            answer = {"ok": getattr(peer, request.pop("op"))(**request)}
        except Exception as error:  # noqa: BLE001 - the test is told
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=out, flush=True)
    os._exit(0)


main()
