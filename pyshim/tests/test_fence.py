"""The worker role against a daemon process that is stopped, killed, deaf or silent."""

import hashlib
import mmap
import os
import socket
import struct
import time

import pytest
from conftest import make_geometry

from mooncake_sidecar import config
from mooncake_sidecar import messages as msg
from mooncake_sidecar.batch import NO_LIMIT, StoreBatch
from mooncake_sidecar.board import sealed_memfd
from mooncake_sidecar.jobs import ALL_PARTS, JobCommand, Report, StepCommands, block_bytes, load_frame
from mooncake_sidecar.maintainer import Maintainer
from mooncake_sidecar.namespace import Ranks
from mooncake_sidecar.observing import Jobs
from mooncake_sidecar.registration import Memory, Registrant
from mooncake_sidecar.stats import SidecarStats
from mooncake_sidecar.worker import WorkerRole

PAGE, BLOCKS, TOKENS = 256, 64, 16
PATIENCE_S = 60


class Request:
    """What the job builders read of a vLLM request."""

    def __init__(self, name, blocks):
        self.request_id = name
        self.num_prompt_tokens = blocks * TOKENS
        self.cache_salt = None
        self.kv_transfer_params = None
        self.block_hashes = [hashlib.sha256(f"shared/{i}".encode()).digest() for i in range(blocks)]


class Rank:
    """A worker role with KV memory of its own and a clock that the test moves."""

    def __init__(self, runtime_dir, by_block=True, sync=False, **settings):
        self.fd = sealed_memfd("kv", PAGE * BLOCKS)
        self.kv = mmap.mmap(self.fd, PAGE * BLOCKS)
        values = config.parse({"runtime_dir": runtime_dir, "autostart": False, **settings})
        memory = Memory([msg.KVRegion("memfd", 0, 0, PAGE * BLOCKS)], [self.fd], [msg.KVSegment(0, 0, 0, PAGE, PAGE)])
        registrant = Registrant(
            values,
            make_geometry(TOKENS, page=PAGE),
            Ranks(1, 1, 1, 1),
            memory,
            num_blocks=BLOCKS,
            engine_id="engine",
            epoch=1,
            device="host-0",
        )
        self.maintainer = Maintainer(registrant.connect, "fake")
        self.offset = 0.0
        self.stats = SidecarStats()
        self.role = WorkerRole(
            self.maintainer.take,
            rank=0,
            by_block=by_block,
            sync=sync,
            count=self.stats.add,
            note=Jobs(self.stats),
            clock=lambda: time.monotonic() + self.offset,
        )
        self.jobs = 0
        self.reports = []
        self.received, self.failed, self.bad, self.stores, self.incomplete = [], set(), set(), {}, {}
        self.maintainer.start()
        self.maintainer.first_attempt.wait(PATIENCE_S)

    def close(self):
        self.maintainer.stop()
        self.role.close()
        self.kv.close()
        os.close(self.fd)

    def fill(self, block, byte):
        self.kv[block * PAGE : (block + 1) * PAGE] = bytes([byte]) * PAGE

    def content(self, block):
        return set(self.kv[block * PAGE : (block + 1) * PAGE])

    def store(self, request, blocks):
        self.jobs += 1
        tokens = len(blocks) * TOKENS
        self.step(StepCommands(stores=[store_job(self.jobs, request, tokens, blocks)]))
        return self.jobs

    def load(self, request, blocks, local=0):
        command = self.load_command(request, blocks, local)
        self.step(StepCommands(loads=[command]))
        return command.job

    def load_command(self, request, blocks, local=0):
        self.jobs += 1
        frame = load_frame(self.jobs, 1, request, len(blocks) * TOKENS, local * TOKENS, [block_bytes(blocks)], [], TOKENS)
        return JobCommand(self.jobs, request.request_id, frame, block_bytes(blocks[local:]))

    def load_in_step(self, request, blocks, stores=()):
        """A step that computes behind its load; returns the load's job."""
        command = self.load_command(request, blocks)
        self.step(StepCommands(loads=[command], stores=list(stores), sync=command.job))
        return command.job

    def step(self, commands=None):
        """One engine step in the order of the hooks."""
        commands = commands or StepCommands()
        self.role.start_loads(commands)
        self.role.start_stores(commands)
        found = self.role.poll()
        self.received += found.received
        self.failed |= found.failed
        self.bad |= self.role.take_bad_blocks()
        report = self.role.take_report()
        if report is not None:
            self.reports.append(report)
            for job, ranks in report.stores.items():
                self.stores[job] = self.stores.get(job, 0) + ranks
            self.incomplete |= report.incomplete
        return report

    def until(self, condition):
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, "gave up waiting"
            self.step()
            time.sleep(0.001)


