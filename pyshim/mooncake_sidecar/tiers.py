"""Which tier a hit comes from, as vLLM's metrics name it."""

from collections.abc import Iterable

from vllm.v1.metrics.cache_hit_source import CacheHitSource

_MEMORY = 1
_SOURCES = {_MEMORY: CacheHitSource.HOST, 2: CacheHitSource.DISK, 3: CacheHitSource.P2P}


def is_far(tiers: Iterable[tuple[int, int]], begin: int, end: int) -> bool:
    """Whether any of the tokens from ``begin`` to ``end`` comes from below the node's memory.

    Args:
        tiers: (tier, tokens) of the whole hit, from its first token on; empty: host memory.
    """
    at = 0
    for tier, length in tiers:
        if tier != _MEMORY and max(at, begin) < min(at + length, end):
            return True
        at += length
    return False


def sources(
    tiers: Iterable[tuple[int, int]], local_tokens: int, hit_tokens: int, tokens: int
) -> dict[CacheHitSource, int]:
    """Tokens by source of the ``tokens`` behind the ``local_tokens`` that the engine has.

    Args:
        tiers: (tier, tokens) of the whole hit, from its first token on; empty: host memory.
        hit_tokens: length of the whole hit.
    """
    tiers = tuple(tiers)
    if not tiers:
        return {CacheHitSource.HOST: tokens}
    if sum(length for _, length in tiers) != hit_tokens:
        return {CacheHitSource.EXTERNAL_UNSPECIFIED: tokens}
    found: dict[CacheHitSource, int] = {}
    begin, end = local_tokens, local_tokens + tokens
    at = 0
    for tier, length in tiers:
        part = min(at + length, end) - max(at, begin)
        if part > 0:
            source = _SOURCES.get(tier, CacheHitSource.EXTERNAL_UNSPECIFIED)
            found[source] = found.get(source, 0) + part
        at += length
    return found
