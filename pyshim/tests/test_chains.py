"""Questions that name few of a request's hashes."""

import json
import pathlib
import random
import struct

import pytest
from test_lookup import PATIENCE_S, Server, trailer

from mooncake_sidecar import lookup as lookup_module
from mooncake_sidecar.channel import Channel, pack_message, split_message
from mooncake_sidecar.lookup import MISS, Hit, LookupClient
from mooncake_sidecar.question import Question, usable_stride

STRIDE = 128
MORE, SHOW = 2, 4
VECTORS = json.loads((pathlib.Path(__file__).parents[2] / "testdata/golden/lookup/chain.json").read_text())
HASHES = [struct.pack(">Q", n) * 4 for n in range(1, 1001)]


def frames_of(parts):
    data = b"".join(parts)
    assert struct.unpack_from(">I", data)[0] == len(data) - 4
    return split_message(data, 4)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: v["id"])
def test_questions_are_those_of_the_golden_file(vector):
    blob = bytes.fromhex(vector["hashes"])
    hashes = [blob[i : i + 8] for i in range(0, len(blob), 8)]
    question = Question(vector["id"], vector["tokens"], hashes, vector["stride"])
    hashes += [b"later..."]  # the request goes on
    for turn in vector["turns"]:
        assert [f.hex() for f in frames_of(question.message(turn["seq"]))] == turn["frames"]
        if turn["again"]:
            question.widen(bytes.fromhex(turn["reply"][0]))
    assert [f.hex() for f in frames_of([question.shown()])] == vector["seen"]


def test_a_question_asks_three_times_at_most():
    rng = random.Random(5)
    for _ in range(300):
        question = Question("r", 1, HASHES[: rng.randrange(1001)], rng.choice([0, 16, 128, 400]))
        for _ in range(2):
            if question.sparse:
                first = rng.randrange(len(question))
                question.widen(struct.pack(">II", first, rng.randrange(first, len(question)) + 1))
        assert not question.sparse
        assert frames_of(question.message(1))[0] == b"lookup2"


@pytest.mark.parametrize(
    "gap", [b"", bytes(4), bytes(8), bytes(9), struct.pack(">II", 5, 5), struct.pack(">II", 999, 1001)]
)
def test_a_gap_that_makes_no_sense(gap):
    with pytest.raises(ValueError):
        Question("r", 1, HASHES, STRIDE).widen(gap)


def test_strides_that_make_no_sense_are_none():
    assert [usable_stride(n) for n in (-1, 0, 15, 16, 128, 1 << 16, 1 << 17)] == [0, 0, 0, 16, 128, 1 << 16, 0]
    assert not Question("r", 1, HASHES[:256], STRIDE).sparse
    assert Question("r", 1, HASHES[:257], STRIDE).sparse
    assert not Question("r", 1, [b"x" * 8] * ((1 << 18) + 1), STRIDE).sparse


@pytest.fixture
def serve():
    """A server and a client of it, which was told of a stride."""
    made = []

    def start(answer, timeout_ms=PATIENCE_S * 1000, asynchronous=False):
        server, client = Server(answer), LookupClient(timeout_ms, asynchronous)
        made.append((server, client))
        client.mark_up(server.open(), STRIDE)
        return client, server

    yield start
    for server, client in made:
        client.close()
        server.close()


def status(frames, flags=0):
    return frames[-1] + bytes([flags])


def hit(frames, tokens, flags=0):
    return [struct.pack(">I", tokens), status(frames, flags)]


def more(frames, first, end):
    return [struct.pack(">II", first, end), status(frames, MORE)]


def tags(server):
    return [frames[0] for frames in server.seen]


def test_a_hit_by_few_hashes(serve):
    client, server = serve(lambda f: [hit(f, 4096)])
    assert client.ask("r", 16001, HASHES) == Hit(4096)
    (frames,) = server.seen
    assert frames[0] == b"lookup3" and struct.unpack(">I", frames[3]) == (1000,)
    assert frames[5] == b"".join(HASHES[:16] + HASHES[127::128] + HASHES[-16:])
    assert client.counters.lookups == 1 and not client._asked and not client._by_sequence and not client._underway


def test_what_is_wanted_is_given(serve):
    answers = [lambda f: more(f, 16, 127), lambda f: hit(f, 800)]
    client, server = serve(lambda f: [answers.pop(0)(f)])
    assert client.ask("r", 16001, HASHES) == Hit(800)
    assert tags(server) == [b"lookup3", b"lookup3"]
    assert server.seen[1][5].endswith(b"".join(HASHES[16:127])) and server.seen[0][-1] != server.seen[1][-1]
    assert client.counters.lookups == 1 and not client._by_sequence and not client._underway


def test_what_is_wanted_twice_is_given_whole(serve):
    answers = [lambda f: more(f, 16, 127), lambda f: more(f, 128, 255), lambda f: hit(f, 800)]
    client, server = serve(lambda f: [answers.pop(0)(f)])
    assert client.ask("r", 16001, HASHES) == Hit(800)
    assert tags(server) == [b"lookup3", b"lookup3", b"lookup2"]
    assert server.seen[2][3] == b"".join(HASHES)


