"""Finding and starting daemons, and the scheduler's registration with one."""

import os
import stat
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import FAKE, make_geometry

from mooncake_sidecar import config, daemons, launch, paths, programs
from mooncake_sidecar import messages as msg
from mooncake_sidecar.lookup import LookupClient
from mooncake_sidecar.registrar import Registrar

PATIENCE_S = 60


def until(condition):
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "gave up waiting"
        time.sleep(0.002)


def write_program(path, body):
    path.write_text(f"#!{sys.executable}\n" + textwrap.dedent(body))
    path.chmod(0o755)


@pytest.fixture
def settings(runtime_dir, tmp_path):
    return config.parse({"runtime_dir": runtime_dir, "binaries_dir": str(tmp_path), "linger_s": 60})


def test_autostart_runs_the_program_detached_and_clean(runtime_dir, tmp_path, settings, monkeypatch):
    write_program(
        tmp_path / "mooncake-lookupd",
        f"""
        import json, os, runpy, sys
        d = sys.argv[sys.argv.index("--runtime-dir") + 1]
        with open(os.path.join(d, "started"), "a") as f:
            f.write(json.dumps([os.getpid(), os.getppid(), os.getsid(0), sorted(os.environ), sys.argv[1:],
                                len(os.sched_getaffinity(0)), os.readlink("/proc/self/fd/0")]) + "\\n")
        sys.argv = ["fake", d, "--autostarted"]
        runpy.run_path({str(FAKE)!r}, run_name="__main__")
        """,
    )
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("LD_PRELOAD", "")
    cpus = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cpus)})
    try:
        wanted = daemons.lookupd(runtime_dir, settings)
        threads = [
            threading.Thread(target=daemons.ensure, args=([wanted], runtime_dir, settings, PATIENCE_S, threading.Event()))
            for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        lines = Path(runtime_dir, "started").read_text().splitlines()
        assert len(lines) == 1, "started more than once"
        import json

        pid, _, session, environment, arguments, affinity, stdin = json.loads(lines[0])
        assert daemons.probe(wanted.socket).pid == pid
        assert session != os.getsid(0)
        assert "OMP_NUM_THREADS" not in environment and "LD_PRELOAD" not in environment
        assert affinity == len(cpus) and stdin == "/dev/null"
        assert arguments == [
            "--runtime-dir", runtime_dir, "--linger", "1m", "--autostarted",
            "--log-level", "info",
        ]  # fmt: skip
        assert pid not in [int(p) for p in children_of(os.getpid())]
        assert stat.S_IMODE(os.stat(wanted.log).st_mode) == 0o600
    finally:
        os.sched_setaffinity(0, cpus)
        os.kill(pid, 9)


def children_of(pid):
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def test_a_program_that_dies_at_once_is_reported_with_its_last_words(runtime_dir, tmp_path, settings, monkeypatch):
    write_program(tmp_path / "mooncake-lookupd", "import sys; sys.exit('no memory for the store')")
    wanted = daemons.lookupd(runtime_dir, settings)

    def now():
        """The budget is spent once the program has said something, however long that takes here."""
        return 2.0 if os.path.exists(wanted.log) and "\n" in Path(wanted.log).read_text() else 0.0

    monkeypatch.setattr(daemons, "time", SimpleNamespace(monotonic=now))
    with pytest.raises(daemons.DaemonError, match="no memory for the store"):
        daemons.ensure([wanted], runtime_dir, settings, 1.0, threading.Event())


def test_a_program_that_is_nowhere_is_reported_at_once(runtime_dir, settings, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(programs, "PACKAGE", "/nowhere/a/b")
    with pytest.raises(daemons.DaemonError, match="not found.*binaries_dir"):
        daemons.ensure([daemons.lookupd(runtime_dir, settings)], runtime_dir, settings, 60, threading.Event())


def test_where_programs_are_looked_for(tmp_path, settings, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    other = tmp_path / "other"
    other.mkdir()
    write_program(other / "mooncake-worker", "")
    monkeypatch.setenv("MOONCAKE_SIDECAR_BIN", str(other))
    assert daemons.find_binary("mooncake-worker", settings) == str(other / "mooncake-worker")
    write_program(tmp_path / "mooncake-worker", "")
    assert daemons.find_binary("mooncake-worker", settings) == str(tmp_path / "mooncake-worker")


def test_without_autostart_nothing_is_started(runtime_dir):
    settings = config.parse({"autostart": False})
    with pytest.raises(daemons.DaemonError, match="autostart is off"):
        daemons.ensure([daemons.lookupd(runtime_dir, settings)], runtime_dir, settings, 5, threading.Event())


def test_a_running_daemon_is_used(start_daemon, runtime_dir, settings):
    start_daemon()
    wanted = [daemons.lookupd(runtime_dir, settings), daemons.worker(runtime_dir, "host-0", settings)]
    daemons.ensure(wanted, runtime_dir, settings, 5, threading.Event())
    assert not os.path.exists(wanted[0].log)


def test_an_unset_store_size_is_left_to_the_daemon(runtime_dir, settings):
    assert "--store-bytes" not in daemons.lookupd(runtime_dir, settings).arguments
    asked = config.parse({"store_bytes": "2GiB"})
    arguments = daemons.lookupd(runtime_dir, asked).arguments
    assert arguments[arguments.index("--store-bytes") + 1] == str(2 << 30)


def test_a_cluster_is_lookupds_to_reach(runtime_dir, monkeypatch):
    for name in ("MOONCAKE_SIDECAR_STORE", "MOONCAKE_SIDECAR_STORE_PYTHON"):
        monkeypatch.delenv(name, raising=False)

    def flags(**extra):
        arguments = daemons.lookupd(runtime_dir, config.parse(extra)).arguments
        return dict(pair for pair in zip(arguments, arguments[1:]) if pair[0].startswith(("--store", "--mooncake")))

    assert flags() == {}
    assert flags(store="embedded", mooncake_write="back") == {"--store": "embedded"}
    assert flags(store="mooncake") == {"--store": "mooncake", "--store-python": sys.executable}
    assert flags(
        store="mooncake",
        store_python="/p",
        mooncake_library="/l.so",
        mooncake_config="/c",
        mooncake_write="back",
        mooncake_reset="cluster",
        mooncake_events="tcp://m:5557",
    ) == {
        "--store": "mooncake",
        "--store-python": "/p",
        "--mooncake-library": "/l.so",
        "--mooncake-config": "/c",
        "--mooncake-write": "back",
        "--mooncake-reset": "cluster",
        "--mooncake-events": "tcp://m:5557",
    }
    monkeypatch.setenv("MOONCAKE_SIDECAR_STORE_PYTHON", "/theirs")  # lookupd inherits it
    assert flags(store="mooncake") == {"--store": "mooncake"}


def test_environment_cleaning():
    kept = launch.clean_environment(
        {"PATH": "p", "OMP_X": "1", "KMP_Y": "1", "LD_PRELOAD": "x", "VLLM_Z": "1", "HOME": "h", "GOGC": "50"}
    )
    assert kept == {"PATH": "p", "HOME": "h", "GOGC": "50"}


def test_a_launcher_whose_program_is_missing_says_so_in_the_log(tmp_path):
    log = tmp_path / "log"
    script = Path(daemons.__file__).with_name("launch.py")
    subprocess.run([sys.executable, "-I", "-S", script, log, "/nowhere/x"], check=True)
    until(lambda: log.exists() and "/nowhere/x" in log.read_text())


# ---- the runtime directory ----


def test_precedence_of_the_runtime_directory(monkeypatch):
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.delenv("MOONCAKE_SIDECAR_RUNTIME_DIR", raising=False)
    assert paths.runtime_dir() == f"/tmp/mooncake-sidecar-{os.getuid()}"
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/1")
    assert paths.runtime_dir() == "/run/user/1/mooncake-sidecar"
    monkeypatch.setenv("MOONCAKE_SIDECAR_RUNTIME_DIR", "/e")
    assert paths.runtime_dir() == "/e"
    assert paths.runtime_dir("/c") == "/c"


def test_a_directory_open_to_others_is_refused(tmp_path):
    open_to_all = tmp_path / "d"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    with pytest.raises(paths.UnsafeDirectory, match="0777"):
        paths.check_runtime_dir(str(open_to_all))
    link = tmp_path / "l"
    link.symlink_to("/")
    with pytest.raises(paths.UnsafeDirectory, match="not a directory"):
        paths.check_runtime_dir(str(link))
    made = tmp_path / "new"
    paths.check_runtime_dir(str(made), create=True)
    assert stat.S_IMODE(made.stat().st_mode) == 0o700


def test_the_lookup_path_is_the_in_tree_one():
    assert paths.lookup_path("/tmp", 0, 2, "h") == "/tmp/lookup_rpc_port_0_host_h_dp_rank2"


# ---- the registrar ----


@pytest.fixture
def register(runtime_dir):
    made = []

    def start(prepare=lambda stop: None, directory=runtime_dir, on_registered=lambda answer: None):
        client = LookupClient(PATIENCE_S * 1000, False)
        registrar = Registrar(
            client,
            make_geometry().spec,
            paths.lookupd_socket(runtime_dir),
            os.path.join(directory, "lookup"),
            "0123456789abcdef",
            1,
            prepare,
        )
        registrar.on_registered = on_registered
        made.append((client, registrar))
        registrar.start()
        return client, registrar

    yield start
    for client, registrar in made:
        registrar.stop()
        client.close()


HASHES = [bytes([i]) * 32 for i in range(4)]


def test_registered_and_pinged_the_client_is_up(start_daemon, register):
    daemon = start_daemon()
    client, registrar = register()
    assert registrar.first_attempt.wait(PATIENCE_S) and client.up
    assert client.ask("a", 64, HASHES).tokens == 0 and daemon.stats()["lookups"] == 1
    client.release(["a", "b"])
    until(lambda: daemon.stats()["leases_released"] == ["a", "b"])


def test_what_fails_behind_the_registration_costs_no_store(start_daemon, register, caplog):
    start_daemon()
    client, registrar = register(on_registered=lambda answer: 1 / 0)
    assert registrar.first_attempt.wait(PATIENCE_S) and client.up
    assert "ZeroDivisionError" in caplog.text


def test_the_client_hears_of_resets_by_others(start_daemon, register):
    daemon = start_daemon()
    client, registrar = register()
    assert registrar.first_attempt.wait(PATIENCE_S) and client.generation == 1
    daemon.order(generation=(1 << 64) - 1)
    until(lambda: client.generation == (1 << 64) - 1)
    assert client.up


def test_a_reset_right_behind_the_registration_is_heard_of(start_daemon, register):
    daemon = start_daemon()
    daemon.order(hasty=True)
    client, registrar = register()
    assert registrar.first_attempt.wait(PATIENCE_S) and client.up and client.generation == 2


def test_silence_then_service_again(start_daemon, register):
    daemon = start_daemon()
    client, registrar = register()
    registrar.first_attempt.wait(PATIENCE_S)
    daemon.order(silent=True)
    client._timeout_s = 0.02
    assert client.ask("a", 64, HASHES).tokens == 0 and not client.up
    daemon.order(silent=False)
    until(lambda: client.up)
    client._timeout_s = PATIENCE_S
    client.ask("b", 64, HASHES)
    assert client.counters.timeouts == 1 and client.up


def test_killed_and_started_again(start_daemon, register):
    daemon = start_daemon()
    client, registrar = register()
    registrar.first_attempt.wait(PATIENCE_S)
    daemon.kill()
    until(lambda: not client.up)
    assert client.ask("a", 64, HASHES).tokens == 0
    daemon = start_daemon()
    until(lambda: client.up)
    client.ask("b", 64, HASHES)
    assert daemon.stats()["lookups"] == 1


def test_a_taken_socket_makes_it_ask_for_one_of_its_own(start_daemon, register, runtime_dir, caplog):
    start_daemon()
    Path(runtime_dir, "lookup.taken").touch()
    client, registrar = register()
    registrar.first_attempt.wait(PATIENCE_S)
    assert client.up and registrar.lookup_path.endswith("lookup_engine_01234567")
    assert "lookup is taken" in caplog.text and "one of this engine's own" in caplog.text


def test_a_daemon_in_another_container_makes_the_socket_in_the_runtime_directory(start_daemon, register, runtime_dir):
    other = Path(runtime_dir, "tmp")
    other.mkdir()
    (other / "unseen").touch()
    daemon = start_daemon()
    client, registrar = register(directory=str(other))
    registrar.first_attempt.wait(PATIENCE_S)
    assert client.up and registrar.lookup_path.endswith(f"{runtime_dir}/lookup_engine_01234567")
    assert client.ask("a", 64, HASHES).tokens == 0 and daemon.stats()["lookups"] == 1


def test_lookup_sockets_of_machines_with_long_names_fit():
    for host in ("h", "h" * 45, "h" * 64):
        common = paths.lookup_path(paths.SYSTEM_DIR, 0, 0, host)
        for directory in (paths.SYSTEM_DIR, "/run/user/1000/mooncake-sidecar"):
            wanted = paths.lookup_paths(common, "0123456789", directory)
            assert all(len(path) <= paths.MAX_SOCKET_PATH for path in wanted)
            assert len(set(wanted)) == len(wanted) >= 1
            assert (wanted[0] == common) == (len(common) <= paths.MAX_SOCKET_PATH)
            assert os.path.dirname(wanted[-1]) == directory


def test_without_a_daemon_one_warning_and_misses(register, caplog):
    attempts = []

    def prepare(stop):
        attempts.append(1)
        raise daemons.DaemonError("there is none")

    client, registrar = register(prepare)
    assert registrar.first_attempt.wait(PATIENCE_S)
    assert client.ask("a", 64, HASHES).tokens == 0 and not client.up
    until(lambda: len(attempts) >= 3)
    assert caplog.text.count("there is none") == 1


def test_stopping_while_a_daemon_is_stopped_does_not_hang(start_daemon, register):
    daemon = start_daemon()
    _client, registrar = register()
    registrar.first_attempt.wait(PATIENCE_S)
    daemon.stop()
    registrar.stop()
    assert not registrar._thread.is_alive()
    registrar.stop = lambda: None
    daemon.wake()


def test_a_probe_changes_nothing(start_daemon, runtime_dir):
    daemon = start_daemon()
    welcome = daemons.probe(paths.worker_socket(runtime_dir, "host-0"))
    assert welcome.daemon == "mooncake-worker" and welcome.pid == daemon.process.pid
    assert isinstance(welcome, msg.Welcome)
