"""Turning lookups and jobs into the operations that ``stats`` collects."""

from collections.abc import Sequence

from mooncake_sidecar import messages as msg
from mooncake_sidecar import stats
from mooncake_sidecar.link import Outcome

# Reasons of a result that speak of single chunks: the job as such was done.
_SOME_CHUNKS = frozenset(("absent", "corrupt", "no_space", "put_refused", "put_void", "underway"))


class Lookups:
    """Takes the lookup client's questions. A key is one chunk of one group."""

    def __init__(self, into: stats.SidecarStats, block_tokens: Sequence[int]) -> None:
        self._into = into
        self._block_tokens = block_tokens

    def __call__(self, seconds: float, tokens: int, answered: bool) -> None:
        keys = sum(tokens // block for block in self._block_tokens)
        if answered:
            self._into.record(stats.LOOKUP, seconds, keys)
        else:
            self._into.record(stats.LOOKUP, seconds, keys, 0, stats.ERROR, keys)


class Jobs:
    """Takes a rank's outcomes. A key is one chunk's shard of that rank.

    A store is two operations, as in the in-tree connector: the question of what
    is missing, and the transfer of it, if anything is. The seconds are the
    daemon's, without the wait for the job's turn.
    """

    def __init__(self, into: stats.SidecarStats) -> None:
        self._into = into

    def __call__(self, outcome: Outcome) -> None:
        result = outcome.result
        if outcome.status != msg.STATUS_OK:
            self._into.add(f"{outcome.kind}s_{outcome.status}")
        load = outcome.kind == msg.KIND_LOAD
        if result is None:  # the daemon died, or refused the frame
            self._into.record(stats.LOAD_GET if load else stats.SAVE_PUT, outcome.seconds, 0, 0, stats.ERROR)
            return
        if result.asked <= 0:
            return  # nothing was to be done, or nothing was tried
        failed = max(0, result.asked - result.existing - result.chunks)
        status = stats.OK
        if outcome.status != msg.STATUS_OK:
            status = stats.PARTIAL if result.reason in _SOME_CHUNKS else stats.ERROR
        asking, moving = result.ask_us / 1e6, result.move_us / 1e6
        if load:
            self._into.record(stats.LOAD_GET, asking + moving, result.asked, result.bytes, status, failed)
            return
        if result.move_us == 0 and result.chunks == 0 and status == stats.ERROR:  # it was the question that failed
            self._into.record(stats.SAVE_EXISTS, asking, result.asked, 0, status, result.asked)
            return
        self._into.record(stats.SAVE_EXISTS, asking, result.asked)
        if wanted := result.asked - result.existing:
            self._into.record(stats.SAVE_PUT, moving, wanted, result.bytes, status, failed)
