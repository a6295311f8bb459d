"""Asks lookup servers in turn and times it here: with vLLM's own LookupKeyClient, unmodified, and ours with the shim's client too.

Reads a script from standard input (see process.go), prints {client/server: {question: [nanoseconds, ...]}} on one line.
"""

from __future__ import annotations

import gc
import json
import pathlib
import socket
import subprocess
import sys
import time
from types import SimpleNamespace

from vllm import envs
from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store import worker

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent / "pyshim"))

from mooncake_sidecar.channel import Channel  # noqa: E402
from mooncake_sidecar.lookup import LookupClient  # noqa: E402


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
    ports = {q[1] for q in questions}
    clients = {(server, port): connect(base, port) for server, base in script["bases"].items() for port in ports}
    groups = [[("vllm/" + server, {port: asked(clients[server, port]) for port in ports}) for server in script["bases"]]]
    if script["channels"]:
        own = ("shim/ours", {int(port): shim(fd, script["strides"][port], (script["after"] or {}).get(port)) for port, fd in script["channels"].items()})
        if script["apart"]:
            groups.append([own])
        else:
            groups[0].append(own)
    gc.disable()
    taken = {}
    for ways in groups:
        taken |= ask_by_turns(script, questions, ways)
    print(json.dumps(taken))


def ask_by_turns(script: dict, questions: list[tuple], ways: list[tuple]) -> dict[str, dict[str, list[int]]]:
    """Nanoseconds by way and question, of every way asking every question in turn."""
    taken = {way: {q[0]: [] for q in questions} for way, _ in ways}
    for turn in range(script["warm"] + script["rounds"]):
        time.sleep(script["pause_s"])
        for name, port, tokens, hashes, want in questions:
            for way, ask in ways:
                if script["prime"] and not want:
                    ask[port](f"request-{turn}", tokens, hashes)
                spent, hit = ask[port](f"request-{turn}", tokens, hashes)
                # What a busy server is asked for the first time it may not have found out within its own deadline.
                if hit != want and turn >= script["warm"]:
                    raise SystemExit(f"{way} answers {name} with {hit} tokens after {spent / 1e6:.0f} ms, want {want}")
                if turn >= script["warm"]:
                    taken[way][name].append(spent)
        gc.collect()
    return taken


def asked(client: worker.LookupKeyClient):
    def ask(request: str, tokens: int, hashes: list[bytes]) -> tuple[int, int]:
        begin = time.perf_counter_ns()
        result = client.lookup(request, tokens, hashes)
        return time.perf_counter_ns() - begin, result.hit_length

    return ask


def shim(descriptor: int, stride: int, after: list[str] | None):
    """The shim's client on a channel that the daemon has the other end of; ``stride`` is the daemon's, ``after`` is run when a hit's lease is released."""
    client = LookupClient(10_000, asynchronous=False)
    client.mark_up(Channel(socket.socket(fileno=descriptor)), stride)

    def ask(request: str, tokens: int, hashes: list[bytes]) -> tuple[int, int]:
        begin = time.perf_counter_ns()
        hit = client.ask(request, tokens, hashes)
        spent = time.perf_counter_ns() - begin
        client.new_step()
        client.release([request])
        if hit is None or client.counters.malformed or not client.up:
            raise SystemExit(f"the shim's client has no answer: {client.counters}")
        if after and hit.tokens:
            subprocess.run(after, check=True)
        return spent, hit.tokens

    return ask


if __name__ == "__main__":
    main()
