import json
import random
import struct
from pathlib import Path

import msgspec
import pytest

from mooncake_sidecar import frames
from mooncake_sidecar import messages as msg
from mooncake_sidecar.frames import MAX_FRAME_BYTES, FrameError, FrameReader, pack


def test_frames_survive_any_cutting():
    rng = random.Random(1)
    bodies = [rng.randbytes(rng.randrange(1, 300)) for _ in range(200)]
    stream = b"".join(map(pack, bodies))
    reader, got, at = FrameReader(), [], 0
    while at < len(stream):
        step = rng.randrange(1, 400)
        got += reader.feed(stream[at : at + step])
        at += step
    assert got == bodies


@pytest.mark.parametrize("length", [0, MAX_FRAME_BYTES + 1, 0xFFFFFFFF])
def test_lengths_out_of_bounds_end_the_stream(length):
    with pytest.raises(FrameError):
        FrameReader().feed(struct.pack(">I", length))


def test_a_long_frame_is_not_sent(monkeypatch):
    with pytest.raises(FrameError):
        pack(b"")
    monkeypatch.setattr(frames, "MAX_FRAME_BYTES", len(msg.encode(msg.Ping(7))))
    assert msg.frame(msg.Ping(7)) == pack(msg.encode(msg.Ping(7)))
    monkeypatch.setattr(frames, "MAX_FRAME_BYTES", len(msg.encode(msg.Ping(7))) - 1)
    with pytest.raises(FrameError):
        msg.frame(msg.Ping(7))


GOLDEN = Path(__file__).parents[2] / "testdata/golden/session"


def test_a_store_job_is_the_one_that_the_go_side_reads(monkeypatch):
    """Its test reads the same file: what is packed here must be it, byte by byte."""
    monkeypatch.syspath_prepend(str(GOLDEN))
    import generate

    assert json.loads(json.dumps(generate.golden())) == json.loads((GOLDEN / "store.json").read_text())


def test_the_answer_to_a_registration_is_the_one_that_the_go_side_writes():
    """Its test packs the same file."""
    for golden in json.loads((GOLDEN / "registered.json").read_text()):
        (body,) = FrameReader().feed(bytes.fromhex(golden.pop("frame")))
        assert msg.decode(body) == msg.Registered(**golden)


def test_omitted_and_unknown_fields_are_accepted():
    result = msg.decode(msgspec.msgpack.encode({"t": "result", "job": 7, "status": "ok", "new": [1]}))
    assert isinstance(result, msg.Result) and result.job == 7 and result.failed is None
    assert isinstance(msg.decode(msgspec.msgpack.encode({"t": "later"})), msg.Unknown)


@pytest.mark.parametrize(
    "message",
    [
        {"t": "result", "job": "one"},
        {"t": "result"},
        {"t": "pong", "seq": -0.5},
        {"t": "registered", "store_ready": "yes"},
        {"t": "registered", "events_refused": 1},
        {"t": 3},
        {"no": "tag"},
        [1, 2],
        None,
    ],
)
def test_malformed_messages_are_value_errors(message):
    with pytest.raises(ValueError):
        msg.decode(msgspec.msgpack.encode(message))


def test_decoding_random_bytes_only_ever_raises_value_error():
    rng = random.Random(2)
    seeds = [
        msgspec.msgpack.encode({"t": "result", "job": 1, "status": "ok", "failed": b"abcd", "bytes": 5}),
        msgspec.msgpack.encode({"t": "error", "code": "malformed", "message": "m", "job": 9}),
        msgspec.msgpack.encode({"t": "registered", "generation": 1 << 63, "events_refused": True}),
        b"\x91" * 5000,  # deep nesting
        b"\xdf\xff\xff\xff\xff",  # a map of four billion entries
    ]
    accepted = 0
    for _ in range(20000):
        body = bytearray(rng.choice(seeds) if rng.random() < 0.8 else rng.randbytes(rng.randrange(64)))
        for _ in range(rng.randrange(4)):
            if body:
                body[rng.randrange(len(body))] = rng.randrange(256)
        if rng.random() < 0.2:
            del body[rng.randrange(len(body) + 1) :]
        try:
            msg.decode(bytes(body))
            accepted += 1
        except ValueError:
            pass
    assert 0 < accepted < 20000


def test_feeding_random_bytes_only_ever_raises_frame_error():
    rng = random.Random(3)
    for _ in range(2000):
        reader = FrameReader(limit=1000)
        try:
            for _ in range(4):
                reader.feed(rng.randbytes(rng.randrange(40)))
        except FrameError:
            pass
