"""The scheduler's side of an engine, without vLLM: registers with the daemons that it finds and asks for one lookup.

Run by the tests of this directory as another user than the daemons'. Prints one
line of JSON: where it looked, the lookup socket, and whether it was answered.
"""

import json
import sys
import threading

from mooncake_sidecar import config, daemons, paths
from mooncake_sidecar import messages as msg
from mooncake_sidecar.lookup import LookupClient
from mooncake_sidecar.registrar import Registrar

PATIENCE_S = 10
ENGINE = "0123456789abcdef"
# One group of full attention: name, tokens a block, and 256 bytes a shard.
SPEC = msg.NamespaceSpec(
    model="m", revision="", fingerprint="", cache_prefix="", dtype="bfloat16", layout="LBHNC/rank_local",
    hash_algorithm="sha256", hash_bytes=32, hash_block_tokens=16, scheduler_block_tokens=16, hit_alignment_tokens=0,
    use_eagle=False, retention_tokens=-1, tp=1, pp=1, pcp=1, dcp=1,
    groups=[msg.GroupSpec("full_attention", 16, 0, False, "full_attention", 256, 1)],
)  # fmt: skip


def main() -> None:
    settings = config.parse({})
    directory = paths.runtime_dir(settings.runtime_dir)
    wanted = [daemons.lookupd(directory, settings), daemons.worker(directory, "host-0", settings)]
    daemons.ensure(wanted, directory, settings, PATIENCE_S, threading.Event())
    client = LookupClient(1000 * PATIENCE_S, False)
    path = paths.lookup_path(paths.lookup_base(directory, "/tmp"), 0, 0)
    registrar = Registrar(client, SPEC, wanted[0].socket, path, ENGINE, 1, lambda stop: None)
    registrar.start()
    registrar.first_attempt.wait(PATIENCE_S)
    hit = client.ask("request", 64, [bytes([i]) * 32 for i in range(4)])
    told = {"directory": directory, "up": client.up, "path": path, "tokens": hit.tokens, "asked": client.counters.lookups}
    json.dump(told | {"unanswered": client.counters.timeouts + client.counters.skipped}, sys.stdout)
    registrar.stop()
    client.close()


if __name__ == "__main__":
    main()
