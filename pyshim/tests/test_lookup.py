import contextlib
import random
import select
import signal
import socket
import struct
import threading
import time
import tracemalloc

import pytest

from mooncake_sidecar import lookup as lookup_module
from mooncake_sidecar.channel import MAX_FRAMES, YES, Channel, ChannelError, pack_message, split_message
from mooncake_sidecar.frames import FrameReader
from mooncake_sidecar.lookup import MISS, Hit, LookupClient, decode_answer


PATIENCE_S = 60
"""For what comes for certain, however busy the machine is."""


class Server:
    """A lookup server whose answers the test writes: ``answer(frames) -> list of replies``."""

    def __init__(self, answer):
        self.answer = answer
        self.seen = []
        self.answered = 0
        self.socks, self.threads = [], []

    def open(self):
        """Our end of a new channel, whose other end is served."""
        channel, sock = Channel.pair()
        self.socks.append(sock)
        self.threads.append(threading.Thread(target=self.run, args=(sock,)))
        self.threads[-1].start()
        return channel

    def run(self, sock):
        reader = FrameReader()
        with contextlib.suppress(OSError):
            while data := sock.recv(1 << 16):
                for body in reader.feed(data):
                    frames = split_message(body)
                    self.seen.append(frames)
                    replies = self.answer(frames)
                    self.answered += 1
                    for reply in replies:
                        sock.sendall(reply if isinstance(reply, bytes) else pack_message(reply))

    def has_seen(self, questions):
        """Waits until so many have come and were answered, as far as they are."""
        deadline = time.monotonic() + PATIENCE_S
        while self.answered < questions:
            assert time.monotonic() < deadline
            time.sleep(0.001)

    def close(self):
        for sock in self.socks:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self.threads:
            thread.join()
        for sock in self.socks:
            sock.close()


def trailer(frames, flags=0):
    return frames[5] + bytes([flags])


@pytest.fixture
def serve(monkeypatch):
    """Starts servers with a client each. The clock of an asynchronous one stands still until the test moves it."""
    monkeypatch.setattr(lookup_module, "RESET_DEADLINE_S", PATIENCE_S)
    servers, clients = [], []

    def start(answer, timeout_ms=PATIENCE_S * 1000, asynchronous=False):
        servers.append(Server(answer))
        client = LookupClient(timeout_ms, asynchronous, *([lambda: 100.0] if asynchronous else []))
        clients.append(client)
        client.mark_up(servers[-1].open())
        return client, servers[-1]

    yield start
    for client in clients:
        client.close()
    for server in servers:
        server.close()


HASHES = [bytes([i]) * 32 for i in range(4)]


def test_the_wire_format(serve):
    client, server = serve(lambda f: [[struct.pack(">III", 48, 1, 40), trailer(f)]])
    assert client.ask("req", 70, HASHES) == Hit(48, ((1, 40),))
    assert server.seen == [
        [b"lookup2", struct.pack(">I", 70), struct.pack(">H", 32), b"".join(HASHES), b"req", struct.pack(">Q", 1)]
    ]


def test_without_hashes_the_hash_length_is_zero(serve):
    client, server = serve(lambda f: [[struct.pack(">I", 0), trailer(f)]])
    assert client.ask("req", 5, []) == MISS
    assert server.seen[0][2:4] == [b"\0\0", b""]


def test_a_silent_server_costs_one_deadline_and_then_nothing(serve):
    client, _server = serve(lambda f: [], timeout_ms=20)
    downs = []
    client.on_down = lambda: downs.append(1)
    assert client.ask("a", 70, HASHES) == MISS
    assert not client.up and downs == [1] and client.counters.timeouts == 1
    for _ in range(100):
        assert client.ask("b", 70, HASHES) == MISS
    assert client.counters.skipped == 100 and client.counters.lookups == 1


def test_after_a_ping_it_asks_again_and_drops_the_late_answer(serve):
    late = []

    def answer(frames):
        if frames[0] == b"ping":
            return [[b"\1"]]
        if not late:
            late.append(frames)
            return []
        # The first question's answer arrives now, before the second's.
        return [[struct.pack(">I", 999), trailer(late[0])], [struct.pack(">I", 16), trailer(frames)]]

    client, server = serve(answer, timeout_ms=50)
    assert client.ask("a", 70, HASHES) == MISS
    server.has_seen(1)
    channel = server.open()
    channel.send(pack_message([b"ping"]))
    assert channel.await_status(PATIENCE_S)
    client._timeout_s = PATIENCE_S
    client.mark_up(channel)
    assert client.ask("a", 70, HASHES) == Hit(16)


