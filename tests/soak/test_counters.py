"""What a daemon counted before it was killed is not lost."""

from harness.client import Metrics
from harness.daemons import LOOKUPD
from soak.counters import Counters

from .test_remains import Pages

PAGE = """
mooncake_sidecar_store_removed_chunks_total{reason="evicted",tier="memory"} %d
mooncake_sidecar_store_removed_chunks_total{reason="reset",tier="memory"} 1000
mooncake_sidecar_store_removed_chunks_total{reason="evicted",tier="disk"} 1000
mooncake_sidecar_store_migrated_chunks_total{direction="down",result="written"} %d
mooncake_sidecar_store_migrated_chunks_total{direction="down",result="lost"} 1000
mooncake_sidecar_store_promoted_bytes_total %d
"""


def test_lives_are_summed():
    counters = Counters()
    assert counters.totals() == {"evicted": 0, "demoted": 0, "promoted bytes": 0}
    counters.take(7, Metrics(PAGE % (1, 2, 3)))
    counters.take(7, Metrics(PAGE % (4, 5, 6)))
    counters.take(8, Metrics(PAGE % (10, 20, 30)))
    assert counters.totals() == {"evicted": 14, "demoted": 25, "promoted bytes": 36}


class Double:
    """A cell whose lookupd has this process id, or none when it is None, until `then` takes its place."""

    def __init__(self, directory, pid, then=None):
        self.directory, self.daemons, self._pids = directory, self, [pid, then or pid]

    def running(self):
        pid = self._pids.pop(0) if len(self._pids) > 1 else self._pids[0]
        return {1: "/bin/mooncake-worker --device host-0"} | ({pid: "/bin/mooncake-lookupd --runtime-dir x"} if pid else {})


def test_a_running_daemon_is_asked(tmp_path, monkeypatch):
    monkeypatch.setattr("soak.counters.ANSWER_LIMIT_S", 60.0)  # this one is not stopped
    counters = Counters()
    pages = Pages(tmp_path, {LOOKUPD: PAGE % (1, 2, 3)})
    try:
        counters.sample(Double(tmp_path, 7))
        counters.sample(Double(tmp_path, None))
        counters.sample(Double(tmp_path, 8, then=9))  # whose page it was is not known
    finally:
        pages.close()
    counters.sample(Double(tmp_path, 10))  # it does not answer
    assert counters.totals() == {"evicted": 1, "demoted": 2, "promoted bytes": 3}
