import random
from types import SimpleNamespace

import pytest

from mooncake_sidecar.jobs import ALL_PARTS
from mooncake_sidecar.pins import PinLedger, PinSet
from mooncake_sidecar.tables import Span


class Pool:
    """Reference counts by block id."""

    def __init__(self, size=1000):
        self.blocks = [SimpleNamespace(block_id=i) for i in range(size)]
        self.refs = [0] * size
        self.touches = 0

    def touch(self, blocks):
        self.touches += 1
        for block in blocks:
            assert block.block_id != 0
            self.refs[block.block_id] += 1

    def free_blocks(self, blocks):
        for block in blocks:
            self.refs[block.block_id] -= 1
            assert self.refs[block.block_id] >= 0

    def held(self):
        return {b for b, n in enumerate(self.refs) if n}


def take(ledger, pins, job, tables, extra=(), token_len=0, first=0):
    """A step with one part; ``tables`` are ids by group, each from number ``first`` on."""
    every = ledger.blocks()
    spans = None if tables is None else [Span(first, [every[i] for i in ids]) for ids in tables]
    ledger.take(pins, job, spans, extra, token_len)
    ledger.hold()


@pytest.fixture
def pool():
    return Pool()


@pytest.fixture
def ledger(pool):
    ledger = PinLedger(2)
    ledger.bind(pool)
    return ledger


def test_each_block_once_until_the_last_rank_of_the_last_job(ledger, pool):
    pins = PinSet()
    take(ledger, pins, 1, [[1, 2]])
    take(ledger, pins, 2, [[1, 2, 3, 4]])
    assert [pool.refs[b] for b in (1, 2, 3, 4)] == [1, 1, 1, 1]
    ledger.acknowledge(1)
    ledger.acknowledge(1)
    assert pool.held() == {1, 2, 3, 4}
    ledger.acknowledge(2)
    assert pool.held() == {1, 2, 3, 4} and len(ledger) == 1
    ledger.acknowledge(2)
    assert pool.held() == set() and len(ledger) == 0


def test_the_null_block_is_never_held(ledger, pool):
    take(ledger, PinSet(), 1, [[0, 5, 0]], [0])
    assert pool.held() == {5}


def test_blocks_that_left_the_table_go_with_their_last_job(ledger, pool):
    pins = PinSet()
    take(ledger, pins, 1, [[1, 2, 3]])
    take(ledger, pins, 2, [[0, 2, 3, 4]])  # a window moved on
    assert pool.held() == {1, 2, 3, 4}
    ledger.acknowledge(1, 2)
    assert pool.held() == {2, 3, 4}
    ledger.acknowledge(2, 2)
    assert pool.held() == set()


def test_what_a_step_adds_is_held_at_once_and_together(ledger, pool):
    one, two = PinSet(), PinSet()
    every = ledger.blocks()
    ledger.take(one, 1, [Span(0, every[1:4])], [7])
    ledger.take(two, 1, [Span(0, every[2:5])])
    assert pool.touches == 0
    ledger.hold()
    assert pool.touches == 1 and [pool.refs[b] for b in (1, 2, 3, 4, 7)] == [1, 2, 2, 1, 1]
    ledger.hold()
    assert pool.touches == 1
    ledger.acknowledge(1, 2)
    assert pool.held() == set()


def test_a_table_that_begins_later_lets_go_of_what_lies_before(ledger, pool):
    pins = PinSet()
    take(ledger, pins, 1, [[1, 2], [8, 9]])
    take(ledger, pins, 2, [[1, 2, 3], [8, 9]])
    take(ledger, pins, 3, [[3, 4], [0, 9]], first=2)  # the first job was acknowledged meanwhile
    assert pool.held() == {1, 2, 3, 4, 8, 9} and max(pool.refs) == 1
    ledger.acknowledge(1, 2)
    ledger.acknowledge(2, 2)
    assert pool.held() == {3, 4, 9}
    ledger.acknowledge(3, 2)
    assert pool.held() == set()


def test_the_same_blocks_under_other_numbers_are_no_growth(ledger, pool):
    pins = PinSet()
    take(ledger, pins, 1, [[1, 2]])
    take(ledger, pins, 2, [[1, 2, 3]], first=1)
    ledger.acknowledge(1, 2)
    assert pool.held() == {1, 2, 3} and max(pool.refs) == 1
    ledger.acknowledge(2, 2)
    assert pool.held() == set()


def test_ids_whose_bytes_meet_in_zeros_are_no_null_block(ledger, pool):
    span = Span(0, [SimpleNamespace(block_id=block) for block in (256, 65536)])  # 00 01 00 00, 00 00 01 00
    assert b"\0\0\0\0" in span.ids and list(span.real()) == list(span.blocks)
    assert list(Span(0, [pool.blocks[i] for i in (0, 5, 0)]).real(after=1)) == [pool.blocks[5]]


