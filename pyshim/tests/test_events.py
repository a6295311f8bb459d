"""lookupd's events on their way through vLLM: the ledger, and following a stream that ends and begins anew."""

import random
import time
from types import SimpleNamespace

import msgspec
import pytest
import zmq
from vllm.config import KVEventsConfig
from vllm.distributed.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KVEventBatch

from mooncake_sidecar import events


def stored(*hashes, medium="CPU", group=0):
    return BlockStored(
        block_hashes=list(hashes), parent_block_hash=None, token_ids=[], block_size=0, lora_id=None, medium=medium, lora_name=None, group_idx=group
    )


def removed(*hashes, medium="CPU", group=0):
    return BlockRemoved(block_hashes=list(hashes), medium=medium, group_idx=group)


def ledger():
    return events.Ledger([3, 5], ["full_attention", "mamba"])


def told(taken):
    """(stored, medium, group, hash) of events."""
    return {(isinstance(e, BlockStored), e.medium, e.group_idx, h) for e in taken for h in e.block_hashes}


def test_groups_are_the_engines_and_nothing_is_told_twice():
    book = ledger()
    book.apply([stored(1, 2), stored(1, medium="STORAGE", group=1), stored(9, group=2)])
    taken = book.take()
    assert told(taken) == {(True, "CPU", 3, 1), (True, "CPU", 3, 2), (True, "STORAGE", 5, 1)}
    assert {e.kv_cache_spec_kind for e in taken} == {"full_attention", "mamba"}
    book.apply([stored(1, 2)])
    assert book.take() == []
    book.apply([removed(2), removed(7)])
    assert told(book.take()) == {(False, "CPU", 3, 2)}


def test_a_stream_that_begins_anew_is_told_by_what_differs():
    book = ledger()
    book.apply([stored(1, 2, 3)])
    book.take()
    # In batches of their own: what is there all the time is not told of as gone in between.
    book.apply([AllBlocksCleared()])
    assert book.take() == []
    book.apply([stored(2, 4)])
    assert told(book.take()) == {(True, "CPU", 3, 4)}
    book.apply([removed(2)])  # while the announcement goes on
    assert told(book.take()) == {(False, "CPU", 3, 2)}
    book.apply([])
    assert told(book.take()) == {(False, "CPU", 3, 1), (False, "CPU", 3, 3)}
    book.apply([])
    assert book.take() == []


def test_an_announcement_that_begins_before_the_last_one_has_ended():
    book = ledger()
    book.apply([stored(1, 2, 3)])
    book.take()
    book.apply([AllBlocksCleared(), stored(1, 4), AllBlocksCleared(), stored(2)])
    book.apply([])
    assert told(book.take()) == {(False, "CPU", 3, 1), (False, "CPU", 3, 3)}
    assert len(book) == 1


def test_an_announcement_whose_end_is_lost_ends(monkeypatch):
    book = ledger()
    book.apply([stored(1, 2)])
    book.take()
    book.apply([AllBlocksCleared(), stored(1)])
    monkeypatch.setattr(events, "_DOUBT_S", -1)
    book.apply([stored(5)])
    assert told(book.take()) == {(False, "CPU", 3, 2), (True, "CPU", 3, 5)}


class Clock:
    """The clock of the module; it is as much ahead as is said."""

    def __init__(self, monkeypatch):
        self.ahead = 0.0
        monkeypatch.setattr(events, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + self.ahead, sleep=time.sleep))


def test_an_announcement_may_take_its_time(monkeypatch):
    monkeypatch.setattr(events, "_DOUBT_S", 1000.0)
    clock = Clock(monkeypatch)
    book = ledger()
    book.apply([stored(1, 2, 3)])
    book.take()
    book.apply([AllBlocksCleared()])
    for block_hash in (1, 2):
        clock.ahead += 0.7 * events._DOUBT_S
        book.apply([stored(block_hash)])
        assert book.take() == []
    clock.ahead += 0.7 * events._DOUBT_S
    book.apply([])
    assert told(book.take()) == {(False, "CPU", 3, 3)}


def test_a_step_waits_for_nobody():
    book = ledger()
    book.apply([stored(1)])
    with book._lock:
        assert book.take() == []
    assert told(book.take()) == {(True, "CPU", 3, 1)}


