"""What is shown on a machine with a GPU.

Each check returns a finding: what was measured, and whether it is as it should be.
Over the double all of them run, and times are not judged.
"""

import os
import select
import statistics
import subprocess
import threading
import time
from dataclasses import dataclass, field

import torch
from engine import Daemons, Engine
from shapes import Shape

GIB = 1 << 30


@dataclass
class Finding:
    """The outcome of a check."""

    check: str
    ok: bool
    figures: dict = field(default_factory=dict)


def free_of(engine: Engine) -> list[int]:
    """The engine's blocks but the null block."""
    return list(range(1, engine.blocks))


def bytes_are_equal(device, directory: str, shape: Shape) -> Finding:
    """Blocks that were stored come back elsewhere, bit for bit, and nothing else is written."""
    engine = Engine(device, directory, shape, 24)
    view = shape.view(engine.cache, engine.blocks)
    device.noise(engine.cache)
    want = view.clone()
    ids = list(range(1, 9))
    engine.store(f"bytes {shape.name}", ids)
    to = [20, 13, 11, 12, 15, 14, 22, 9]
    engine.load(f"bytes {shape.name}", to)
    same = all(torch.equal(view[there], want[here]) for here, there in zip(ids, to, strict=True))
    rest = all(torch.equal(view[i], want[i]) for i in range(engine.blocks) if i not in to)
    engine.close()
    return Finding(f"bytes, {shape.name}", same and rest, {"same": same, "others_untouched": rest})


