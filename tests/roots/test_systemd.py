"""The units under a real systemd, as process 1 of a container."""

import json
import pathlib
import shutil
import socket
import subprocess
import time

import pytest
from conftest import REPOSITORY, run

UNITS = REPOSITORY / "deploy" / "systemd"
LOOKUPD, WORKER, CONDUCTOR = "mooncake-lookupd.service", "mooncake-worker@host-0.service", "mooncake-conductor.service"
PATIENCE_S = 90
CONNECT = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])"


class System:
    """A booted container."""

    def __init__(self, root: pathlib.Path) -> None:
        command = ["systemd-nspawn", "-D", str(root), "--boot", "--register=no", "--keep-unit", "--console=read-only"]
        self.nspawn = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
        self.until("its first process", lambda: bool(self.children()))

    def children(self) -> list[str]:
        path = pathlib.Path(f"/proc/{self.nspawn.pid}/task/{self.nspawn.pid}/children")
        return path.read_text().split() if path.exists() else []

    def ask(self, *command: str) -> str:
        leader = self.children()[0]
        done = subprocess.run(
            ["nsenter", "-t", leader, "-m", "-p", "-u", "-i", "--", *command], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        return done.stdout.strip()

    def show(self, unit: str, key: str) -> str:
        return self.ask("systemctl", "show", "--property", key, "--value", unit)

    def until(self, what: str, true) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not true():
            assert self.nspawn.poll() is None, "the container has ended"
            assert time.monotonic() < deadline, f"gave up waiting for {what}"
            time.sleep(0.2)

    def stop(self) -> None:
        self.nspawn.terminate()
        self.nspawn.wait()


@pytest.fixture(scope="module")
def system(new_root):
    for unit in [*UNITS.glob("*.service"), *UNITS.glob("*.socket")]:
        shutil.copy(unit, new_root / "etc/systemd/system")
    shutil.copy(UNITS / "mooncake-sidecar.sysusers", new_root / "usr/lib/sysusers.d/mooncake-sidecar.conf")
    shutil.copy(UNITS / "mooncake-sidecar.tmpfiles", new_root / "usr/lib/tmpfiles.d/mooncake-sidecar.conf")
    (new_root / "etc/default/mooncake-sidecar").write_text("MOONCAKE_SIDECAR_STORE_BYTES=64MiB\n")
    run("chroot", new_root, "systemd-sysusers")
    # Whoever runs an engine, and somebody else.
    for user in ("engine", "stranger"):
        if user not in (new_root / "etc/passwd").read_text():
            run("chroot", new_root, "useradd", "--create-home", user)
    run("chroot", new_root, "usermod", "-aG", "mooncake-sidecar", "engine")
    shutil.copy(pathlib.Path(__file__).with_name("ask.py"), new_root / "opt/mooncake/ask.py")
    run("chroot", new_root, "systemctl", "enable", "mooncake-lookupd.socket", LOOKUPD, "mooncake-worker@host-0.socket", WORKER)
    booted = System(new_root)
    yield booted
    booted.stop()


def active(system: System, *units: str):
    return lambda: all(system.show(unit, "ActiveState") == "active" for unit in units)


def test_units_start_and_are_ready(system):
    system.until("both units", active(system, LOOKUPD, WORKER))
    system.until("the store's memory", lambda: system.show(LOOKUPD, "StatusText") == "store of 64MiB")
    assert system.show(WORKER, "StatusText") == "device host-0"
    assert system.show(LOOKUPD, "NFileDescriptorStore") == "1"
    modes = dict(line.split() for line in system.ask("stat", "-c", "%n %a:%U:%G", *(
        f"/run/mooncake-sidecar{name}" for name in ("", "/lookupd.sock", "/worker-host-0.sock", "/store.sock"))).splitlines())  # fmt: skip
    ours = "mooncake-sidecar:mooncake-sidecar"
    assert list(modes.values()) == [f"750:{ours}", f"660:{ours}", f"660:{ours}", f"600:{ours}"], modes
    assert "store ready" in system.ask("mooncake-worker", "--runtime-dir", "/run/mooncake-sidecar", "status")


def test_an_engine_of_the_group_looks_up_and_a_stranger_does_not(system):
    system.until("both units", active(system, LOOKUPD, WORKER))
    system.until("the store's memory", lambda: system.show(LOOKUPD, "StatusText") == "store of 64MiB")
    ask = ("/opt/mooncake/bin/python", "-I", "/opt/mooncake/ask.py")
    told = system.ask("runuser", "-u", "engine", "--", *ask)
    answer = json.loads(told.splitlines()[-1])
    told += "\n" + system.ask("journalctl", "-u", LOOKUPD, "-o", "cat", "-n", "20")
    assert answer["directory"] == "/run/mooncake-sidecar" == str(pathlib.Path(answer["path"]).parent), told
    assert answer["up"] and answer["asked"] == 1 and answer["unanswered"] == 0, told
    for name in ("lookupd.sock", "admin-lookupd.sock", "store.sock"):
        refused = system.ask("runuser", "-u", "stranger", "--", "python3", "-c", CONNECT, f"/run/mooncake-sidecar/{name}")
        assert "PermissionError" in refused, refused
    for name in ("admin-lookupd.sock", "store.sock"):
        refused = system.ask("runuser", "-u", "engine", "--", "python3", "-c", CONNECT, f"/run/mooncake-sidecar/{name}")
        assert "PermissionError" in refused, refused


def test_a_killed_lookupd_gets_its_segment_back_without_workers(system):
    system.until("both units", active(system, LOOKUPD, WORKER))
    system.ask("systemctl", "stop", "mooncake-worker@host-0.socket", WORKER)
    before = system.show(LOOKUPD, "MainPID")
    system.ask("kill", "-9", before) if system.ask("which", "kill") else system.ask("sh", "-c", f"kill -9 {before}")
    system.until("the restart", lambda: system.show(LOOKUPD, "MainPID") not in (before, "0"))
    system.until("lookupd", active(system, LOOKUPD))
    assert "store recovered" in system.ask("journalctl", "-u", LOOKUPD, "-o", "cat")
    assert system.show(LOOKUPD, "NFileDescriptorStore") == "1"
    system.ask("systemctl", "start", "mooncake-worker@host-0.socket", WORKER)


def test_restart_keeps_the_segment_without_workers_and_stop_gives_it_back(system):
    def segment() -> str:
        lines = system.ask("journalctl", "-u", LOOKUPD, "-o", "cat").splitlines()
        return next(line for line in reversed(lines) if "msg=\"store " in line)

    system.until("both units", active(system, LOOKUPD, WORKER))
    system.ask("systemctl", "stop", "mooncake-worker@host-0.socket", WORKER)
    system.ask("systemctl", "restart", LOOKUPD)
    system.until("lookupd", active(system, LOOKUPD))
    assert "store recovered" in segment()
    system.ask("systemctl", "stop", "mooncake-lookupd.socket", LOOKUPD)
    system.ask("systemctl", "start", "mooncake-lookupd.socket", LOOKUPD)
    system.until("lookupd", active(system, LOOKUPD))
    assert "store created" in segment()
    system.ask("systemctl", "start", "mooncake-worker@host-0.socket", WORKER)


def stop_and_await_watchdog(system, unit):
    """Stops a unit's process with SIGSTOP, and waits until another is up."""
    before = system.show(unit, "MainPID")
    system.ask("sh", "-c", f"kill -STOP {before}")
    system.until("the watchdog", lambda: system.show(unit, "MainPID") not in (before, "0"))
    system.until(unit, active(system, unit))


def test_a_stopped_worker_is_started_again_by_the_watchdog(system):
    system.until("both units", active(system, LOOKUPD, WORKER))
    stop_and_await_watchdog(system, WORKER)
    assert "Watchdog timeout" in system.ask("journalctl", "-u", WORKER, "-o", "cat")


def test_a_stopped_lookupd_is_started_again_by_the_watchdog_and_gets_its_segment_back(system):
    system.until("both units", active(system, LOOKUPD, WORKER))
    stop_and_await_watchdog(system, LOOKUPD)
    log = system.ask("journalctl", "-u", LOOKUPD, "-o", "cat")
    assert "store recovered" in log[log.rindex("Watchdog timeout") :], log
    system.until("the worker's store", lambda: "store ready" in system.ask("mooncake-worker", "--runtime-dir", "/run/mooncake-sidecar", "status"))


def test_the_conductor_is_ready_started_again_by_the_watchdog_and_stops(system, new_root):
    with socket.socket() as free:  # the container has the machine's network
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    (new_root / "etc/default/mooncake-conductor").write_text(f"MOONCAKE_SIDECAR_LISTEN={address}\n")
    status = ("mooncake-conductor", "--runtime-dir", "/run/mooncake-conductor", "--listen", address, "status")
    assert system.ask("systemctl", "start", CONDUCTOR) == "", system.ask("journalctl", "-u", CONDUCTOR, "-o", "cat")
    assert system.show(CONDUCTOR, "ActiveState") == "active"  # Type=notify: it has said so itself
    assert address in system.ask(*status)
    assert system.ask("stat", "-c", "%a:%U", "/run/mooncake-conductor", "/var/lib/mooncake-conductor").split() == ["700:mooncake-sidecar"] * 2
    stop_and_await_watchdog(system, CONDUCTOR)
    assert system.ask("systemctl", "stop", CONDUCTOR) == ""
    assert (system.show(CONDUCTOR, "Result"), system.show(CONDUCTOR, "ExecMainStatus")) == ("success", "0")
    assert "stopping" in system.ask("journalctl", "-u", CONDUCTOR, "-o", "cat")


def test_reload_and_stop(system):
    system.until("both units", active(system, LOOKUPD, WORKER))
    assert system.ask("systemctl", "reload", LOOKUPD, WORKER) == ""
    system.until("the reload", lambda: "configuration read again" in system.ask("journalctl", "-u", LOOKUPD, "-o", "cat"))
    system.ask("systemctl", "stop", "mooncake-lookupd.socket", LOOKUPD)
    assert (system.show(LOOKUPD, "Result"), system.show(LOOKUPD, "ExecMainStatus")) == ("success", "0")
