"""Engines as forks of one process that has imported vLLM: importing it three times is nine tenths of an engine's start.

An engine of the CPU platform spawns its core and its worker as new interpreters; here they are forks, which is vLLM's own
default on every other platform. They sleep where vLLM's loops yield, for the reason that `patient` gives. What only a new
interpreter reads (LD_PRELOAD, say, or how OpenMP's threads are bound) a fork can't be given: `fits` says so, and such an
engine starts the usual way. So do those of the demo, the soak and all benchmarks.

    Nursery  starts the process, and engines in it
    Child    one engine, to be used as a subprocess.Popen
    _serve   the process itself (python -m harness.nursery FD): one thread, nothing of vLLM's has run in it but imports
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import multiprocessing
import os
import pathlib
import selectors
import signal
import socket
import subprocess
import sys
import traceback
from typing import Mapping, Sequence

# What engines of the generated checkpoints import sooner or later.
MODULES = (
    "vllm.entrypoints.launchers.api_server.entry",
    "vllm.v1.engine.async_llm",
    "vllm.v1.engine.core",
    "vllm.v1.executor.multiproc_executor",
    "vllm.v1.worker.cpu_worker",
    "vllm.v1.attention.backends.cpu_attn",
    "vllm.distributed.kv_transfer.kv_connector.v1.multi_connector",
    "vllm.model_executor.models.llama",
    "vllm.model_executor.models.gemma3",
    "vllm.model_executor.models.deepseek_v2",
    "vllm.model_executor.models.qwen3_next",
)

# Read by an interpreter or a library when it begins.
_TOO_LATE = ("LD_", "OMP_", "GOMP_", "KMP_", "TORCH", "VLLM_CPU_OMP_", "VLLM_LOGGING_")
_REQUEST_BYTES = 128 << 10


class Child:
    """One engine: the parts of subprocess.Popen that a harness needs. It leads a session and a group of its own."""

    def __init__(self, status: socket.socket):
        self._status = status
        self.pid = int(self._line(None))
        self.returncode: int | None = None

    def poll(self) -> int | None:
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        """The exit status, negative for a signal; subprocess.TimeoutExpired when it does not come in time."""
        if self._ended(timeout) is None:
            raise subprocess.TimeoutExpired("engine", timeout)
        return self.returncode

    def terminate(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGTERM)

    def _ended(self, timeout: float | None) -> int | None:
        if self.returncode is None and (line := self._line(timeout)) is not None:
            self.returncode = int(line)
            self._status.close()
        return self.returncode

    def _line(self, timeout: float | None) -> bytes | None:
        self._status.settimeout(timeout)
        try:
            said = self._status.recv(64)
        except (BlockingIOError, TimeoutError):
            return None
        if not said:
            raise RuntimeError("the process that engines are forks of has ended")
        return said


class Nursery:
    """Imports vLLM in the background from construction on. `close` ends it and every engine in it."""

    def __init__(self) -> None:
        self._environment = dict(os.environ)
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            here = pathlib.Path(__file__).resolve().parent
            path = os.pathsep.join(filter(None, (str(here / "patient"), os.environ.get("PYTHONPATH"))))
            settings = {"TORCHDYNAMO_DISABLE": "1", "HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "INFO", "PYTHONPATH": path}
            self._process = subprocess.Popen(
                [sys.executable, "-m", "harness.nursery", str(theirs.fileno())],
                cwd=here.parent,
                pass_fds=(theirs.fileno(),),
                env=self._environment | settings,
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # an interrupt from the keyboard is for the tests, which end it in order
            )

    def fits(self, python: str, environment: Mapping[str, str]) -> bool:
        """Whether a fork can be what a new interpreter with these additions to our own environment would be."""
        return python == sys.executable and not any(
            name.startswith(_TOO_LATE) and value != self._environment.get(name) for name, value in environment.items()
        )

    def start(self, arguments: Sequence[str], environment: Mapping[str, str], log: int) -> Child:
        """An engine with vLLM's command-line arguments, and its whole environment."""
        request = json.dumps({"arguments": list(arguments), "environment": dict(environment)}).encode()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            socket.send_fds(self._control, [request], [log, theirs.fileno()])
        return Child(ours)

    def close(self) -> None:
        self._control.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:  # it still imports
            self._process.kill()
            self._process.wait()


class _Keeper:
    """Forks engines as the control socket asks for them, tells their ends, and ends them all when that socket ends."""

    def __init__(self, control: socket.socket):
        self._control = control
        self._events = selectors.DefaultSelector()
        self._events.register(control, selectors.EVENT_READ)
        self._alive: dict[int, socket.socket] = {}  # process id -> where its end is told

    def run(self) -> None:
        while True:
            for key, _ in self._events.select():
                if key.fileobj is not self._control:
                    self._reap(key.fd, key.data)
                elif not self._start():
                    return self._end()

    def _start(self) -> bool:
        """Serves one request; False when there will be none any more. Does not return in the engine."""
        request, descriptors, _, _ = socket.recv_fds(self._control, _REQUEST_BYTES, 2)
        if not request:
            return False
        log, status = descriptors
        pid = os.fork()
        if pid == 0:
            self._events.close()
            for inherited in (self._control, *self._alive.values()):
                inherited.close()
            os.close(status)
            _become_engine(log, **json.loads(request))
        os.close(log)
        self._alive[pid] = socket.socket(fileno=status)
        self._tell(pid, pid)
        self._events.register(os.pidfd_open(pid), selectors.EVENT_READ, pid)
        return True

    def _reap(self, pidfd: int, pid: int) -> None:
        self._events.unregister(pidfd)
        os.close(pidfd)
        _, status = os.waitpid(pid, 0)
        self._tell(pid, os.waitstatus_to_exitcode(status))
        self._alive.pop(pid).close()

    def _tell(self, pid: int, number: int) -> None:
        with contextlib.suppress(OSError):  # nobody may want to know any more
            self._alive[pid].send(str(number).encode())

    def _end(self) -> None:
        for pid in self._alive:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)


def _become_engine(log: int, arguments: list[str], environment: dict[str, str]) -> None:
    """What a new interpreter would do with these, in a session of its own."""
    code = 1
    try:
        os.setsid()
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.environ.clear()
        os.environ.update(environment)
        sys.argv = ["api_server", *arguments]
        sys.path[1:1] = [place for place in environment.get("PYTHONPATH", "").split(os.pathsep) if place]
        from vllm.entrypoints.launchers.api_server.entry import main

        main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _serve(control: socket.socket) -> None:
    system = importlib.import_module("vllm.utils.system_utils")
    system.get_mp_context = lambda: multiprocessing.get_context("fork")  # before others import it by name
    for name in MODULES:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # a collection in a fork would copy every page that it looks at
    _Keeper(control).run()


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