def test_a_late_answer_on_the_same_socket_is_not_taken_for_another_request(serve):
    client, _ = serve(
        lambda f: [[struct.pack(">I", 999), struct.pack(">QB", 12345, 0)], [struct.pack(">I", 32), trailer(f)]]
    )
    assert client.ask("a", 70, HASHES) == Hit(32)


@pytest.mark.parametrize("payload", [b"\0", b"", b"abc", b"12345", b"\0" * (4 + 8 * 65)])
def test_errors_and_malformed_answers_are_misses(serve, payload):
    client, _ = serve(lambda f: [[payload, trailer(f)]])
    assert client.ask("a", 70, HASHES) == MISS
    assert client.counters.malformed == 1 and client.up


def test_answers_of_any_shape_do_not_raise(serve):
    rng = random.Random(4)

    def answer(frames):
        junk = [[rng.randbytes(rng.randrange(12)) for _ in range(rng.randrange(1, 4))] for _ in range(5)]
        return [*junk, [struct.pack(">I", 16), trailer(frames)]]

    client, _ = serve(answer)
    for i in range(100):
        assert client.ask(str(i), 70, HASHES) == Hit(16)


def test_pending_is_a_miss_to_a_synchronous_client(serve):
    client, _ = serve(lambda f: [[struct.pack(">I", 0), trailer(f, 1)]])
    assert client.ask("a", 70, HASHES) == MISS
    assert client.up


def ask_until_known(client):
    answers = [client.ask("a", 70, HASHES)]
    while answers[-1] is None:
        client._channel and select.select([client._channel._sock], [], [], PATIENCE_S)
        answers.append(client.ask("a", 70, HASHES))
    return answers


def test_an_asynchronous_client_first_answers_none(serve):
    client, server = serve(lambda f: [[struct.pack(">I", 64), trailer(f)]], asynchronous=True)
    answers = ask_until_known(client)
    assert answers[0] is None and answers[-1] == Hit(64)
    assert len(server.seen) == 1


def test_an_asynchronous_client_asks_again_while_pending(serve):
    client, server = serve(
        lambda f: [[struct.pack(">I", 64), trailer(f, 1 if len(server.seen) < 3 else 0)]], asynchronous=True
    )
    assert ask_until_known(client)[-1] == Hit(64)
    assert len(server.seen) == 3


def step_until(client, known, steps=100):
    """Steps until a poll has taken in the answer to the question before it, as ``known`` tells."""
    for _ in range(steps):
        client._channel and select.select([client._channel._sock], [], [], PATIENCE_S)
        answer = client.ask("a", 70, HASHES)
        if answer is not None or known():
            return answer
    raise AssertionError("nothing was answered")


def test_a_long_step_does_not_give_up_what_is_known_by_now(serve):
    """The first answer is pending; the next step begins when lookupd has known for long."""
    client, server = serve(
        lambda f: [[struct.pack(">I", 64), trailer(f, 1 if len(server.seen) < 2 else 0)]], asynchronous=True
    )
    now = [100.0]
    client._clock = lambda: now[0]
    assert client.ask("a", 70, HASHES) is None
    now[0] += 30.0
    assert step_until(client, lambda: False) == Hit(64)
    assert len(server.seen) == 2 and client.counters.timeouts == 0


def test_pending_for_ever_is_given_up(serve):
    client, server = serve(lambda f: [[struct.pack(">I", 64), trailer(f, 1)]], asynchronous=True)
    now = [100.0]
    client._clock = lambda: now[0]
    assert client.ask("a", 70, HASHES) is None
    assert step_until(client, lambda: len(server.seen) > 5) is None
    now[0] += lookup_module.ASYNC_DEADLINE_S
    assert step_until(client, lambda: False, 3) == MISS
    assert client.up and client.counters.timeouts == 1


def test_the_second_slow_lookup_of_a_step_is_asked_in_the_next(serve):
    """lookupd waits for half of the timeout, whatever the step has left."""
    client, server = serve(lambda f: [[struct.pack(">I", 64), trailer(f)]], timeout_ms=1000)
    now = [100.0]

    def slow(frames):
        now[0] += 0.5
        return [[struct.pack(">I", 64), trailer(frames)]]

    server.answer = slow
    client._clock = lambda: now[0]
    assert client.ask("a", 70, HASHES) == Hit(64)
    assert client.ask("b", 70, HASHES) is None and client.up and len(server.seen) == 1
    client.new_step()
    assert client.ask("b", 70, HASHES) == Hit(64) and client.counters.timeouts == 0