def test_the_ledger_is_free_again_after_a_bounded_part():
    book = ledger()
    lock, taken = book._lock, []

    class Between:
        def __enter__(self):
            lock.acquire()

        def __exit__(self, *_):
            lock.release()
            book._lock = lock
            taken.append(len(told(book.take())))
            book._lock = self

    book._lock = Between()
    book.apply([stored(*range(3000))])
    book.apply([AllBlocksCleared()])
    book.apply([])
    book._lock = lock
    assert sum(taken) == 6000
    assert max(taken) <= events._SLICE


def test_a_step_takes_a_bounded_part():
    book = ledger()
    book.apply([stored(*range(events.MOST_A_STEP + 10))])
    assert [len(told(book.take())) for _ in range(3)] == [events.MOST_A_STEP, 10, 0]


def test_who_applies_what_is_told_knows_what_is_stored():
    seed = random.randrange(1 << 32)
    print("seed", seed)
    draw = random.Random(seed)
    book, truth, doubt, known = ledger(), set(), set(), set()
    for _ in range(3000):
        block = (draw.choice(["CPU", "STORAGE"]), draw.randrange(2), draw.randrange(30))
        match draw.randrange(14):
            case 0:
                doubt |= truth
                truth.clear()
                book.apply([AllBlocksCleared()])
            case 1 | 2:
                for step, medium, group, block_hash in told(book.take()):
                    assert ((medium, group, block_hash) in known) != step
                    (known.add if step else known.discard)((medium, group, block_hash))
                assert known == {(m, (3, 5)[g], h) for m, g, h in truth | doubt}
            case 12:
                doubt.clear()
                book.apply([])
            case 3 | 4 | 5:
                truth.discard(block)
                doubt.discard(block)
                book.apply([removed(block[2], medium=block[0], group=block[1])])
            case _:
                truth.add(block)
                doubt.discard(block)
                book.apply([stored(block[2], medium=block[0], group=block[1])])


class Publisher:
    """A lookupd's sockets: a PUB, and a ROUTER that has what was published."""

    def __init__(self, endpoint, replay):
        self.context = zmq.Context()
        self.pub, self.router = self.context.socket(zmq.PUB), self.context.socket(zmq.ROUTER)
        for bound, wanted in ((self.pub, endpoint), (self.router, replay)):
            bound.ipv6 = "[" in wanted
            bound.bind(wanted)
        self.endpoint, self.replay = (bound.last_endpoint.rstrip(b"\0").decode() for bound in (self.pub, self.router))
        self.kept = []
        self.asked = []  # from which number on
        self.answers = None  # so many are answered; None: all
        self.part = None  # so many batches are all that one is sent, without the end: its queue is full

    def publish(self, number, *batch, live=True):
        message = (b"topic", number.to_bytes(8, "big"), msgspec.msgpack.encode(KVEventBatch(ts=1.0, events=list(batch))))
        self.kept.append(message)
        if live:
            self.pub.send_multipart(message)

    def serve(self):
        """Answer who asks for what was missed, a few times: somebody may ask again and again."""
        for _ in range(4):
            if not self.router.poll(20):
                return
            who, _, start, topic = self.router.recv_multipart()
            assert topic == b"topic"
            self.asked.append(int.from_bytes(start, "big"))
            if self.answers is not None and len(self.asked) > self.answers:
                continue
            for message in [m for m in self.kept if m[1] >= start][: self.part]:
                self.router.send_multipart((who, b"", *message))
            if self.part is None:
                self.router.send_multipart((who, b"", b"", (-1).to_bytes(8, "big", signed=True), b""))

    def until(self, done):
        deadline = time.monotonic() + 30
        while not done():
            assert time.monotonic() < deadline
            self.serve()

    def close(self):
        self.context.destroy(linger=0)


@pytest.fixture()
def publisher(tmp_path_factory):
    directory = tmp_path_factory.mktemp("e")
    made = Publisher(f"ipc://{directory}/e", f"ipc://{directory}/r")
    yield made
    made.close()


def test_a_follower_has_what_was_before_it_and_what_it_missed(publisher):
    book = ledger()
    follower = events.Follower(book)
    publisher.publish(100, AllBlocksCleared(), stored(1, 2))
    follower.follow(publisher.endpoint, publisher.replay, "topic")
    try:
        publisher.until(lambda: len(book) == 2)
        publisher.publish(101, stored(3), live=False)
        publisher.publish(102, stored(4))
        publisher.until(lambda: len(book) == 4)
        publisher.publish(5000, AllBlocksCleared(), stored(7))  # another lookupd
        publisher.until(lambda: len(book) == 1)
    finally:
        follower.close()


