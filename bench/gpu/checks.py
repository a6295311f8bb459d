"""What is shown on a machine with a GPU.

Each check returns a finding: what was measured, and whether it is as it should be.
"""

import os
import select
import statistics
import subprocess
import sys
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
    blocks = GIB // shape.block if device.real else 24
    other = Engine(device, directory, shape, 2)  # the worker's context stays: what is freed is the engine's
    chunk, cache = device.chunk(shape.block * blocks)
    engine = Engine(device, directory, shape, blocks, memory=(cache, chunk.address))
    device.noise(cache)
    want = shape.view(cache, blocks).clone()
    ids = free_of(engine)
    engine.store("slept", ids)
    before = device.free_bytes() if device.real else 0
    engine.close()
    chunk.take()
    freed = device.free_bytes() - before if device.real else chunk.size
    chunk.give()
    cache.zero_()
    engine = Engine(device, directory, shape, blocks, memory=(cache, chunk.address))
    engine.load("slept", ids)
    same = torch.equal(shape.view(cache, blocks)[1:], want[1:])
    engine.close()
    chunk.take()
    other.close()
    return Finding("sleep and wake", same and freed >= chunk.size, {"same": same, "freed": freed, "of": chunk.size})


def bandwidth(device, directory: str, shape: Shape, total: int = GIB // 2, rounds: int = 5) -> Finding:
    """Stores and loads against one copy of as many bytes with pinned memory."""
    blocks = max(2, total // shape.block) + 1
    engine = Engine(device, directory, shape, blocks)
    device.noise(engine.cache)
    ids = free_of(engine)
    moved = len(ids) * shape.block
    pinned = torch.empty(moved, dtype=torch.uint8, pin_memory=True)
    plain = engine.cache[:moved]
    times: dict[str, list[float]] = {"store": [], "load": [], "plain_store": [], "plain_load": []}
    for i in range(rounds):
        for key, to, source in (("plain_store", pinned, plain), ("plain_load", plain, pinned)):
            torch.cuda.synchronize()
            began = time.perf_counter()
            to.copy_(source, non_blocking=True)
            torch.cuda.synchronize()
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
        min(ratios.values()) >= wanted,
        {"gb_per_s": gbps, "of_plain": ratios, "wanted": wanted, "piece": shape.piece},
    )


def matmul_slowdown(device, directory: str, shape: Shape, seconds: float = 4.0) -> Finding:
    """How much stores and loads slow a stream of matrix multiplications down."""
    engine = Engine(device, directory, shape, 256)
    a = torch.randn(8192, 8192, dtype=torch.bfloat16, device="cuda")

    def rate() -> float:
        done, until = 0, time.perf_counter() + seconds
        torch.cuda.synchronize()
        began = time.perf_counter()
        while time.perf_counter() < until:
            for _ in range(20):
                torch.mm(a, a)
            torch.cuda.synchronize()
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
        "matrix multiplications beside",
        slowdown < 0.03,
        {"slowdown": round(slowdown, 4), "moved_gib": round(moved[0] / GIB, 1)},
    )


def the_engine_writes_first(device, directory: str, shape: Shape) -> Finding:
    """A store waits for the kernel that fills its blocks; without the event it must not, or the check shows nothing."""
    outcome = {}
    for waits in (True, False):
        engine = Engine(device, directory, shape, 16)
        engine.cache.zero_()
        torch.cuda.synchronize()
        name = f"order {waits}"
        device.slow_fill(engine.cache, 7)
        slot = engine.ring.record()
        engine.store(name, free_of(engine), slot if waits else -1)
        torch.cuda.synchronize()
        engine.cache.zero_()
        torch.cuda.synchronize()
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
    slack = 64 << 20
    freed = used > GIB and engine_left < slack and worker_left < slack
    return Finding(
        "kill -9", freed and again and fenced == {"in_the_middle": True, "written_after_death": False},
        {"used": used, "left_by_engine": engine_left, "left_by_worker": worker_left, "works_again": again, **fenced},
    )  # fmt: skip


def killed_while_loading(device, daemons: Daemons, shape: Shape, size: int = 2 * GIB, tries: int = 10) -> dict:
    """Kill the worker in the middle of a load, overwrite the blocks once it is dead, and look whether they stay so.

    That is what an engine does: a dead worker's blocks are others' at once. The worker is dead at the end.
    """
    old, empty, new = 1, 2, 3
    outcome = {"in_the_middle": False, "written_after_death": False}
    for i in range(tries):
        if daemons.worker.poll() is not None:
            daemons.start_worker()
        engine = Engine(device, daemons.directory, shape, size // shape.block)
        view, ids, name = shape.view(engine.cache, engine.blocks), free_of(engine), f"killed {i}"
        last = (slice(1, None), *[-1] * (view.dim() - 1))  # a byte of each block
        engine.cache.fill_(old)
        torch.cuda.synchronize()
        engine.store(name, ids)
        whole_s = engine.load(name, ids).move_us / 1e6
        engine.cache.fill_(empty)
        torch.cuda.synchronize()
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
        torch.cuda.synchronize()
        time.sleep(1)
        outcome["written_after_death"] |= not bool((engine.cache == new).all())
        outcome["in_the_middle"] |= bool((left == old).any()) and bool((left == empty).any())
        os.close(dead)
        daemons.worker.wait()
        engine.session.close()
        engine.board.close()
        del engine, view, left
        if outcome["in_the_middle"]:
            break
    return outcome


def settle(device, wanted: int, seconds: float = 20.0) -> int:
    """The free memory, when it is as much as wanted or does not become so."""
    until = time.monotonic() + seconds
    while (free := device.free_bytes()) < wanted and time.monotonic() < until:
        time.sleep(0.1)
    return free


def event_cost(device, rounds: int = 2000) -> Finding:
    """What the engine's thread pays for a step's event, on a busy stream."""
    ring = device.ring()
    a = torch.randn(1024, 1024, device="cuda")
    costs = []
    for _ in range(rounds):
        torch.mm(a, a)
        began = time.perf_counter()
        ring.record()
        costs.append((time.perf_counter() - began) * 1e6)
    torch.cuda.synchronize()
    median, worst = statistics.median(costs), statistics.quantiles(costs, n=100)[98]
    return Finding("an event", median < 20, {"median_us": round(median, 2), "p99_us": round(worst, 2)})


def child(device, directory: str, shape: Shape) -> None:
    """An engine that registers two GiB and waits to be killed."""
    engine = Engine(device, directory, shape, 2 * GIB // shape.block)
    engine.store("child", free_of(engine)[:8])
    print("registered", flush=True)
    sys.stdin.read()
    time.sleep(3600)
