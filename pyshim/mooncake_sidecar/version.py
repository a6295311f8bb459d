"""Which vLLM this connector works with.

It is written for 0.32. Older versions lack hooks without which it would be
unsafe or useless, so they are refused with the name of the hook; what a newer
one changed is not known, so it is warned about and tried.
"""

import logging
import re

logger = logging.getLogger("vllm.mooncake_sidecar.version")

WRITTEN_FOR = (0, 32)

# Hook of KVConnectorBase_V1 -> what it is needed for.
REQUIRED_HOOKS = {
    "bind_gpu_block_pool": "holding blocks while they are copied",
    "has_pending_push_work": "stepping on until every copy is acknowledged",
    "requires_kv_delivery": "being a cache, not a delivery",
    "get_transfer_results": "reporting requests whose load failed",
    "register_finished_partial_tail": "saving the tail of a finished request",
    "get_mem_pool_context": "sharing the CPU KV cache with the daemon",
    "get_loaded_kv_cache_group_ids": "naming the groups that a load fills",
    "get_external_cache_hit_sources": "naming the tier of a hit",
}


def missing_hook(base: type) -> str | None:
    """The first hook that ``base`` lacks, None when it has them all."""
    return next((hook for hook in REQUIRED_HOOKS if not hasattr(base, hook)), None)


def parse(version: str) -> tuple[int, int] | None:
    """(major, minor) of a version text, None for a development build without one."""
    match = re.match(r"(\d+)\.(\d+)", version)
    return (int(match[1]), int(match[2])) if match else None


def check(base: type, version: str) -> None:
    """Refuse a vLLM that is too old, warn about one that is newer.

    Raises:
        ValueError: ``base`` lacks a hook; the message names it.
    """
    written = ".".join(map(str, WRITTEN_FOR))
    if hook := missing_hook(base):
        raise ValueError(
            f"vLLM {version} is too old for mooncake_sidecar: its KVConnectorBase_V1 has no {hook} "
            f"(needed for {REQUIRED_HOOKS[hook]}). Use vLLM {written}."
        )
    found = parse(version)
    if found is not None and found > WRITTEN_FOR and found != (0, 0):
        logger.warning(
            "mooncake_sidecar is written for vLLM %s and this is %s: the connector interface may have changed",
            written,
            version,
        )
