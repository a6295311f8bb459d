"""One leg: an engine, its traffic, its events, its end."""

from __future__ import annotations

import time
from typing import Callable

from harness.cell import Cell
from harness.compare import Noise

from . import pool, remains, vitals
from .counters import Counters
from .events import Events
from .gate import Gate
from .limits import REQUEST_LIMIT_S
from .plan import DAEMONS, LEG_MINUTES, Leg
from .setups import SETUPS
from .tally import Tally
from .traffic import Traffic
from .vitals import MIB, Allowance, Limits, Vitals

DISK_BYTES = 384 * MIB
CLIENTS = 10
SAMPLE_EVERY_S = 2.0
PROGRESS_EVERY_S = 10.0
# At the end for requests, jobs and leases to end. Part of a leg's time.
RESERVE_S = 15.0
# Traffic lasts so long at least, however slow the machine was until then: else strikes would not all come.
LEAST_TRAFFIC_S = 90.0
# And so much longer at most, while something that must come has not.
MORE_TRAFFIC_S = 120.0
# In legs as long as this each daemon is spared for as long as it takes to judge it: for so long, in which its peer has some lives.
DAEMONS_JUDGED_S = 60 * LEG_MINUTES
SEVERAL_LIVES_S = 120.0
DEADLINES = {"load_timeout_s": 2, "store_timeout_s": 4, "fence_kill_after_s": 1, "lookup_timeout_ms": 200}
# By batch of a load, by step of a store; and batches so small that a job has some.
SLOW = "copy_delay=200ms"
SLOW_BATCH = "2MiB"
# The most that any setup's KV memory takes.
KV_BYTES = 40 * MIB
# oneDNN keeps a compiled kernel for each size of a batch: up to 1,024 of them, a third of a MiB each, which fill for a quarter
# of an hour and hide every leak. vLLM's own cache of them, 32 sizes a layer, fills within a minute.
ONEDNN_KERNELS = 64
# A worker keeps its connections to lookupd for its next calls: as many as it has had calls under way at once, which grows for
# a while after lookupd began anew, and 16 at most. While it is spared, several such lives go into one line, which stays level.
KEPT_CONNECTIONS = 16
# Go adds a thread when all that it has are in calls of the kernel, sooner where others use the cores too, and keeps it. A
# thread left behind by each request is many more than these.
KEPT_THREADS = 8
# What is beside the store and the engine's KV memory in shared memory: tables, boards, vLLM's own.
SHARED_REST_BYTES = 24 * MIB
# Until a worker or an engine has let go of a store whose lookupd is gone, once nobody asks any more.
LET_GO_S = 60.0
# Else the engine binds a thread to every core: one that shares its core with others holds up all of them at every layer.
ONE_THREAD = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}


def limits(seconds: float) -> Limits:
    """What may come in a leg so long.

    An engine's allocators fill for a while. In a quarter of an hour a leak of some KiB a request is found, in three minutes of some hundred.
    A daemon has its memory and threads soon, and its connections; it keeps no more however often its peer begins anew.
    """
    filled, settled = min(180.0, seconds / 5), min(30.0, seconds / 5)
    long = seconds >= DAEMONS_JUDGED_S

    def daemon(connections: int, threads: int) -> dict[str, Allowance]:
        return {
            "memory": Allowance(24.0 * MIB, settled),
            "descriptors": Allowance(2.0 + connections, settled),
            "threads": Allowance(2.0 + threads, settled),
        }

    return Limits(
        engine={"memory": Allowance(24.0 * MIB, filled), "descriptors": Allowance(12.0, filled), "threads": Allowance(6.0, filled)},
        daemon=daemon(0, 0) if long else daemon(KEPT_CONNECTIONS, KEPT_THREADS),
        daemon_bytes=64 * MIB,
        brief=daemon(KEPT_CONNECTIONS, KEPT_THREADS),
        brief_s=SEVERAL_LIVES_S if long else 0.0,
    )


def run(leg: Leg, begin: float, faults: str = "") -> dict:
    """Runs a leg that began at that monotonic time; returns its summary, whose "verdict" is right, wrong or void.

    Args:
        faults: defects that the daemons are to have, as internal/faults reads them.
    """
    setup, tally, watch = SETUPS[leg.kind], Tally(), Vitals(limits(leg.seconds))
    with _cell(leg, faults) as cell:
        cell.start()
        cell.client.timeout_s = REQUEST_LIMIT_S
        started = time.monotonic()
        wanted = pool.prompts(setup, leg.seed)
        right, noise = pool.references(cell.client, wanted, cell.settle)
        referenced = time.monotonic()
        print(
            f"  engine up after {started - begin:.0f} s, {len(right)} references after {referenced - begin:.0f} s; batches move by {noise}; "
            f"a request has {REQUEST_LIMIT_S:.0f} s",
            flush=True,
        )
        if noise.largest > setup.most_noise:
            raise RuntimeError(f"the engine's batches move its outputs too much: {noise}")
        noise = Noise(max(noise.largest, 1e-5), noise.positions)
        gate = Gate()
        traffic = Traffic(cell, right, noise, leg.seed, CLIENTS, tally, gate)
        events = Events(cell, leg.strikes, leg.resets, tally, gate)
        before = cell.client.metrics()
        traffic.start()
        events.start()
        try:
            _watch(cell, leg, tally, watch, before, referenced, max(begin + leg.seconds - RESERVE_S, referenced + LEAST_TRAFFIC_S))
        finally:
            events.stop()
            gate.open()
            traffic.stop()
        stopped = time.monotonic()
        _end(cell, leg, tally, watch, before, stopped - referenced)
        summary = {"leg": leg.seed, "kind": leg.kind, "disk": leg.disk, "slow": leg.slow, "plain": leg.plain, "noise": noise.largest, "traffic_s": round(stopped - referenced, 1)}
    for text in remains.left_in_shared_memory(watch.seen_files):
        tally.fault(text)
    missing = _missing(leg, tally, watch)
    summary |= tally.summary() | {"missing": missing, "vitals": watch.summary(), "seconds": round(time.monotonic() - begin, 1)}
    summary["verdict"] = "wrong" if tally.faults else "void" if summary["missing"] else "right"
    return summary