def test_what_an_unfinished_answer_lacks_is_asked_for_again(publisher, monkeypatch):
    monkeypatch.setattr(events, "_REPLAY_S", 0.05)
    monkeypatch.setattr(events, "_CHECKS_S", (0.01,))
    book = ledger()
    follower = events.Follower(book)
    publisher.part = 1
    publisher.publish(100, AllBlocksCleared(), stored(1))
    for number in range(101, 106):
        publisher.publish(number, stored(number), live=False)
    follower.follow(publisher.endpoint, publisher.replay, "topic")
    try:
        publisher.until(lambda: len(book) > 0)
        publisher.publish(106, stored(106))  # behind a gap that one answer does not fill
        publisher.until(lambda: len(book) == 7)
    finally:
        follower.close()


def test_an_answer_takes_as_long_as_it_takes(publisher, monkeypatch):
    monkeypatch.setattr(events, "_REPLAY_S", 1000.0)
    clock = Clock(monkeypatch)
    book = ledger()
    follower = events.Follower(book)
    real = book.apply

    def slow(batch):
        clock.ahead += 0.7 * events._REPLAY_S
        real(batch)

    monkeypatch.setattr(book, "apply", slow)
    publisher.answers = 1
    publisher.publish(100, AllBlocksCleared(), live=False)
    for number in range(101, 106):
        publisher.publish(number, stored(number), live=False)
    follower.follow(publisher.endpoint, publisher.replay, "topic")
    try:
        publisher.until(lambda: len(book) == 5)
    finally:
        follower.close()


def test_who_does_not_answer_is_not_pressed(publisher, monkeypatch):
    """Batches behind a gap are no reason to ask at once, and nothing is passed on that would hide the gap."""
    monkeypatch.setattr(events, "_REPLAY_S", 0.01)
    monkeypatch.setattr(events, "_CHECKS_S", (0.01, 0.01, 3600.0))
    monkeypatch.setattr(events, "_SOON_S", 3600.0)
    warned = []
    monkeypatch.setattr(events.logger, "warning", lambda text, *args: warned.append(text % args))
    book = ledger()
    follower = events.Follower(book)
    publisher.answers = 0
    taken = []
    monkeypatch.setattr(events._Stream, "_take_live", lambda *args, real=events._Stream._take_live: (real(*args), taken.append(args[2])))
    follower.follow(publisher.endpoint, publisher.replay, "topic")
    try:
        publisher.until(lambda: warned)
        for number in range(100, 10_000, 2):
            publisher.publish(number, stored(number))
            publisher.serve()
            if len(taken) > 5:
                break
        assert len(taken) > 5
    finally:
        follower.close()
    publisher.serve()
    assert len(publisher.asked) <= 3
    assert len(book) == 0
    assert len(warned) == 1 and publisher.replay in warned[0]


def test_who_answers_again_is_asked_when_there_is_something(publisher, monkeypatch):
    monkeypatch.setattr(events, "_REPLAY_S", 0.05)
    monkeypatch.setattr(events, "_CHECKS_S", (0.01, 3600.0))
    monkeypatch.setattr(events, "_SOON_S", 0.01)
    warned = []
    monkeypatch.setattr(events.logger, "warning", lambda text, *args: warned.append(text % args))
    book = ledger()
    follower = events.Follower(book)
    publisher.answers = 0
    follower.follow(publisher.endpoint, publisher.replay, "topic")
    number = 101

    def again():
        nonlocal number
        publisher.publish(number, stored(3))
        number += 1
        return len(book) == 3

    try:
        publisher.until(lambda: warned)
        publisher.answers = None
        publisher.publish(100, AllBlocksCleared(), stored(1, 2), live=False)
        publisher.until(again)
    finally:
        follower.close()


def test_what_is_there_no_more_is_asked_for_until_it_is_announced(publisher, monkeypatch):
    monkeypatch.setattr(events, "_CHECKS_S", (0.01,))
    book = ledger()
    follower = events.Follower(book)
    publisher.publish(100, AllBlocksCleared(), stored(1))
    follower.follow(publisher.endpoint, publisher.replay, "topic")
    try:
        publisher.until(lambda: len(book) == 1)
        publisher.publish(104, stored(2))
        publisher.until(lambda: len(book) == 2)
        publisher.asked.clear()
        publisher.until(lambda: 101 in publisher.asked)
        publisher.publish(105, AllBlocksCleared(), stored(3))
        publisher.until(lambda: publisher.asked[-1] == 106)
    finally:
        follower.close()


