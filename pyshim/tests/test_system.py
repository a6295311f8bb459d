"""Daemons of the system: where they are found, who is trusted, whose process is watched."""

import os
import socket
import subprocess
import sys
import threading
import time

import pytest

from mooncake_sidecar import config, daemons, paths, programs, session
from mooncake_sidecar import messages as msg

PATIENCE_S = 60


@pytest.fixture
def system_dir(runtime_dir, monkeypatch):
    """The runtime directory, in the place of the system's."""
    monkeypatch.setattr(paths, "SYSTEM_DIR", runtime_dir)
    monkeypatch.delenv("MOONCAKE_SIDECAR_RUNTIME_DIR", raising=False)
    return runtime_dir


def listen(path):
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(path)
    sock.listen()
    return sock


def test_the_system_comes_before_the_users_own(system_dir, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    assert paths.runtime_dir() == "/run/user/7/mooncake-sidecar", "nobody listens there"
    with listen(paths.lookupd_socket(system_dir)):
        assert paths.runtime_dir() == system_dir
        assert paths.runtime_dir("/configured") == "/configured"
        monkeypatch.setenv("MOONCAKE_SIDECAR_RUNTIME_DIR", "/environment")
        assert paths.runtime_dir() == "/environment"
        monkeypatch.delenv("MOONCAKE_SIDECAR_RUNTIME_DIR")
        os.chmod(system_dir, 0o770)
        assert paths.runtime_dir() != system_dir, "the group could put a socket there"


@pytest.mark.skipif(os.getuid() != 0, reason="gives a directory to another user")
def test_the_systems_user_is_trusted_in_its_directory_only(system_dir, monkeypatch):
    os.chown(system_dir, 4711, -1)
    os.chmod(system_dir, 0o750)
    monkeypatch.setattr(os.path, "dirname", lambda path: "/run" if path == system_dir else path.rpartition("/")[0])
    paths.check_runtime_dir(system_dir)
    assert paths.trusted_users(system_dir) == {0, 4711}
    monkeypatch.setattr(paths, "SYSTEM_DIR", "/elsewhere")
    with pytest.raises(paths.UnsafeDirectory, match="belongs to user 4711"):
        paths.check_runtime_dir(system_dir)


def test_units_are_not_autostarted(system_dir):
    settings = config.parse({})
    wanted = [daemons.lookupd(system_dir, settings), daemons.worker(system_dir, "host-1", settings)]
    with pytest.raises(daemons.DaemonError, match=r"systemctl enable --now mooncake-lookupd\.socket"):
        daemons.ensure(wanted, system_dir, settings, 5, threading.Event())
    with pytest.raises(daemons.DaemonError, match=r"mooncake-worker@host-1\.socket"):
        daemons.ensure(wanted[1:], system_dir, settings, 5, threading.Event())


def test_lookup_sockets_are_where_the_daemon_can_make_them(system_dir):
    assert paths.lookup_base(system_dir + "/", "/tmp") == system_dir
    assert paths.lookup_base("/run/user/7/mooncake-sidecar", "/tmp") == "/tmp"


def activated(directory, claim=""):
    """A worker whose socket this process listens at, as systemd would."""
    listener = listen(paths.worker_socket(directory, "host-0"))
    code = (
        "import os, socket, struct, sys\n"
        "import msgspec\n"
        "def read(c):\n"
        "    n = struct.unpack('>I', c.recv(4, socket.MSG_WAITALL))[0]\n"
        "    return msgspec.msgpack.decode(c.recv(n, socket.MSG_WAITALL))\n"
        "def write(c, m):\n"
        "    b = msgspec.msgpack.encode(m); c.sendall(struct.pack('>I', len(b)) + b)\n"
        "c, _ = socket.socket(fileno=int(sys.argv[1])).accept()\n"
        "read(c)\n"
        "write(c, {'t': 'welcome', 'protocol': int(sys.argv[2]), 'daemon': 'mooncake-worker', 'version': '0', 'pid': int(sys.argv[3] or os.getpid()),\n"
        "          'autostarted': False, 'session': 1})\n"
        "write(c, {'t': 'pong', 'seq': read(c)['seq'], 'store_ready': True})\n"
        "c.recv(1)\n"
    )
    daemon = subprocess.Popen(
        [sys.executable, "-c", code, str(listener.fileno()), str(msg.PROTOCOL_VERSION), claim], pass_fds=[listener.fileno()]
    )
    listener.close()
    return daemon


def test_an_activated_daemons_death_is_seen(runtime_dir):
    daemon = activated(runtime_dir)
    try:
        opened = session.open_session(paths.worker_socket(runtime_dir, "host-0"), msg.ROLE_WORKER, "e", 1, PATIENCE_S)
        assert opened.pid == daemon.pid and opened.pidfd >= 0
        assert not session.process_ended(opened.pidfd)
        daemon.kill()
        daemon.wait()
        deadline = time.monotonic() + PATIENCE_S
        while not session.process_ended(opened.pidfd):
            assert time.monotonic() < deadline
        opened.close()
    finally:
        daemon.kill()
        daemon.wait()


def test_a_daemon_that_claims_another_process_is_not_watched(runtime_dir):
    daemon = activated(runtime_dir, str(os.getppid()))
    try:
        opened = session.open_session(paths.worker_socket(runtime_dir, "host-0"), msg.ROLE_WORKER, "e", 1, PATIENCE_S)
        assert opened.pidfd == -1
        opened.close()
    finally:
        daemon.kill()
        daemon.wait()


def test_an_installation_without_programs_says_so(tmp_path, monkeypatch):
    command = tmp_path / "mooncake-lookupd"
    command.write_text(f"#!{sys.executable}\nfrom mooncake_sidecar.programs import lookupd\nlookupd()\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("MOONCAKE_SIDECAR_BIN", "")
    monkeypatch.setattr(programs, "PACKAGE", "/nowhere/a/b")
    assert programs.is_wrapper(str(command))
    with pytest.raises(daemons.DaemonError, match="not found.*install the wheel"):
        daemons.find_binary("mooncake-lookupd", config.parse({}))
    with pytest.raises(SystemExit, match="no programs.*install the wheel"):
        programs.lookupd()
