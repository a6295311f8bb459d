"""Other stores, measured on the same pieces: a line with a number on standard input is an order for a round, which is
answered by a line of JSON, microseconds by kind.

    intree   what vLLM's in-tree connector calls: Mooncake's client over TCP, a real mooncake_master
    lmcache  LMCache's own `bench server` against a `lmcache server`, on shared memory
"""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
import tempfile
import time

# What was read can't be removed before its lease has run out (5 s is the master's default).
_LEASE_S = 5.5

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "bench" / "compare" / "hosts")]


class InTree:
    """Mooncake's client as the in-tree connector uses it: one key a chunk, its pieces as buffers of one object."""

    def __init__(self, directory: pathlib.Path, chunks: int, layers: int, piece: int, times: int):
        import ctypes
        import mmap

        from harness.mooncake import Master
        from mooncake.store import MooncakeDistributedStore

        size = chunks * layers * piece
        self.master = Master(directory, segment_bytes=(times + 2) * size * 5 // 4 + (64 << 20))
        settings = json.loads(self.master.config_path.read_text())
        self.store = MooncakeDistributedStore()
        code = self.store.setup(
            "127.0.0.1",
            settings["metadata_server"],
            settings["global_segment_size"],
            256 << 20,
            "tcp",
            "",
            settings["master_server_address"],
        )
        if code:
            raise RuntimeError(f"Mooncake's client does not start: {code}")
        self.memory = mmap.mmap(-1, 2 * size)
        self.memory.write(bytes(range(256)) * (2 * size // 256))
        base = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        if self.store.register_buffer(base, 2 * size):
            raise RuntimeError("Mooncake's client does not register the buffer")
        # Layer after layer, as in an engine; the second half is loaded into.
        self.places = [
            [[base + half * size + (layer * chunks + chunk) * piece for layer in range(layers)] for chunk in range(chunks)]
            for half in range(2)
        ]
        self.sizes = [[piece] * layers for _ in range(chunks)]
        self.keys: list[str] = []

    def store_one(self, name: str) -> float:
        self.keys = [f"{name}/{chunk}" for chunk in range(len(self.sizes))]
        begun = time.perf_counter()
        self.store.batch_is_exist(self.keys)
        results = self.store.batch_put_from_multi_buffers(self.keys, self.places[0], self.sizes)
        took = time.perf_counter() - begun
        if any(result < 0 for result in results):
            raise RuntimeError(f"put: {results}")
        return took * 1e6

    def load_one(self) -> float:
        begun = time.perf_counter()
        results = self.store.batch_get_into_multi_buffers(self.keys, self.places[1], self.sizes)
        took = time.perf_counter() - begun
        if any(result < 0 for result in results):
            raise RuntimeError(f"get: {results}")
        return took * 1e6

    def round(self, number: int, times: int) -> dict[str, list[float]]:
        found: dict[str, list[float]] = {"restore": [], "warm": []}
        for i in range(times):
            found["restore"].append(self.store_one(f"{number}/{i}"))
            found["warm"].append(self.load_one())
        time.sleep(_LEASE_S)
        self.store.remove_all()
        return found

    def close(self) -> None:
        self.store.close()
        self.master.__exit__()


# LMCache finds what it stored a moment after it has answered; its benchmark asks at once without this.
INTERVAL_S = "0.5"


class LMCache:
    """LMCache's own benchmark of its server; each round is a run of it."""

    def __init__(self, directory: pathlib.Path, chunks: int, layers: int, piece: int, block_tokens: int):
        from lmcache_server import OVERLAY, Server

        self.directory, self.tokens = directory, chunks * block_tokens
        # K and V of one head of 16-bit numbers.
        head = piece // block_tokens // 4
        self.shape = f"(2,{4 * chunks + 1},{block_tokens},1,{head}):float16:{layers}"
        self.program = OVERLAY / "bin" / "lmcache"
        self.server = Server(directory, 8 * chunks * layers * piece + (256 << 20))
        self.server.__enter__()

    def round(self, number: int, times: int) -> dict[str, list[float]]:
        out = self.directory / f"round-{number}.json"
        start = number * (times + 1)
        subprocess.run(
            [
                self.program, "bench", "server", "--mode", "cpu", "--transfer-mode", "lmcache_driven",
                "--rpc-url", f"tcp://127.0.0.1:{self.server.port}", "--url", f"http://127.0.0.1:{self.server.http_port}",
                "--num-tokens", str(self.tokens), "--kvcache-shape-spec", self.shape,
                "--start", str(start), "--end", str(start + times + 1), "--interval", INTERVAL_S,
                "--format", "json", "--output", str(out), "-q",
            ],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=self.server.environment | {"PATH": "/usr/bin:/bin"},
        )  # fmt: skip
        report = json.loads(out.read_text())
        return {"restore": [median_ms(report, "store") * 1e3], "warm": [median_ms(report, "retrieve") * 1e3]}

    def close(self) -> None:
        self.server.__exit__()


def median_ms(report: object, operation: str) -> float:
    """The median that the report gives for an operation, wherever it stands in it."""
    found: list[float] = []

    def walk(node: object, path: str) -> None:
        if isinstance(node, dict):
            for key, value in node.items():
                walk(value, f"{path}/{key}".lower())
        elif isinstance(node, list):
            for value in node:
                walk(value, path)
        elif isinstance(node, int | float) and operation in path and "p50" in path:
            found.append(float(node))

    walk(report, "")
    if len(found) != 1:
        raise RuntimeError(f"{len(found)} medians of {operation} in {json.dumps(report)[:2000]}")
    return found[0]


def main() -> None:
    name, (chunks, layers, piece, block_tokens, times) = sys.argv[1], map(int, sys.argv[2:7])
    answers, sys.stdout = sys.stdout, sys.stderr
    with tempfile.TemporaryDirectory(prefix="mcs-peer-") as made:
        directory = pathlib.Path(made)
        if name == "intree":
            peer = InTree(directory, chunks, layers, piece, times)
        else:
            peer = LMCache(directory, chunks, layers, piece, block_tokens)
        try:
            print("{}", file=answers, flush=True)
            for line in sys.stdin:
                print(json.dumps(peer.round(int(line), times)), file=answers, flush=True)
        finally:
            peer.close()


if __name__ == "__main__":
    main()
