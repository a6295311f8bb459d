"""Asks a lookup socket with vLLM's own LookupKeyClient, unmodified.

    VLLM_RPC_BASE_PATH=DIR python intree_client.py HASH_BYTES TOKENS:HEX ... [reset]

Prints one JSON list: for a lookup [hit, [[group, tokens], ...]], for a reset a
boolean.
"""

import json
import sys
from types import SimpleNamespace

from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store.worker import LookupKeyClient


def main() -> None:
    config = SimpleNamespace(
        kv_transfer_config=SimpleNamespace(kv_connector_extra_config={"lookup_rpc_port": 7}),
        parallel_config=SimpleNamespace(data_parallel_index=3),
    )
    client = LookupKeyClient(config)
    hash_bytes, answers = int(sys.argv[1]), []
    for number, question in enumerate(sys.argv[2:]):
        if question == "reset":
            answers.append(client.reset())
            continue
        tokens, blob = question.split(":")
        data = bytes.fromhex(blob)
        hashes = [data[i : i + hash_bytes] for i in range(0, len(data), hash_bytes)]
        result = client.lookup(f"req-{number}", int(tokens), hashes)
        answers.append([result.hit_length, [[b.group_id, b.num_tokens] for b in result.tail_key_boundaries]])
    client.close()
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