def test_jobs_acknowledged_out_of_order(ledger, pool):
    pins = PinSet()
    take(ledger, pins, 1, [[1, 2]])
    take(ledger, pins, 2, [[0, 2]])
    ledger.acknowledge(2, 2)
    assert pool.held() == {1, 2}
    ledger.acknowledge(1, 2)
    assert pool.held() == set()


def test_unknown_and_repeated_acknowledgements_change_nothing(ledger, pool):
    take(ledger, PinSet(), 1, [[1]])
    ledger.acknowledge(9)
    ledger.acknowledge(1, 2)
    ledger.acknowledge(1, 2)
    assert pool.held() == set() and len(ledger) == 0


def test_saved_is_what_every_rank_did_completely(ledger):
    pins = PinSet()
    take(ledger, pins, 1, [[1, 2]], token_len=32)
    ledger.acknowledge(1, 1)
    assert ledger.saved(pins) == 0
    ledger.acknowledge(1, 1)
    assert ledger.saved(pins) == 32
    take(ledger, pins, 2, [[3]], token_len=48)
    ledger.acknowledge(2, 1, {0})
    ledger.acknowledge(2, 1)
    assert ledger.saved(pins) == 32
    take(ledger, pins, 3, [[3]], token_len=48)
    ledger.new_era()
    assert ledger.saved(pins) == 0
    ledger.acknowledge(3, 2)
    assert ledger.saved(pins) == 0, "the job began before the loss"
    take(ledger, pins, 4, [[1, 2, 3]], token_len=48)
    ledger.acknowledge(4, 2)
    assert ledger.saved(pins) == 48


def test_a_part_that_is_lost_costs_no_other(ledger, pool):
    one, two, three = PinSet(), PinSet(), PinSet()
    for block, pins in enumerate((one, two, three), 1):
        take(ledger, pins, 1, [[block]], token_len=16 * block)
    ledger.acknowledge(1, 1, {1})
    assert pool.held() == {1, 2, 3} and ledger.saved(one) == 0
    ledger.acknowledge(1, 1, {2})
    assert pool.held() == set() and len(ledger) == 0
    assert [ledger.saved(pins) for pins in (one, two, three)] == [16, 0, 0]
    take(ledger, one, 2, [[1]], token_len=32)
    take(ledger, two, 2, [[2]], token_len=32)
    ledger.acknowledge(2, 1, {ALL_PARTS})
    ledger.acknowledge(2, 1)
    assert [ledger.saved(pins) for pins in (one, two)] == [16, 0]


def test_a_job_that_is_not_sent_holds_nothing(ledger, pool):
    pins = PinSet()
    take(ledger, pins, 1, [[1]])
    take(ledger, pins, 2, [[1, 2]], token_len=32)
    ledger.drop(2)
    assert pool.held() == {1, 2} and ledger.saved(pins) == 0
    ledger.acknowledge(1, 2)
    assert pool.held() == set() and len(ledger) == 0


def test_random_histories_against_a_naive_model():
    """A block must be held while a job that names it is outstanding, and nothing must be held without jobs."""
    for seed in range(300):
        rng = random.Random(seed)
        pool, ledger = Pool(), PinLedger(1)
        ledger.bind(pool)
        requests = [PinSet() for _ in range(3)]
        tables = [[[], []] for _ in requests]
        outstanding = {}
        job = 0
        for _ in range(60):
            r = rng.randrange(3)
            if rng.random() < 0.6:
                job += rng.random() < 0.7 or job not in outstanding  # else another part of the last one
                for table in tables[r]:
                    table += [rng.randrange(1, 60) for _ in range(rng.randrange(3))]
                    if table and rng.random() < 0.3:
                        table[rng.randrange(len(table))] = rng.choice([0, rng.randrange(1, 60)])
                extra = [rng.randrange(60) for _ in range(rng.randrange(2))]
                snapshot = [list(table) for table in tables[r]]
                take(ledger, requests[r], job, snapshot, extra)
                outstanding[job] = outstanding.get(job, set()) | {*snapshot[0], *snapshot[1], *extra} - {0}
            elif outstanding:
                done = rng.choice(list(outstanding))
                ledger.acknowledge(done)
                del outstanding[done]
            needed = set().union(*outstanding.values())
            assert needed <= pool.held(), seed
        for done in outstanding:
            ledger.acknowledge(done)
        assert pool.held() == set() and not any(p.groups or p.leaving for p in requests), seed
