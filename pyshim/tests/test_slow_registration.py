"""A daemon that takes its time at the registration, or does not even read it."""

import os
import socket
import threading
import time

import pytest
from conftest import make_geometry

from mooncake_sidecar import config, link, registration
from mooncake_sidecar import messages as msg
from mooncake_sidecar.board import JobBoard
from mooncake_sidecar.frames import FrameReader, pack
from mooncake_sidecar.link import Limits, Link
from mooncake_sidecar.namespace import Ranks
from mooncake_sidecar.registration import Memory, Registrant
from mooncake_sidecar.session import Session, SessionError

PATIENCE_S = 60


@pytest.fixture
def pair():
    """A session, and the daemon's end of it."""
    ours, theirs = socket.socketpair()
    welcome = msg.Welcome(msg.PROTOCOL_VERSION, "mooncake-worker", pid=os.getpid())
    session = Session(ours, FrameReader(), welcome, os.pidfd_open(os.getpid()), os.getpid())
    with theirs:
        yield session, theirs
    session.close()


@pytest.fixture
def warnings(monkeypatch):
    told = []
    monkeypatch.setattr(link.logger, "warning", lambda text, *values: told.append(text % values))
    return told


@pytest.mark.parametrize("refused", [False, True])
def test_a_late_answer_is_taken(pair, warnings, refused):
    session, daemon = pair
    late = Link(session, JobBoard(), Limits(), False, registered=False)
    late.pump(1.0)
    assert late.connected and not late.healthy and not late.submit(1, msg.KIND_LOAD, "r", b"frame", 1.0)
    daemon.sendall(pack(msg.encode(msg.Registered(store_ready=True, events_refused=refused))))
    late.pump(2.0)
    assert late.healthy and late.store_ready and late.sees_events == (not refused)
    assert len(warnings) == refused and all("can't open the engine's CUDA events" in text for text in warnings)
    late.close()


def test_a_late_refusal_ends_the_session(pair, warnings):
    session, daemon = pair
    late = Link(session, JobBoard(), Limits(), False, registered=False)
    daemon.sendall(pack(msg.encode(msg.Error("bad_geometry", "no"))))
    late.pump(1.0)
    assert not late.connected and late.done and "no [bad_geometry]" in warnings[0]
    late.close()


def stuck_registrant(monkeypatch, session, size):
    """Registers at a daemon that is there, with that much to say."""
    monkeypatch.setattr(registration, "open_session", lambda *given: session)
    monkeypatch.setattr(registration.daemons, "ensure", lambda *given: None)
    segments = [msg.KVSegment(0, 0, i * 4096, 4096, 4096) for i in range(size // 32)]
    return Registrant(
        config.parse({"autostart": False}), make_geometry(16, page=4096), Ranks(1, 1, 1, 1), Memory([], [], segments),
        num_blocks=1, engine_id="engine", epoch=1, device="host-0",
    )  # fmt: skip


def test_a_registration_that_is_not_read_is_given_up(pair, monkeypatch):
    """The link that comes of it is waited for: what the daemon has not read holds descriptors."""
    session, daemon = pair
    session.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    monkeypatch.setattr(registration, "_REGISTER_S", PATIENCE_S)
    stop = threading.Event()
    timer = threading.Timer(0.1, stop.set)
    timer.start()
    given_up = stuck_registrant(monkeypatch, session, 4 << 20).connect(stop)
    timer.join()
    assert not given_up.healthy
    given_up.leave(time.monotonic())
    given_up.pump(time.monotonic())
    assert given_up.connected, "the daemon still has it"
    reader, whole = FrameReader(), []
    while data := daemon.recv(1 << 16):
        whole += reader.feed(data)
    assert whole == [], "nothing that could be mapped"
    daemon.close()
    given_up.pump(time.monotonic())
    assert not given_up.connected
    given_up.close()


def test_a_daemon_that_never_reads_is_left(pair, monkeypatch):
    session, _ = pair
    session.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    monkeypatch.setattr(registration, "_REGISTER_S", 0.1)
    with pytest.raises(SessionError, match="in time"):
        stuck_registrant(monkeypatch, session, 4 << 20).connect(threading.Event())
    assert session.sock.fileno() == -1