def test_a_discarded_request_leaves_nothing(serve):
    client, _ = serve(lambda f: [], asynchronous=True)
    assert client.ask("a", 70, HASHES) is None
    client.discard("a")
    assert not client._asked and not client._by_sequence


def test_reset(serve):
    client, server = serve(lambda f: [[b"\1", struct.pack(">Q", 1 << 63)]])
    assert client.generation is None
    assert client.reset() and server.seen == [[b"reset2"]]
    assert client.generation == 1 << 63
    client.mark_down()
    assert client.reset() is False


def test_a_hit_of_before_a_reset_is_not_told_after_it(serve):
    """It has come, or is on its way; the request's blocks were dropped, and it is asked about again."""
    tokens = {"there": 64, "underway": 64}
    held = []

    def answer(frames):
        if frames[0] == b"reset2":
            tokens.update(there=0, underway=0)
            return [[b"\x01", bytes(8)]]
        name = frames[4].decode()
        replies = [[struct.pack(">I", tokens.get(name, 32)), trailer(frames)]]
        if name == "underway" and tokens[name]:
            held.extend(replies)
            return []
        late, held[:] = held[:], []
        return replies + late

    client, server = serve(answer, asynchronous=True)
    assert client.ask("there", 70, HASHES) is None
    assert client.ask("underway", 70, HASHES) is None
    assert settle(client, "other") == Hit(32)  # with its answer the first one's has been taken in
    assert client.reset()
    assert settle(client, "there") == MISS
    assert settle(client, "underway") == MISS


def settle(client, request_id):
    """The answer, asked for as often as it takes."""
    while (hit := client.ask(request_id, 70, HASHES)) is None:
        client.new_step()
    return hit


@pytest.mark.parametrize("answer", [[b"\1"], [b"\1", bytes(4)], [b"\2", bytes(8)], []])
def test_a_reset_whose_answer_makes_no_sense_is_not_certain(serve, answer, monkeypatch):
    monkeypatch.setattr(lookup_module, "RESET_DEADLINE_S", 0.05)
    client, _ = serve(lambda f: [answer])
    assert client.reset() is False and client.generation is None and not client.up


def test_the_newest_generation_counts(serve):
    """What is told by two ways may come in another order than it was said in."""
    client, _ = serve(lambda f: [])
    one, other = 5 << 32, 3 << 32
    for told, known in [(one, one), (one + 2, one + 2), (one + 1, one + 2), (other, other), (other + 1, other + 1), (one, one)]:
        client.heard(told)
        assert client.generation == known


def test_reset_refused(serve):
    client, _ = serve(lambda f: [[b"\0"]])
    assert client.reset() is False
    assert not client.up, "a later reset must not take this one's answer"


def test_decode_random_payloads():
    rng = random.Random(5)
    for _ in range(5000):
        with contextlib.suppress(ValueError):
            decode_answer(rng.randbytes(rng.randrange(40)))


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_question_that_the_server_refuses_is_a_miss_and_no_outage(serve, asynchronous):
    client, _ = serve(lambda f: [[b"\0"]], asynchronous=asynchronous)
    assert ask_until_known(client)[-1] == MISS
    assert client.up and client.counters.timeouts == 0


def test_a_request_id_of_any_length_is_asked_for(serve):
    client, server = serve(lambda f: [[struct.pack(">I", 64), trailer(f)]])
    assert client.ask("\u20ac" * 5000, 70, HASHES) == Hit(64)
    assert client.ask("\u20ac" * 5001, 70, HASHES) == Hit(64)
    first, second = (frames[4] for frames in server.seen)
    assert len(first) <= 1024 and first != second


def test_after_an_outage_nothing_of_the_old_connection_is_used(serve):
    client, server = serve(lambda f: [], asynchronous=True)
    assert client.ask("a", 70, HASHES) is None
    old, asked = client._channel, client._asked["a"]
    client.mark_down()
    client.mark_up(server.open())
    asked.asked = 0.0  # long past: its answer is lost, which says nothing about the new server
    assert client.ask("a", 70, HASHES) is None
    assert client._channel is not old and client.up and client.counters.timeouts == 0


