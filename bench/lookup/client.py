"""Asks lookup sockets with vLLM's own LookupKeyClient, unmodified, server by server in turn, and times it here.

Reads a script from standard input (see process.go), prints {server: {question: [nanoseconds, ...]}} on one line.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from types import SimpleNamespace

from vllm import envs
from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store import worker


def connect(base: str, port: int) -> worker.LookupKeyClient:
    config = SimpleNamespace(
        kv_transfer_config=SimpleNamespace(kv_connector_extra_config={"lookup_rpc_port": port}),
        parallel_config=SimpleNamespace(data_parallel_index=0),
    )
    worker.envs = SimpleNamespace(VLLM_RPC_BASE_PATH=base)
    try:
        return worker.LookupKeyClient(config)
    finally:
        worker.envs = envs


def main() -> None:
    script = json.load(sys.stdin)
    size = script["hash_bytes"]
    questions = []
    for q in script["questions"]:
        blob = open(q["file"], "rb").read()
        questions.append((q["name"], q["port"], q["tokens"], [blob[i : i + size] for i in range(0, len(blob), size)], q["want"]))
    clients = {(s, port): connect(base, port) for s, base in script["bases"].items() for port in {q[1] for q in questions}}
    taken = {s: {q[0]: [] for q in questions} for s in script["bases"]}
    gc.disable()
    for turn in range(script["warm"] + script["rounds"]):
        for name, port, tokens, hashes, want in questions:
            for server in script["bases"]:
                begin = time.perf_counter_ns()
                result = clients[server, port].lookup(f"request-{turn}", tokens, hashes)
                spent = time.perf_counter_ns() - begin
                if result.hit_length != want:
                    raise SystemExit(f"{server} answers {name} with {result.hit_length} tokens, want {want}")
                if turn >= script["warm"]:
                    taken[server][name].append(spent)
        gc.collect()
    print(json.dumps(taken))


if __name__ == "__main__":
    main()