def sleep_and_wake(device, directory: str, shape: Shape) -> Finding:
    """An engine that sleeps has its memory free, and finds what was stored when it wakes up."""
    blocks = max(device.unit // shape.block, 24)
    other = Engine(device, directory, shape, 2)  # the worker's context stays: what is freed is the engine's
    chunk, cache = device.chunk(shape.block * blocks)
    engine = Engine(device, directory, shape, blocks, memory=(cache, chunk.address))
    device.noise(cache)
    want = shape.view(cache, blocks).clone()
    ids = free_of(engine)
    engine.store("slept", ids)
    before = device.free_bytes()
    engine.close()
    chunk.take()
    freed = device.free_bytes() - before
    chunk.give()
    cache.zero_()
    engine = Engine(device, directory, shape, blocks, memory=(cache, chunk.address))
    engine.load("slept", ids)
    same = torch.equal(shape.view(cache, blocks)[1:], want[1:])
    engine.close()
    chunk.take()
    other.close()
    return Finding("sleep and wake", same and freed >= chunk.size, {"same": same, "freed": freed, "of": chunk.size})


def bandwidth(device, daemons: Daemons, shape: Shape) -> Finding:
    """Stores and loads against one copy of as many bytes with pinned memory."""
    rounds = 5 if device.real else 1
    blocks = max(2, device.unit // 2 // shape.block) + 1
    engine = Engine(device, daemons.directory, shape, blocks)
    device.noise(engine.cache)
    ids = free_of(engine)
    moved = len(ids) * shape.block
    pinned = device.pinned(moved)
    plain = engine.cache[:moved]
    times: dict[str, list[float]] = {"store": [], "load": [], "plain_store": [], "plain_load": []}
    for i in range(rounds):
        for key, to, source in (("plain_store", pinned, plain), ("plain_load", plain, pinned)):
            device.synchronize()
            began = time.perf_counter()
            to.copy_(source, non_blocking=True)
            device.synchronize()
            times[key].append(time.perf_counter() - began)
        name = f"bandwidth {shape.name} {i}"
        times["store"].append(engine.store(name, ids).move_us / 1e6)
        times["load"].append(engine.load(name, ids).move_us / 1e6)
    engine.close()
    best = {key: min(values) for key, values in times.items()}
    gbps = {key: round(moved / value / 1e9, 2) for key, value in best.items()}
    ratios = {key: round(best[f"plain_{key}"] / best[key], 3) for key in ("store", "load")}
    wanted = 0.9 if shape.piece >= 256 << 10 else 0.8
    return Finding(
        f"bandwidth, {shape.name}",
        min(ratios.values()) >= wanted or not device.real,
        {"gb_per_s": gbps, "of_plain": ratios, "wanted": wanted, "piece": shape.piece, "by": daemons.ways()},
    )


def matmul_slowdown(device, daemons: Daemons, shape: Shape) -> Finding:
    """How much stores and loads slow a stream of matrix multiplications down."""
    seconds = 4.0 if device.real else 0.1
    engine = Engine(device, daemons.directory, shape, max(device.unit // 4 // shape.block, 24))
    multiply = device.work(8192)

    def rate() -> float:
        done, until = 0, time.perf_counter() + seconds
        device.synchronize()
        began = time.perf_counter()
        while time.perf_counter() < until:
            for _ in range(20):
                multiply()
            device.synchronize()
            done += 20
        return done / (time.perf_counter() - began)

    stop, moved = threading.Event(), [0]

    def traffic() -> None:
        i = 0
        while not stop.is_set():
            name = f"traffic {i}"
            moved[0] += engine.store(name, free_of(engine)).bytes + engine.load(name, free_of(engine)).bytes
            i += 1

    rate()
    alone, beside = [], []
    for _ in range(3):  # in turns: clocks change
        alone.append(rate())
        stop.clear()
        thread = threading.Thread(target=traffic)
        thread.start()
        beside.append(rate())
        stop.set()
        thread.join()
    engine.close()
    slowdown = 1 - statistics.median(beside) / statistics.median(alone)
    return Finding(
        f"matrix multiplications beside, {shape.name}",
        moved[0] > 0 and (slowdown < 0.03 or not device.real),
        {"slowdown": round(slowdown, 4), "moved_gib": round(moved[0] / GIB, 1), "by": daemons.ways()},
    )


def the_engine_writes_first(device, directory: str, shape: Shape) -> Finding:
    """A store waits for the kernel that fills its blocks; without the event it must not, or the check shows nothing."""
    outcome = {}
    for waits in (True, False):
        engine = Engine(device, directory, shape, 16)
        engine.cache.zero_()
        device.synchronize()
        name = f"order {waits}"
        device.slow_fill(engine.cache, 7, 1.0)
        slot = engine.ring.record()
        engine.store(name, free_of(engine), slot if waits else -1)
        device.synchronize()
        engine.cache.zero_()
        device.synchronize()
        engine.load(name, free_of(engine))
        outcome[waits] = bool((shape.view(engine.cache, engine.blocks)[1:] == 7).all())
        engine.close()
    return Finding(
        "the engine writes first",
        outcome[True] and not outcome[False],
        {"waiting": outcome[True], "without": outcome[False]},
    )


def kills(device, daemons: Daemons, child: list[str], shape: Shape) -> Finding:
    """kill -9 of the engine, and of the worker: the GPU's memory is free again, and nothing is written any more."""
    before = device.free_bytes()
    engine = subprocess.Popen([*child, "--child"], stdout=subprocess.PIPE, text=True)
    assert engine.stdout.readline() == "registered\n"
    used = before - device.free_bytes()
    engine.kill()
    engine.wait()
    engine_left = before - settle(device, before)
    fenced = killed_while_loading(device, daemons, shape)
    worker_left = before - settle(device, before)
    daemons.start_worker()
    again = bytes_are_equal(device, daemons.directory, shape).ok
    slack = device.unit // 16
    freed = used > device.unit and engine_left < slack and worker_left < slack
    middle = fenced["in_the_middle"] or not device.real  # the double's load may be over too soon
    return Finding(
        "kill -9", freed and again and middle and not fenced["written_after_death"],
        {"used": used, "left_by_engine": engine_left, "left_by_worker": worker_left, "works_again": again, **fenced},
    )  # fmt: skip


def killed_while_loading(device, daemons: Daemons, shape: Shape) -> dict:
    """Kill the worker in the middle of a load, overwrite the blocks once it is dead, and look whether they stay so.

    That is what an engine does: a dead worker's blocks are others' at once. The worker is dead at the end.
    """
    old, empty, new = 1, 2, 3
    outcome = {"in_the_middle": False, "written_after_death": False}
    for i in range(10 if device.real else 2):
        if daemons.worker.poll() is not None:
            daemons.start_worker()
        engine = Engine(device, daemons.directory, shape, 2 * device.unit // shape.block)
        view, ids, name = shape.view(engine.cache, engine.blocks), free_of(engine), f"killed {i}"
        last = (slice(1, None), *[-1] * (view.dim() - 1))  # a byte of each block
        engine.cache.fill_(old)
        device.synchronize()
        engine.store(name, ids)
        whole_s = engine.load(name, ids).move_us / 1e6
        engine.cache.fill_(empty)
        device.synchronize()
        dead = os.pidfd_open(daemons.worker.pid)
        engine.begin_load(name, ids)
        until = time.monotonic() + 10
        while not bool((view[last] == old).any()) and time.monotonic() < until:
            pass  # until it has begun
        time.sleep(whole_s / 4)
        daemons.worker.kill()
        select.select([dead], [], [])
        left = view[last].clone()
        engine.cache.fill_(new)  # right behind that
        device.synchronize()
        time.sleep(1)
        outcome["written_after_death"] |= not bool((engine.cache == new).all())
        outcome["in_the_middle"] |= bool((left == old).any()) and bool((left == empty).any())
        os.close(dead)
        daemons.worker.wait()
        device.worker_died()
        engine.session.close()
        engine.board.close()
        del engine, view, left
        if outcome["in_the_middle"]:
            break
    return outcome


def killed_while_computing(device, daemons: Daemons, child: list[str], shape: Shape) -> Finding:
    """kill -9 of an engine whose step is under way: what waits for the step's event is not stored.

    The event's owner is gone then, and CUDA says nothing of such an event. Without the wait it is stored.
    """
    stored = {}
    for waits in (True, False):
        name = f"computing {waits}"
        command = [*child, "--child", "--store-as", name, *(["--wait"] if waits else [])]
        engine = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert engine.stdout.readline() == "registered\n"
        time.sleep(1.0)
        engine.kill()
        engine.wait()
        other = Engine(device, daemons.directory, shape, 32)
        time.sleep(1.0)  # for what must not come
        stored[waits] = other.holds(name, CHILDS)
        other.close()
    return Finding("kill -9 of an engine that computes", stored == {True: False, False: True}, {
        "stored": stored[True], "stored_without": stored[False]
    })  # fmt: skip


def settle(device, wanted: int, seconds: float = 20.0) -> int:
    """The free memory, when it is as much as wanted or does not become so."""
    until = time.monotonic() + seconds
    while (free := device.free_bytes()) < wanted and time.monotonic() < until:
        time.sleep(0.1)
    return free


def event_cost(device, rounds: int = 2000) -> Finding:
    """What the engine's thread pays for a step's event, on a busy stream."""
    ring = device.ring()
    multiply = device.work(1024)
    costs = []
    for _ in range(rounds):
        multiply()
        began = time.perf_counter()
        ring.record()
        costs.append((time.perf_counter() - began) * 1e6)
    device.synchronize()
    median, worst = statistics.median(costs), statistics.quantiles(costs, n=100)[98]
    return Finding("an event", median < 20 or not device.real, {"median_us": round(median, 2), "p99_us": round(worst, 2)})


CHILDS = list(range(1, 9))
"""The blocks that a child stores."""


def child(device, directory: str, shape: Shape, store: str | None, wait: bool) -> None:
    """An engine that registers twice ``unit`` bytes and waits to be killed.

    Args:
        store: a name for blocks that it stores in the middle of a step.
        wait: they are stored when the step is over.
    """
    engine = Engine(device, directory, shape, 2 * device.unit // shape.block)
    engine.store("child", CHILDS)
    if store is not None:
        device.slow_fill(engine.cache, 7, 20.0)
        slot = engine.ring.record()
        if wait:
            engine.begin_store(store, CHILDS, slot)
        else:
            engine.store(store, CHILDS)
    print("registered", flush=True)
    time.sleep(3600)


def no_faults(device) -> Finding:
    """The daemons used the driver's double as a driver wants it."""
    count, first = device.faults()
    return Finding("the driver's rules", count == 0, {"broken": count, "first": first})