def test_many_slow_answers_hold_up_a_step_no_longer_than_one_deadline(serve):
    """Each may come in time: together they must not. What was not asked is asked in the next step."""
    client, server = serve(lambda f: [[struct.pack(">I", 64), trailer(f)]])
    now = [100.0]

    def clock():
        now[0] += 0.24 * PATIENCE_S  # each look at the clock is a slow answer
        return now[0]

    client._clock = clock
    answers = [client.ask(str(i), 70, HASHES) for i in range(50)]
    asked = len(server.seen)
    assert 1 <= asked <= 4 and answers[:asked] == [Hit(64)] * asked and set(answers[asked:]) == {None}
    client.new_step()
    assert client.ask("next", 70, HASHES) == Hit(64) and client.up


def test_releases_go_out_behind_the_questions_before_them(serve):
    client, server = serve(lambda f: [] if f[0] == b"release" else [[struct.pack(">I", 16), trailer(f)]])
    client.ask("a", 70, HASHES)
    client.release(["a", "b" * 300])
    client.ask("c", 70, HASHES)
    assert [f[0] for f in server.seen] == [b"lookup2", b"release", b"lookup2"]
    assert server.seen[1][1] == b"a" and len(server.seen[1]) == 3 and len(server.seen[1][2]) < 256


def test_releases_of_an_outage_go_out_after_it(serve):
    client, server = serve(lambda f: [] if f[0] == b"release" else [[struct.pack(">I", 16), trailer(f)]])
    client.mark_down()
    client.release([str(n) for n in range(MAX_FRAMES + 5)])
    client.mark_up(server.open())
    assert client.ask("a", 70, HASHES) == Hit(16)
    assert [len(f) for f in server.seen] == [MAX_FRAMES, 7, 6]


def test_a_server_that_ends_costs_a_miss_and_no_time(serve):
    client, server = serve(lambda f: [])
    client._open()  # the client has it already
    server.close()
    assert client.ask("a", 70, HASHES) == MISS and not client.up and client.counters.timeouts == 0


def test_channels_that_nobody_took_are_closed(serve):
    client, server = serve(lambda f: [])
    client.mark_up(server.open())
    server.threads[0].join(PATIENCE_S)
    assert not server.threads[0].is_alive(), "the first one's end was not seen"


def test_a_question_that_no_socket_buffer_holds(serve):
    client, server = serve(lambda f: [[struct.pack(">I", 64), trailer(f)]])
    hashes = [bytes([i % 256]) * 32 for i in range(1 << 16)]
    assert client.ask("a", 1 << 20, hashes) == Hit(64)
    assert server.seen[0][3] == b"".join(hashes)


def test_a_question_that_nobody_reads_costs_its_deadline_only():
    channel, theirs = Channel.pair()
    client = LookupClient(50, False)
    client.mark_up(channel)
    with theirs:
        assert client.ask("a", 1 << 20, [bytes(32)] * (1 << 16)) == MISS
        assert not client.up and client.counters.timeouts == 1
    client.close()


def test_an_asynchronous_question_that_no_socket_buffer_holds(serve):
    client, server = serve(lambda f: [[struct.pack(">I", 64), trailer(f)]], asynchronous=True)
    hashes = [bytes(32)] * (1 << 16)
    while (hit := client.ask("a", 1 << 20, hashes)) is None:
        select.select([client._channel._sock], [], [], 0.01)
    assert hit == Hit(64) and len(server.seen) == 1


def test_what_a_peer_does_not_read_is_bounded():
    channel, theirs = Channel.pair()
    with theirs, pytest.raises(ChannelError, match="does not read"):
        for _ in range(10):
            channel.send(bytes(16 << 20))
    channel.close()


def test_a_stream_that_makes_no_sense_ends_the_channel(serve):
    client, _ = serve(lambda f: [b"\xff\xff\xff\xff"])
    assert client.ask("a", 70, HASHES) == MISS and not client.up


def test_messages_split_as_they_were_packed():
    rng = random.Random(6)
    for _ in range(2000):
        frames = [rng.randbytes(rng.randrange(9)) for _ in range(rng.randrange(6))]
        message = pack_message(frames)
        assert split_message(message[4:]) == frames and len(message) == 4 + struct.unpack(">I", message[:4])[0]
        body = rng.randbytes(rng.randrange(20))
        with contextlib.suppress(ValueError):
            assert pack_message(split_message(body))[4:] == body


