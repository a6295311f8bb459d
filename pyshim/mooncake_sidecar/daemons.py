"""Finding the daemons of a node, and starting those that are not there.

Ranks and engines share daemons, so looking and starting happen under a lock
file. Only background threads come here.
"""

import fcntl
import logging
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from mooncake_sidecar import messages as msg
from mooncake_sidecar import paths, programs
from mooncake_sidecar.config import Settings
from mooncake_sidecar.session import SessionError, open_session

logger = logging.getLogger("vllm.mooncake_sidecar.daemons")

LOOKUPD = "mooncake-lookupd"
WORKER = "mooncake-worker"
_PROBE_S = 0.5
_POLL_S = 0.01


class DaemonError(RuntimeError):
    """A daemon is not there and can't be started; the text says why and what to do."""


@dataclass(frozen=True)
class Daemon:
    """A daemon that a shim needs: its program, its socket and its flags."""

    program: str
    socket: str
    arguments: tuple[str, ...]
    log: str


def lookupd(directory: str, settings: Settings) -> Daemon:
    """The node's lookup server and store."""
    size = () if settings.store_bytes is None else ("--store-bytes", str(settings.store_bytes))
    events = ("--kv-events-endpoint", "local") if settings.enable_kv_events else ()
    arguments = ("--runtime-dir", directory, *size, *events, *_cluster(settings), *_common(settings))
    return Daemon(LOOKUPD, paths.lookupd_socket(directory), arguments, os.path.join(directory, f"{LOOKUPD}.log"))


def _cluster(settings: Settings) -> tuple[str, ...]:
    """Flags of a Mooncake cluster below the store. Its wheel is where the engine's is, unless said otherwise."""
    if not settings.on_cluster:
        return ("--store", settings.store) if settings.store else ()
    flags = ["--store", "mooncake"]
    if python := settings.store_python or ("" if os.environ.get("MOONCAKE_SIDECAR_STORE_PYTHON") else sys.executable):
        flags += ["--store-python", python]
    for name in ("mooncake_library", "mooncake_config", "mooncake_write", "mooncake_reset", "mooncake_events"):
        if value := getattr(settings, name):
            flags += ["--" + name.replace("_", "-"), value]
    return tuple(flags)


def worker(directory: str, device: str, settings: Settings) -> Daemon:
    """The worker of a device, e.g. ``host-0``."""
    arguments = ("--runtime-dir", directory, "--device", device, *_common(settings))
    log = os.path.join(directory, f"{WORKER}-{device}.log")
    return Daemon(WORKER, paths.worker_socket(directory, device), arguments, log)


def _common(settings: Settings) -> tuple[str, ...]:
    linger = f"{settings.linger_s / 60:g}m" if settings.linger_s % 60 == 0 else f"{settings.linger_s:g}s"
    return ("--linger", linger, "--autostarted", "--log-level", settings.log_level)


def find_binary(program: str, settings: Settings) -> str:
    """The program's file: configured place, the package, MOONCAKE_SIDECAR_BIN, a source tree's bin/, PATH.

    Raises:
        DaemonError: it is nowhere; the text lists where was looked.
    """
    places = [settings.binaries_dir, *programs.places()]
    for place in filter(None, places):
        candidate = os.path.join(os.path.abspath(place), program)
        if os.access(candidate, os.X_OK):
            return candidate
    # An installation without programs has commands of these names in PATH, which can only say so.
    if (found := shutil.which(program)) and not programs.is_wrapper(found):
        return os.path.abspath(found)
    looked = ", ".join([*filter(None, places), "PATH"])
    raise DaemonError(
        f"{program} was not found (looked in {looked}); install the wheel of mooncake-sidecar, which has it, "
        "set binaries_dir to where it is, or start it by hand"
    )


def probe(path: str, timeout: float = _PROBE_S) -> msg.Welcome:
    """Ask the daemon at ``path`` who it is.

    Raises:
        SessionError: nobody answers there.
    """
    session = open_session(path, msg.ROLE_PROBE, "", 0, timeout)
    try:
        return session.welcome
    finally:
        session.close()


def ensure(wanted: list[Daemon], directory: str, settings: Settings, budget_s: float, stop: threading.Event) -> None:
    """Return once every wanted daemon answers, starting those that do not.

    Raises:
        DaemonError: not within the budget, or not at all.
        OSError: the runtime directory can't be used.
    """
    deadline = time.monotonic() + budget_s
    system = paths.is_system_dir(directory)
    paths.check_runtime_dir(directory, create=settings.autostart and not system)
    if all(_answers(daemon) for daemon in wanted):
        return
    if system:
        silent = next(daemon for daemon in wanted if not _answers(daemon))
        raise DaemonError(
            f"{silent.program} does not answer at {silent.socket}, where daemons of the system listen; "
            f"have it started: systemctl enable --now {_unit(silent)}"
        )
    if not settings.autostart:
        silent = next(daemon for daemon in wanted if not _answers(daemon))
        raise DaemonError(f"{silent.program} does not answer at {silent.socket} and autostart is off; start it by hand")
    with _lock(os.path.join(directory, "autostart.lock"), deadline, stop):
        for daemon in wanted:
            if not _answers(daemon):
                binary = find_binary(daemon.program, settings)
                launch(binary, daemon)
                _wait(lambda daemon=daemon: _answers(daemon), daemon, deadline, stop)


def _unit(daemon: Daemon) -> str:
    """The socket unit that brings a daemon up."""
    if daemon.program == LOOKUPD:
        return f"{LOOKUPD}.socket"
    device = os.path.basename(daemon.socket).removeprefix("worker-").removesuffix(".sock")
    return f"{WORKER}@{device}.socket"


def launch(binary: str, daemon: Daemon) -> None:
    """Start a daemon in its own process session, as nobody's child.

    Raises:
        DaemonError: not even the launcher ran.
    """
    script = os.path.join(programs.PACKAGE, "launch.py")
    command = [sys.executable, "-I", "-S", script, daemon.log, binary, *daemon.arguments]
    logger.info("starting %s (log: %s)", daemon.program, daemon.log)
    try:
        subprocess.run(command, stdin=subprocess.DEVNULL, check=True, timeout=5, close_fds=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise DaemonError(f"{daemon.program} can't be started: {error}") from error


def _answers(daemon: Daemon) -> bool:
    try:
        probe(daemon.socket)
    except SessionError:
        return False
    return True


def _wait(ready: Callable[[], bool], daemon: Daemon, deadline: float, stop: threading.Event) -> None:
    while not ready():
        if time.monotonic() >= deadline:
            raise DaemonError(
                f"{daemon.program} was started but does not answer at {daemon.socket}: {_last_line(daemon.log)}"
            )
        if stop.wait(_POLL_S):
            raise DaemonError("shutting down")


def _last_line(path: str) -> str:
    try:
        with open(path, "rb") as log:
            log.seek(0, os.SEEK_END)
            log.seek(max(0, log.tell() - 2048))
            lines = log.read().decode("utf-8", "replace").strip().splitlines()
    except OSError as error:
        return f"its log {path} can't be read: {error.strerror}"
    return f"its log {path} ends with: {lines[-1]}" if lines else f"its log {path} is empty"


@contextmanager
def _lock(path: str, deadline: float, stop: threading.Event) -> Iterator[None]:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline or stop.wait(_POLL_S):
                    raise DaemonError(f"another process is starting daemons and holds {path}") from None
        yield
    finally:
        os.close(fd)