def store_job(job, request, tokens, blocks):
    batch = StoreBatch(job, 1)
    batch.add(
        request.request_id,
        (tokens, tokens, tokens, tokens),
        NO_LIMIT,
        ("", 0, 0),
        0,
        request.block_hashes[: tokens // TOKENS],
        [(0, block_bytes(blocks))],
        [],
    )
    return batch.command(1, 1)


@pytest.fixture
def make_rank(runtime_dir):
    ranks = []

    def make(**settings):
        ranks.append(Rank(runtime_dir, **settings))
        return ranks[-1]

    yield make
    for rank in ranks:
        rank.close()


def stored(rank, blocks=(1, 2, 3)):
    """A request whose blocks hold 11, 12, 13 and are stored."""
    request = Request("first", len(blocks))
    for i, block in enumerate(blocks):
        rank.fill(block, 11 + i)
    job = rank.store(request, list(blocks))
    rank.until(lambda: job in rank.stores)
    return request


def test_a_store_and_a_load(start_daemon, make_rank):
    daemon, rank = start_daemon(), make_rank()
    stored(rank)
    rank.load(Request("second", 3), [7, 8, 9])
    rank.until(lambda: rank.received)
    assert rank.received == ["second"] and not rank.bad and not rank.failed
    assert [rank.content(b) for b in (7, 8, 9)] == [{11}, {12}, {13}]
    assert rank.stores == {1: 1}
    assert daemon.stats()["stores"] == 1
    reduced = rank.stats.reduce()
    assert (reduced["save_exists_total_keys"], reduced["save_put_total_keys"]) == (3, 3)
    assert reduced["save_put_total_bytes"] == reduced["load_get_total_bytes"] == 3 * PAGE
    assert "save_put_error_count" in reduced and not any(v for k, v in reduced.items() if "fail" in k or "error" in k)


def test_finished_and_preempted_come_before_the_jobs(start_daemon, make_rank):
    daemon, rank = start_daemon(), make_rank()
    rank.step(StepCommands(finished=["a"], preempted=["b"]))
    stored(rank)
    stats = daemon.stats()
    assert stats["finished"] == ["a"] and stats["preempted"] == ["b"]


def test_a_daemon_that_is_slow_hears_of_what_ended_meanwhile(start_daemon, make_rank):
    """Or it would keep the request's saved length, and count it for the next of that name."""
    daemon, rank = start_daemon(), make_rank()
    stored(rank)
    daemon.stop()
    rank.load(Request("second", 3), [7, 8, 9])
    rank.offset += 60
    rank.step()
    assert not rank.role.ready
    rank.step(StepCommands(finished=["a"], preempted=["b"]))
    daemon.wake()
    rank.until(lambda: rank.received)
    stats = daemon.stats()
    assert stats["finished"] == ["a"] and stats["preempted"] == ["b"]


def test_what_was_not_loaded_is_reported_block_by_block(start_daemon, make_rank):
    daemon, rank = start_daemon(), make_rank()
    stored(rank)
    daemon.order(corrupt=True)
    rank.load(Request("second", 3), [7, 8, 9], local=1)
    rank.until(lambda: rank.received)
    assert rank.bad == {8, 9} and rank.failed == set()
    assert rank.content(8) == {0}


def test_with_several_groups_failures_are_reported_by_request(start_daemon, make_rank):
    daemon, rank = start_daemon(), make_rank(by_block=False)
    stored(rank)
    daemon.order(corrupt=True)
    rank.load(Request("second", 3), [7, 8, 9])
    rank.until(lambda: rank.received)
    assert rank.failed == {"second"} and not rank.bad


def test_without_a_daemon_jobs_end_in_their_own_step(make_rank):
    rank = make_rank()
    rank.store(Request("a", 2), [1, 2])
    rank.load(Request("b", 3), [4, 0, 6])
    assert rank.stores == {1: 1}
    assert rank.received == ["b"] and rank.bad == {4, 6}


def test_readiness_is_reported_when_it_changes(start_daemon, make_rank):
    daemon, rank = start_daemon(), make_rank()
    assert rank.step() == Report(ready={0: True}, renewed=True)
    assert rank.step() is None
    daemon.kill()
    rank.until(lambda: not rank.role.ready)
    assert rank.role._ready is False


def test_killed_while_loading_everything_is_reported_and_it_serves_again(start_daemon, make_rank):
    daemon, rank = start_daemon(), make_rank()
    stored(rank)
    daemon.order(hold=True)
    rank.load(Request("second", 3), [7, 8, 9], local=1)
    held = rank.store(Request("third", 1), [5])
    rank.step()
    assert rank.received == []
    daemon.kill()
    rank.until(lambda: rank.received and held in rank.stores)
    assert rank.received == ["second"] and rank.bad == {8, 9}
    start_daemon()
    rank.until(lambda: rank.role.ready)
    stored(rank)
    rank.load(Request("fourth", 3), [7, 8, 9])
    rank.until(lambda: "fourth" in rank.received)
    assert rank.content(9) == {13}


def test_results_sent_before_death_count(start_daemon, make_rank):
    daemon, rank = start_daemon(), make_rank()
    stored(rank)
    rank.load(Request("second", 3), [7, 8, 9])
    while daemon.stats()["results"] < 2:
        time.sleep(0.001)
    daemon.kill()
    rank.until(lambda: rank.received)
    assert rank.content(9) == {13}


def test_a_stopped_daemon_of_someone_else_is_waited_for(start_daemon, make_rank):
    """Its blocks stay unreported until it has acknowledged: when it wakes late it must not find them reused."""
    daemon, rank = start_daemon(), make_rank()
    stored(rank)
    daemon.stop()
    rank.load(Request("second", 3), [7, 8, 9])
    rank.offset += 60  # far beyond the deadline and the kill delay
    for _ in range(20):
        rank.step()
    assert rank.received == [] and daemon.process.poll() is None
    assert not rank.role.ready
    # New jobs are not queued behind it.
    rank.load(Request("third", 1), [5])
    assert rank.received == ["third"] and rank.bad == {5}
    other = rank.store(Request("fourth", 1), [6])
    assert other in rank.stores and rank.incomplete == {other: {ALL_PARTS}}
    daemon.wake()
    rank.until(lambda: "second" in rank.received)
    assert rank.bad == {5, 7, 8, 9}
    assert rank.content(7) == {0}, "it copied although the job was cancelled"
    assert rank.role.ready
    assert daemon.stats()["loads"] == 0


def test_a_stopped_daemon_of_ours_is_killed_and_only_then_reported(start_daemon, make_rank):
    daemon, rank = start_daemon("--autostarted"), make_rank()
    stored(rank)
    daemon.stop()
    rank.load(Request("second", 3), [7, 8, 9])
    rank.offset += 10.5
    rank.step()
    assert daemon.process.poll() is None and rank.received == []
    rank.offset += 2.5
    rank.until(lambda: rank.received)
    assert rank.bad == {7, 8, 9}
    assert daemon.process.wait(5) == -9


def test_an_autostarted_daemon_that_may_not_be_killed_is_waited_for(start_daemon, make_rank, monkeypatch, caplog):
    """An engine of root's started it in this directory: the kernel refuses, and the step goes on."""
    daemon, rank = start_daemon("--autostarted"), make_rank()
    stored(rank)
    daemon.stop()

    def refuse(pidfd, number):
        raise PermissionError(1, "Operation not permitted")

    with monkeypatch.context() as patched:
        patched.setattr("signal.pidfd_send_signal", refuse)
        rank.load(Request("second", 3), [7, 8, 9])
        for _ in range(5):
            rank.offset += 20
            rank.step()
    assert caplog.text.count("look after it") == 1 and "killing it" not in caplog.text and rank.received == []
    daemon.wake()
    rank.until(lambda: rank.received)


def test_a_daemon_that_does_not_see_the_cancel_is_not_believed_dead(start_daemon, make_rank):
    """With the cancel word ignored the load is really made after the deadline: it must not be reported before."""
    daemon, rank = start_daemon(), make_rank()
    stored(rank)
    daemon.order(hold=True, ignore_cancel=True)
    rank.load(Request("second", 3), [7, 8, 9])
    rank.offset += 60
    for _ in range(20):
        rank.step()
    assert rank.received == []
    daemon.order(hold=False)
    rank.until(lambda: rank.received)
    assert rank.content(7) == {11}


def test_a_cancelled_load_is_acknowledged_and_its_blocks_are_bad(start_daemon, make_rank):
    daemon, rank = start_daemon(), make_rank()
    stored(rank)
    daemon.order(hold=True)
    rank.load(Request("second", 3), [7, 8, 9])
    rank.offset += 10.5
    rank.until(lambda: rank.received)
    assert rank.bad == {7, 8, 9} and daemon.stats()["cancels"] == 1
    assert rank.stats.reduce()["loads_cancelled"] == 1


def test_a_store_that_takes_too_long_is_given_up(start_daemon, make_rank):
    daemon, rank = start_daemon(), make_rank()
    daemon.order(hold=True)
    rank.fill(1, 11)
    job = rank.store(Request("first", 1), [1])
    rank.offset += 20
    rank.step()
    assert rank.stores == {}
    rank.offset += 11
    rank.until(lambda: job in rank.stores)
    assert rank.incomplete == {job: {ALL_PARTS}}
    assert daemon.stats()["chunks"] == 0


def test_a_session_that_ends_is_no_death(start_daemon, make_rank):
    """EOF alone: the process may still copy. Nothing is reported until it is gone."""
    daemon, rank = start_daemon(), make_rank()
    stored(rank)
    daemon.order(hold=True, ignore_cancel=True)
    rank.load(Request("second", 3), [7, 8, 9])
    rank.step()
    daemon.order(hang_up=True)
    rank.until(lambda: rank.role._old)
    for _ in range(20):
        rank.step()
    assert rank.received == []
    daemon.kill()
    rank.until(lambda: rank.received)
    assert rank.bad == {7, 8, 9}


@pytest.mark.parametrize(
    "junk",
    [
        struct.pack(">I", 0),
        struct.pack(">I", 1 << 31),
        struct.pack(">I", 3) + b"\xc1\xc1\xc1",
        struct.pack(">I", 12) + b"\x82\xa1t\xa6result\xa3jo",
    ],
)
def test_malformed_frames_end_the_session_and_a_new_one_is_made(start_daemon, make_rank, junk):
    daemon, rank = start_daemon(), make_rank()
    daemon.order(say=junk.hex())
    rank.until(lambda: not rank.role.ready)
    rank.until(lambda: rank.role.ready)
    stored(rank)


def test_unknown_messages_and_results_of_unknown_jobs_are_skipped(start_daemon, make_rank):
    daemon, rank = start_daemon(), make_rank()
    for message in ({"t": "surprise"}, {"t": "result", "job": 99, "kind": "load", "status": "ok"}):
        body = msg._encoder.encode(message)
        daemon.order(say=(struct.pack(">I", len(body)) + body).hex())
    stored(rank)
    assert rank.received == []


def test_without_a_store_jobs_fail_and_the_rank_is_not_ready(start_daemon, make_rank):
    daemon = start_daemon()
    daemon.order(store_ready=False)
    rank = make_rank()
    assert rank.step() == Report(ready={0: False}, renewed=True)
    rank.reports.clear()
    rank.load(Request("a", 1), [4])
    rank.until(lambda: rank.received)
    assert rank.bad == {4}
    # Whoever waits for it may look up again; what was saved is where it was.
    assert rank.reports == [Report(failed={"a"}, ready={0: False})]
    daemon.order(store_ready=True)
    # It is not asked whether it has a store again before the job is sent.
    stored(rank)
    rank.until(lambda: rank.role.ready)


def test_a_foreign_user_is_refused(runtime_dir, make_rank, monkeypatch):
    path = os.path.join(runtime_dir, "worker-host-0.sock")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        from mooncake_sidecar import session

        monkeypatch.setattr(session, "peer_credentials", lambda sock: (1, os.getuid() + 12345))
        with pytest.raises(session.SessionError, match="served by user"):
            session.open_session(path, msg.ROLE_PROBE, "", 0, 1)


def test_a_random_life(start_daemon, make_rank):
    """Jobs of all kinds while the daemon is killed and restarted: each is answered exactly once."""
    import random

    rng = random.Random(7)
    daemon, rank = start_daemon(), make_rank()
    stores, loads = [], []
    for turn in range(120):
        if rng.random() < 0.5:
            stores.append(rank.store(Request(f"s{turn}", 3), [1, 2, 3]))
        else:
            rank.load(Request(f"l{turn}", 3), [10 + turn % 5 * 3 + i for i in range(3)])
            loads.append(f"l{turn}")
        if turn in (40, 80):
            daemon.kill()
            daemon = start_daemon()
        rank.step()
    rank.until(lambda: len(rank.stores) == len(stores) and len(rank.received) == len(loads))
    assert sorted(rank.received) == sorted(loads)
    assert rank.stores == dict.fromkeys(stores, 1)


def test_a_daemon_whose_death_would_go_unnoticed_gets_no_jobs(start_daemon, make_rank, monkeypatch, caplog):
    start_daemon()

    def refuse(pid, flags=0):
        raise OSError(22, "no such pid here")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    rank = make_rank()
    rank.load(Request("first", 1), [5])
    assert rank.received == ["first"] and not rank.role.ready
    assert "share a pid namespace" in caplog.text.replace("\n", " ")


def test_someone_elses_daemon_that_never_answers_is_complained_about_once(start_daemon, make_rank, caplog):
    daemon, rank = start_daemon(), make_rank()
    stored(rank)
    daemon.stop()
    rank.load(Request("second", 3), [7, 8, 9])
    for _ in range(5):
        rank.offset += 20
        rank.step()
    assert caplog.text.count("look after it") == 1 and rank.received == []
    daemon.wake()
    rank.until(lambda: rank.received)


def test_a_long_request_id_does_not_end_the_session(start_daemon, make_rank):
    daemon, rank = start_daemon(), make_rank()
    name = "x" * 100_000
    rank.step(StepCommands(finished=[name], preempted=[name]))
    job = rank.store(Request(name, 1), [5])
    rank.until(lambda: job in rank.stores)
    stats = daemon.stats()
    assert all(len(seen) <= 1024 for seen in [*stats["finished"], *stats["preempted"]])
    rank.load(Request(name, 1), [7])
    rank.until(lambda: rank.received)
    assert rank.received == [name] and not rank.failed


def test_a_session_that_nobody_took_is_closed():
    """Daemons that come and go beside an idle engine must not use up its descriptors."""
    closed, made = [], []

    class Session:
        def __init__(self):
            self.ours, self.theirs = socket.socketpair()
            made.append(self)

        def watch_descriptors(self):
            return os.dup(self.ours.fileno()), -1

        def close(self):
            closed.append(self)
            self.ours.close()

    maintainer = Maintainer(lambda stop: Session(), "fake")
    maintainer.start()
    deadline = time.monotonic() + PATIENCE_S
    while len(made) < 3:
        assert time.monotonic() < deadline
        for session in made:
            session.theirs.close()
        time.sleep(0.001)
    maintainer.stop()
    assert closed == made


def test_a_step_without_wait_for_save_is_made_up_for(start_daemon, make_rank):
    """With a drafter and pipeline parallelism vLLM leaves the hook out on some ranks."""
    daemon, rank = start_daemon(), make_rank()
    request = Request("first", 1)
    rank.role.start_loads(StepCommands(stores=[store_job(1, request, TOKENS, [5])]))
    rank.step(StepCommands(finished=["first"]))
    rank.until(lambda: 1 in rank.stores)
    assert rank.stores == {1: 1} and not rank.incomplete
    rank.until(lambda: daemon.stats()["finished"] == ["first"])
    assert daemon.stats()["stores"] == 1