def test_the_answer_to_a_ping_is_found_behind_others():
    channel, theirs = Channel.pair()
    with theirs:
        assert channel.await_status(0.01) is None
        theirs.sendall(pack_message([b"\0\0\0\1", b"x"]) + pack_message(YES))
        assert channel.await_status(5) is True
        theirs.sendall(pack_message([b"\0"]))
        assert channel.await_status(5) is False
    with pytest.raises(ChannelError):
        channel.await_status(5)
    channel.close()


def test_an_answer_in_pieces_is_waited_for(serve):
    client, server = serve(lambda f: pieces(pack_message([struct.pack(">I", 64), trailer(f)])))
    assert client.ask("a", 70, HASHES) == Hit(64) and client.ask("b", 70, HASHES) == Hit(64)


def pieces(message):
    return [Raw([part]) for part in message]


class Raw(bytes):
    """Sent as it is."""


def test_signals_do_not_make_a_wait_longer(serve):
    """A profiler's come more often than the deadline is long: each must not begin the wait anew."""
    client, _server = serve(lambda f: [], timeout_ms=50)
    seen = []

    def handler(*_):
        seen.append(1)
        if len(seen) > 400:
            raise AssertionError("still waiting after 4 s of signals")

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
    try:
        assert client.ask("a", 70, HASHES) == MISS
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert not client.up and client.counters.timeouts == 1


def test_what_waits_to_be_sent_is_not_copied_again():
    """Many questions while the peer is stopped: each costs its own bytes, not those of all before it."""
    channel, theirs = Channel.pair()
    message = bytes(32 << 10)
    with theirs:
        for _ in range(200):
            channel.send(message)
        tracemalloc.start()
        try:
            channel.send(message)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 1 << 20, f"{peak} bytes allocated for a message of {len(message)}"
        received = 0
        while received < 201 * len(message):
            channel.receive()
            received += len(theirs.recv(1 << 20))
        assert received == 201 * len(message)
    channel.close()


def test_a_refusal_is_of_the_question_it_answers():
    """The question was discarded meanwhile: the next one's answer is still to come."""
    channel, theirs = Channel.pair()
    client = LookupClient(5000, True)
    client.mark_up(channel)
    with theirs:
        assert client.ask("gone", 70, HASHES) is None
        client.discard("gone")
        assert client.ask("b", 70, HASHES) is None
        theirs.sendall(pack_message([b"\0"]))
        assert client.ask("b", 70, HASHES) is None, "it was another's"
        theirs.sendall(pack_message([struct.pack(">I", 64), struct.pack(">QB", 2, 0)]))
        assert client.ask("b", 70, HASHES) == Hit(64)
        assert client.ask("c", 70, HASHES) is None
        theirs.sendall(pack_message([b"\0"]))
        assert client.ask("c", 70, HASHES) == MISS and client.up
    client.close()


def test_a_refusal_of_before_is_not_a_resets(serve):
    held = []

    def answer(frames):
        if frames[0] == b"lookup2" and not held:
            held.append(frames)
            return []
        return [[b"\0"], [b"\1", bytes(8)]] if frames[0] == b"reset2" else []

    client, _ = serve(answer, asynchronous=True)
    assert client.ask("a", 70, HASHES) is None
    assert client.reset() and client.up
    assert not client._underway


def test_a_question_is_the_message_that_its_frames_make():
    channel, theirs = Channel.pair()
    client = LookupClient(5000, True)
    client.mark_up(channel)
    with theirs:
        for sequence, (name, hashes) in enumerate([("a", HASHES), ("", []), ("\u20ac" * 250, HASHES[:1])], start=1):
            assert client.ask(name, 70, hashes) is None
            frames = [
                b"lookup2",
                struct.pack(">I", 70),
                struct.pack(">H", 32 if hashes else 0),
                b"".join(hashes),
                name.encode(),
                struct.pack(">Q", sequence),
            ]
            assert theirs.recv(1 << 16) == pack_message(frames)
    client.close()


def test_a_long_question_is_sent_at_once():
    """8,192 hashes while nobody reads: the server is not waited for in the midst of it."""
    with open("/proc/sys/net/core/wmem_max") as file:
        if int(file.read()) < 1 << 20:
            pytest.skip("net.core.wmem_max is below 1 MiB")
    channel, theirs = Channel.pair()
    client = LookupClient(5000, True)
    client.mark_up(channel)
    with theirs:
        assert client.ask("a", 1 << 17, [bytes(32)] * 8192) is None
        assert not channel._unsent.bytes
    client.close()
