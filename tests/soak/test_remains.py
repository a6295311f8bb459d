"""What is left behind is found."""

import json
import socket
import threading
import types

import pytest
from harness.daemons import LOOKUPD, SOCKETS, WORKER
from soak import remains

WELL = {
    LOOKUPD: "mooncake_sidecar_store_open_reads 0\nmooncake_sidecar_store_open_puts 0\n"
    "mooncake_sidecar_store_undeclared_clients 0\nmooncake_sidecar_store_leases 0\n",
    WORKER: "mooncake_sidecar_worker_queue_jobs 0\nmooncake_sidecar_worker_running_jobs 0\nmooncake_sidecar_worker_queue_bytes 0\n",
}


class Pages:
    """Answers on the daemons' administration sockets."""

    def __init__(self, directory, pages):
        self._listeners = []
        for name, page in pages.items():
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(str(directory / f"admin-{SOCKETS[name]}"))
            listener.listen()
            threading.Thread(target=self._serve, args=(listener, page), daemon=True).start()
            self._listeners.append(listener)

    def _serve(self, listener, page):
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.recv(4096)
                connection.sendall(f"HTTP/1.1 200 OK\r\nContent-Length: {len(page)}\r\nConnection: close\r\n\r\n{page}".encode())

    def close(self):
        for listener in self._listeners:
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        (lambda text: text, None),
        (lambda text: text.replace("open_reads 0", "open_reads 2"), "store_open_reads is 2"),
        (lambda text: text.replace("open_puts 0", "open_puts 1"), "store_open_puts is 1"),
        (lambda text: text.replace("leases 0", "leases 3"), "store_leases is 3"),
        (lambda text: text.replace("running_jobs 0", "running_jobs 1"), "worker_running_jobs is 1"),
    ],
)
def test_what_daemons_still_hold(tmp_path, broken, told):
    pages = Pages(tmp_path, {name: broken(page) for name, page in WELL.items()})
    try:
        held = remains.in_daemons(types.SimpleNamespace(directory=tmp_path), limit_s=0)
    finally:
        pages.close()
    assert (held == []) if told is None else (len(held) == 1 and told in held[0]), held


def test_a_gauge_that_is_not_there_is_no_zero(tmp_path):
    """Else a metric that was renamed would be an empty store for ever."""
    pages = Pages(tmp_path, WELL | {WORKER: "up 1\n"})
    try:
        held = remains.in_daemons(types.SimpleNamespace(directory=tmp_path), limit_s=0)
    finally:
        pages.close()
    assert len(held) == 3, held


def test_a_daemon_that_does_not_answer(tmp_path):
    held = remains.in_daemons(types.SimpleNamespace(directory=tmp_path), limit_s=0)
    assert len(held) == 2


def engine(*successes, idle=None):
    """One whose pool answers so to resets, the last answer for ever."""
    answers = list(successes)

    def wait_idle(limit_s):
        if idle:
            raise AssertionError(idle)

    def call(*_):
        return json.dumps({"success": answers.pop(0) if len(answers) > 1 else answers[0]})

    return types.SimpleNamespace(
        client=types.SimpleNamespace(call=call),
        engine=types.SimpleNamespace(wait_idle=wait_idle, log_tail=lambda lines: "", log=lambda: ""),
    )


def test_blocks_that_are_held():
    assert remains.blocks_held(engine(True)) is None
    assert remains.blocks_held(engine(False, False, True)) is None
    assert "holds blocks" in remains.blocks_held(engine(False), limit_s=0)
    assert remains.blocks_held(engine(True, idle="1 running")) == "1 running"


TRACEBACK = '''(EngineCore pid=7) Traceback (most recent call last):
(EngineCore pid=7)   File "/somewhere/vllm/v1/core/sched/scheduler.py", line 5, in step
(EngineCore pid=7)   File "/somewhere/mooncake_sidecar/scheduler.py", line 7, in step
(EngineCore pid=7) KeyError: 'r1'
'''


@pytest.mark.parametrize(
    ("log", "told"),
    [
        ("INFO mooncake_sidecar: mooncake-worker serves\nINFO a Traceback is what this line has, and no more\n", 0),
        (TRACEBACK, 1),
        (TRACEBACK.replace("mooncake_sidecar", "vllm"), 0),
        ("Exception in thread mooncake-lookup:\n", 1),
        ("vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue\n", 1),
    ],
)
def test_what_an_engine_logs(tmp_path, log, told):
    cell = engine(True)
    cell.directory, cell.engine.log = tmp_path, lambda: log
    assert len(remains.in_logs(cell)) == told


def test_last_words(tmp_path):
    cell = engine(True)
    cell.directory = tmp_path
    (tmp_path / "mooncake-worker-host-0.log").write_text('{"msg":"well"}\nfatal error: all goroutines are asleep - deadlock!\n')
    assert remains.in_logs(cell) == ["mooncake-worker-host-0.log: fatal error: all goroutines are asleep - deadlock!"]
