"""A run to which something never came is void; what the engine counted is what grew."""

import pytest
from harness.client import Metrics
from soak import plan
from soak.tally import DISK_KINDS, KINDS, PLAIN_KINDS, SLOW_KINDS, Tally

ALL = KINDS + SLOW_KINDS + DISK_KINDS

PAGE = """
vllm:num_preemptions_total{engine="0"} %d
vllm:external_prefix_cache_hits_total{engine="0"} %d
vllm:mooncake_store_operation_total{operation="load_get",status="ok"} %d
vllm:mooncake_store_operation_total{operation="load_get",status="error"} %d
vllm:mooncake_store_operation_failed_keys_total{operation="load_get",status="error"} %d
vllm:mooncake_store_operation_keys_total{operation="save_put",status="ok"} %d
"""


def test_counts_since_the_beginning():
    tally = Tally()
    begin = Metrics(PAGE % (10, 10, 10, 10, 10, 10))
    for now in (Metrics(PAGE % (11, 11, 11, 11, 11, 11)), Metrics(PAGE % (15, 266, 13, 12, 14, 30))):
        tally.engine(begin, now)
    counts = tally.summary()["counts"]
    assert counts == {"preempted": 5, "hit tokens": 256, "loads": 5, "retries": 2, "reported blocks": 4, "stored keys": 20}


def test_what_never_came_is_named():
    leg = plan.leg(1, "sliding", disk=True, slow=True, seconds=180)
    for absent in (None, *ALL):
        tally = Tally()
        for kind in ALL:
            tally.add(kind, kind != absent)
        assert tally.missing(leg) == ([absent] if absent else [])


@pytest.mark.parametrize(("slow", "disk"), [(False, False), (True, False), (False, True)])
def test_what_need_not_come(slow, disk):
    """Without slowed copies no load need fail, and without a disk tier nothing goes there."""
    tally = Tally()
    for kind in KINDS + SLOW_KINDS * slow + DISK_KINDS * disk:
        tally.add(kind)
    assert tally.missing(plan.leg(1, "sliding", disk, slow, 180)) == []


def test_without_a_connector_there_are_no_daemons():
    tally, leg = Tally(), plan.leg(1, "sliding", True, True, 180).without_connector()
    assert tally.missing(leg) == list(PLAIN_KINDS)
    assert not leg.strikes and {reset.kind for reset in leg.resets} == {"own", "preempting"}


def test_what_lookupd_has_counted_in_all():
    tally = Tally()
    tally.lookupd({"evicted": 4, "demoted": 5, "promoted bytes": 6})
    tally.lookupd({"evicted": 5, "demoted": 5, "promoted bytes": 6})
    assert tally.summary()["counts"] == {"evicted": 5, "demoted": 5, "promoted bytes": 6}


def test_a_refused_reset_is_none():
    tally = Tally()
    tally.add("refused own")
    assert "reset own" in tally.missing(plan.leg(1, "sliding", False, True, 180))