def test_all_is_wanted(serve):
    answers = [lambda f: more(f, 0, 1000), lambda f: [struct.pack(">I", 64), trailer(f)]]
    client, server = serve(lambda f: [answers.pop(0)(f)])
    assert client.ask("r", 16001, HASHES) == Hit(64)
    assert tags(server) == [b"lookup3", b"lookup2"]


def test_the_deadline_is_for_all_of_it(serve):
    """The first turn is answered, the second never."""
    client, server = serve(lambda f: [more(f, 16, 127)] if len(server.seen) == 1 else [], timeout_ms=50)
    assert client.ask("r", 16001, HASHES) == MISS
    assert client.counters.timeouts == 1 and not client.up


@pytest.mark.parametrize(
    "answer",
    [
        lambda f: [b"", status(f, MORE)],
        lambda f: more(f, 5, 5),
        lambda f: more(f, 0, 1001),
        lambda f: [struct.pack(">I", 64), status(f, MORE)],
        lambda f: [b"\0"],
        lambda f: [struct.pack(">II", 0, 16), status(f)],
    ],
)
def test_answers_that_make_no_sense_are_misses(serve, answer):
    client, _ = serve(lambda f: [answer(f)])
    assert client.ask("r", 16001, HASHES) == MISS
    assert client.up and client.counters.malformed == 1 and not client._underway


def test_a_server_that_always_wants_more_is_a_miss(serve):
    client, server = serve(lambda f: [more(f, 16, 127)])
    assert client.ask("r", 16001, HASHES) == MISS
    assert len(server.seen) == 3 and client.up and client.counters.malformed == 1


def test_pending_is_a_miss(serve):
    client, _ = serve(lambda f: [hit(f, 64, 1)])
    assert client.ask("r", 16001, HASHES) == MISS


def test_an_asynchronous_client_gives_all(serve):
    """It does not wait for the answer, and asking again would take a step."""
    client, server = serve(lambda f: [[struct.pack(">I", 64), trailer(f)]], asynchronous=True)
    while (found := client.ask("r", 16001, HASHES)) is None:
        pass
    assert found == Hit(64) and tags(server) == [b"lookup2"]
    server.answer = lambda f: [more(f, 16, 127)]
    while (found := client.ask("r", 16001, HASHES)) is None:
        pass
    assert found == MISS and client.counters.malformed == 1


def test_a_server_of_before_gets_all():
    """It has no stride in its registration; the one before it had."""
    servers = [Server(lambda f: [hit(f, 64)]) for _ in range(2)]
    client = LookupClient(PATIENCE_S * 1000, False)
    try:
        client.mark_up(servers[0].open(), STRIDE)
        assert client.ask("a", 16001, HASHES) == Hit(64)
        client.mark_up(servers[1].open())
        assert client.ask("b", 16001, HASHES) == Hit(64)
        assert [tags(server) for server in servers] == [[b"lookup3"], [b"lookup2"]]
    finally:
        client.close()
        for server in servers:
            server.close()


def test_what_the_sampler_wants_is_shown_a_step_later(serve):
    client, server = serve(lambda f: [hit(f, 0, SHOW)] if f[0] == b"lookup3" else [])
    for name in "ab":
        assert client.ask(name, 16001, HASHES) == MISS
    assert not client._unshown
    client.new_step()  # the requests of this step are waited for
    assert client.ask("c", 16001, HASHES) == MISS
    client.new_step()
    server.has_seen(5)
    assert tags(server)[3:] == [b"seen"] * 2 and server.seen[3][1:] == [struct.pack(">H", 32), b"".join(HASHES)]
    for _ in range(3):
        client.new_step()
    server.has_seen(6)
    assert tags(server)[5:] == [b"seen"] and not client._unshown and client.up


def test_what_is_shown_is_bounded(serve, monkeypatch):
    monkeypatch.setattr(lookup_module, "_SHOWN_A_STEP", 1500)
    client, server = serve(lambda f: [hit(f, 0, SHOW)] if f[0] == b"lookup3" else [])
    for i in range(100):
        assert client.ask(str(i), 16001, HASHES) == MISS
    client.new_step()
    assert len(client._unshown) == 64 and not client._answered_now
    client.new_step()
    server.has_seen(102)
    assert len(client._unshown) == 62


def test_nothing_is_shown_to_another_server():
    channel, theirs = Channel.pair()
    client = LookupClient(50, False)
    client.mark_up(channel, STRIDE)
    with theirs:
        theirs.sendall(pack_message([struct.pack(">I", 0), struct.pack(">QB", 1, SHOW)]))
        assert client.ask("a", 16001, HASHES) == MISS
        client.new_step()
        assert client.ask("a", 1, []) == MISS  # the socket has no answer: an outage
        assert not client._unshown and not client._answered_now
        for _ in range(3):
            client.new_step()
    client.close()


def test_a_reset_between(serve):
    """What was asked before it is not heard after it; the sequence numbers go on."""
    client, server = serve(lambda f: [[b"\1", bytes(8)]] if f[0] == b"reset2" else [hit(f, 64, SHOW)])
    assert client.ask("a", 16001, HASHES) == Hit(64)
    assert client.reset()
    assert client.ask("a", 16001, HASHES) == Hit(64) and client.up
    assert tags(server) == [b"lookup3", b"reset2", b"lookup3"]
