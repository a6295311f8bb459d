"""vLLM's own lookup servers on a real mooncake_master that has the asked chunks: one for each tensor-parallel size.

    python intree.py SOCKET_DIRECTORY HASHES HASH_BYTES OBJECT_BYTES SIZE...

The connector is vLLM's, built as an engine builds it, without a model. A server for several ranks is the same worker told so: it asks for
the keys of all ranks. Then prints how others reach the master and what its keys begin with, and serves until it is ended.
"""

from __future__ import annotations

import copy
import json
import os
import pathlib
import signal
import sys
import tempfile
from types import SimpleNamespace

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "bench" / "hooks")]

import rig  # noqa: E402
from harness import mooncake  # noqa: E402
from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store.data import PoolKey  # noqa: E402
from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store.worker import LookupKeyServer  # noqa: E402

BATCH = 1024


def ranks(worker, size: int):
    """The worker as the first of that many ranks."""
    ranked = copy.copy(worker)
    ranked.tp_size = size
    ranked._init_lookup_key_prefixes()
    return ranked


def serve(worker, size: int) -> LookupKeyServer:
    ranked = ranks(worker, size)
    config = SimpleNamespace(
        kv_transfer_config=SimpleNamespace(kv_connector_extra_config={"lookup_rpc_port": size}),
        parallel_config=SimpleNamespace(data_parallel_index=0),
    )
    assert all(len(prefixes) == size for prefixes in ranked._lookup_key_prefixes), ranked._lookup_key_prefixes
    return LookupKeyServer(ranked, config)


def store(worker, size: int, hashes: list[bytes], length: int) -> None:
    """Objects of so many bytes under the keys of all ranks."""
    ranked = ranks(worker, size)
    prefixes = ranked._lookup_key_prefixes[0]
    for at in range(0, len(hashes), BATCH):
        for prefix in prefixes:
            keys = [PoolKey.build_key_string(prefix, h.hex()) for h in hashes[at : at + BATCH]]
            if failed := worker.store.put_batch(keys, [bytes(length)] * len(keys)):
                raise SystemExit(f"mooncake put_batch: {failed}")


def main() -> None:
    base, file, length = sys.argv[1], sys.argv[2], int(sys.argv[3])
    object_bytes = int(sys.argv[4])
    sizes = [int(arg) for arg in sys.argv[5:]]
    blob = pathlib.Path(file).read_bytes()
    hashes = [blob[i : i + length] for i in range(0, len(blob), length)]
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        with mooncake.Master(scratch / "mooncake", segment_bytes=512 << 20) as master:
            os.environ.update(master.environment)
            rig.start_process(scratch)
            system = rig.System("MooncakeStoreConnector", None, rig.write_model(scratch), rig.Case(16, False, False))
            worker = system.worker.connector_worker
            store(worker, max(sizes), hashes, object_bytes)
            servers = [serve(worker, size) for size in sizes]
            print(f"in-tree server is ready, {len(servers)} sockets in {base}", flush=True)
            key_space = worker._lookup_key_prefixes[0][0].partition("@tp_rank:")[0]
            print(json.dumps({"config": str(master.config_path), "key_space": key_space}), flush=True)
            signal.sigwait({signal.SIGTERM, signal.SIGINT})
    os._exit(0)  # the servers' threads wait for questions for ever


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    main()