def _missing(leg: Leg, tally: Tally, watch: Vitals) -> list[str]:
    """What must come in such a leg, and has not."""
    judged = [*vitals.ENGINES, *(DAEMONS if leg.seconds >= DAEMONS_JUDGED_S and not leg.plain else ())]
    return tally.missing(leg) + [f"a trend of {name}" for name in watch.unjudged(judged)]


def _cell(leg: Leg, faults: str) -> Cell:
    setup = SETUPS[leg.kind]
    faults = ",".join(filter(None, (SLOW if leg.slow else "", faults)))
    cell = Cell(
        setup.model(),
        f"soak-{leg.kind}",
        store_bytes=str(setup.store_bytes),
        environment=ONE_THREAD
        | {"MOONCAKE_SIDECAR_LEASE_TTL": f"{remains.LEASE_TTL_S}s", "ONEDNN_PRIMITIVE_CACHE_CAPACITY": str(ONEDNN_KERNELS)},
        binaries="build/faults" if faults else "bin",
        extra=DEADLINES,
        blocks=setup.blocks,
        arguments=setup.arguments,
        **({"connector": lambda ours: None} if leg.plain else {}),
    )
    if faults:
        cell.environment["MOONCAKE_SIDECAR_FAULTS"] = faults
    if leg.slow:
        cell.environment["MOONCAKE_SIDECAR_BATCH_BYTES"] = SLOW_BATCH
    if leg.disk:
        cell.environment |= {"MOONCAKE_SIDECAR_DISK_DIR": str(cell.directory / "disk"), "MOONCAKE_SIDECAR_DISK_BYTES": str(DISK_BYTES)}
    return cell


def _watch(cell, leg: Leg, tally: Tally, watch: Vitals, before, begin: float, until: float) -> None:
    """Samples and tells until the time is over and all has come, or the engine is over."""
    told, counters = begin, Counters()
    while (now := time.monotonic()) < until or now < until + MORE_TRAFFIC_S and _missing(leg, tally, watch):
        if cell.engine.process.poll() is not None:
            tally.fault(f"the engine ended with {cell.engine.process.returncode}:\n{cell.engine.log_tail()}")
            return
        watch.take(now - begin, vitals.processes(cell))
        if not leg.plain:
            counters.sample(cell)
            tally.lookupd(counters.totals())
        tally.engine(before, cell.client.metrics())
        if now - told >= PROGRESS_EVERY_S:
            told = now
            print(f"  {now - begin:4.0f} s: {tally.line()}", flush=True)
        time.sleep(SAMPLE_EVERY_S)


def _end(cell, leg: Leg, tally: Tally, watch: Vitals, before, at_s: float) -> None:
    """What must hold once nobody asks any more."""
    if cell.engine.process.poll() is not None:
        return
    if held := remains.blocks_held(cell):
        tally.fault(held)
    if not leg.plain:
        for text in remains.in_daemons(cell):
            tally.fault(text)
        if not remains.serves(cell, SETUPS[leg.kind].block):
            tally.fault("the cache does not serve again: what was stored is not loaded\n" + cell.daemons.logs())
    tally.engine(before, cell.client.metrics())
    shared = _shared(leg, watch, at_s, lambda: vitals.processes(cell))
    print(f"  end: {tally.line()}", flush=True)
    for text in [*watch.faults(), *remains.in_logs(cell), *shared]:
        tally.fault(text)


def _shared(leg: Leg, watch: Vitals, at_s: float, processes: Callable[[], list[tuple[str, int]]], limit_s: float = LET_GO_S) -> list[str]:
    """The last samples, until no shared memory is held that is not in use; returns what still is."""
    most = SETUPS[leg.kind].store_bytes + KV_BYTES + SHARED_REST_BYTES
    begin = time.monotonic()
    while True:
        gone = time.monotonic() - begin
        watch.take(at_s + gone, processes())
        held = []
        if watch.stores() > 1:
            held.append(f"{watch.stores()} stores' memory is held, and one is in use")
        if watch.shared_bytes() > most:
            held.append(f"{watch.shared_bytes() / MIB:.0f} MiB of shared memory are in use, not {most / MIB:.0f}")
        if not held or gone > limit_s:
            return held
        time.sleep(SAMPLE_EVERY_S)