@pytest.mark.parametrize("replay", [True, False], ids=["replay", "no replay"])
def test_an_announcement_whose_end_is_lost_ends_without_another_batch(publisher, monkeypatch, replay):
    monkeypatch.setattr(events, "_DOUBT_S", 0.05)
    book = ledger()
    follower = events.Follower(book)
    follower.follow(publisher.endpoint, publisher.replay if replay else "", "topic")
    number, known = 100, set()

    def again():
        nonlocal number
        publisher.publish(number, stored(1, 2))
        number += 1
        return len(book) == 2

    def gone():
        known.update(told(book.take()))
        return (False, "CPU", 3, 2) in known

    try:
        publisher.until(again)
        publisher.publish(number, AllBlocksCleared(), stored(1))
        publisher.until(gone)
    finally:
        follower.close()
    assert len(book) == 1


def test_a_follower_reaches_addresses_of_ipv6():
    try:
        there = Publisher("tcp://[::1]:*", "tcp://[::1]:*")
    except zmq.ZMQError as error:
        pytest.skip(f"no IPv6: {error}")
    book = ledger()
    follower = events.Follower(book)
    there.publish(100, AllBlocksCleared(), stored(1, 2))
    follower.follow(there.endpoint, there.replay, "topic")
    try:
        there.until(lambda: len(book) == 2)
    finally:
        follower.close()
        there.close()


def test_a_follower_without_a_stream_says_so_once(caplog):
    follower = events.Follower(ledger())
    with caplog.at_level("WARNING", logger="vllm.mooncake_sidecar"):
        follower.follow("", "", "")
        follower.follow("", "", "x")
    follower.close()
    assert sum("publishes no events" in r.message for r in caplog.records) <= 1


def test_what_fails_is_tried_again(publisher, monkeypatch):
    """A start that fails, and a thread that dies."""
    book = ledger()
    follower = events.Follower(book)
    publisher.publish(100, AllBlocksCleared(), stored(1, 2))
    where = (publisher.endpoint, publisher.replay, "topic")
    with monkeypatch.context() as broken:
        broken.setattr(events.threading.Thread, "start", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            follower.follow(*where)
    real, broken = events._Stream.run, [True]

    def run(stream):
        if broken.pop() if broken else False:
            raise OSError("no descriptors")
        real(stream)

    monkeypatch.setattr(events._Stream, "run", run)
    monkeypatch.setattr(events, "_AGAIN_S", 0.01)
    follower.follow(*where)
    try:
        publisher.until(lambda: len(book) == 2)
        assert not broken
    finally:
        follower.close()


def test_who_can_not_ask_for_what_was_missed_says_so(publisher, monkeypatch):
    warned = []
    monkeypatch.setattr(events.logger, "warning", lambda text, *args: warned.append(text))
    book = ledger()
    follower = events.Follower(book)
    follower.follow(publisher.endpoint, "", "topic")
    try:
        assert [t for t in warned if "no replay requests" in t] == warned != []
        deadline = time.monotonic() + 30
        for number in range(100, 10_000, 2):  # every other one is lost
            publisher.publish(number, stored(number))
            if len(warned) > 1:
                break
            assert time.monotonic() < deadline
            time.sleep(0.01)
        publisher.publish(20_000, stored(20_000))
    finally:
        follower.close()
    assert len(warned) == 2 and "were lost" in warned[1]


@pytest.mark.parametrize(("asked", "stream"), [(False, True), (True, False), (True, True)])
def test_events_are_passed_on_to_who_asks(asked, stream, make_engine, monkeypatch):
    """vLLM's own stream may be wanted without what the store holds: other engines and lookupd itself tell of that."""
    import engine

    plain = engine.vllm_config

    def with_events(*args, **kwargs):
        config = plain(*args, **kwargs)
        config.kv_events_config = KVEventsConfig(enable_kv_cache_events=stream, publisher="null")
        return config

    monkeypatch.setattr(engine, "vllm_config", with_events)
    connector = make_engine(enable_kv_events=asked).connector
    assert (connector._events is not None) == (asked and stream)
    if connector._events is not None:
        connector._events.apply([stored(1)])
        assert told(connector.take_events()) == {(True, "CPU", 0, 1)}
    assert not list(connector.take_events())
