#!/usr/bin/env python3
"""Time inside connector hooks with 256 running requests, and for new requests of 2,000 and 128k tokens: ours and the in-tree connector's.

vLLM's real scheduler, no model: both connectors, both roles, get the same steps by turns in one process. Ours talks to real
daemons; the in-tree connector's store is one that costs nothing (free_store), so that only its own work counts. Before each step
the process is let come to rest: a thread of one connector that works on would take the interpreter from the other's step.
What a connector's threads take from its own engine's steps is not in the figures either.

example:
  python bench/hooks/steps.py --json build/bench/hook-steps.json
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import pathlib
import random
import shutil
import statistics
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "pyshim")]

RUNNING = 256
LONG = 128 * 1024
SHORT = 2000
TARGET_US = {"scheduler": 300, "worker": 100, "new": 2000}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", help="also write the figures there")
    parser.add_argument("--steps", type=int, default=400, help="decode steps a case (default 400)")
    parser.add_argument("--long", type=int, default=7, help="new requests of 128k tokens a case, found and not found each (default 7)")
    parser.add_argument("--short", type=int, default=40, help="new requests of 2,000 tokens a case, found and not found each (default 40)")
    parser.add_argument("--case", type=int, action="append", help="only this case (0 to 4; may be repeated)")
    parser.add_argument("--hooks", action="store_true", help="also print medians by hook")
    parser.add_argument("--cpu", action="store_true", help="measure the thread's CPU time, where others keep the machine busy; waiting is not in it")
    return parser.parse_args()


def main() -> int:
    options = parse()
    work = pathlib.Path(tempfile.mkdtemp(prefix="mcs-steps-"))
    os.environ |= {"VLLM_RPC_BASE_PATH": str(work), "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}
    from harness.daemons import Daemons, runtime_directory

    import free_store
    import rig

    logging.disable(logging.WARNING)
    free_store.install()
    model = rig.write_model(work)
    rig.start_process(work)
    runtime = runtime_directory(ROOT / "build", "bench-steps")
    daemons = Daemons(runtime)
    report, ended = [], []
    try:
        for number, case in enumerate(cases(rig)):
            if options.case and number not in options.case:
                continue
            # Ports of their own: an in-tree client may wait for ever for a server that has bound a path again.
            systems = {
                "ours": rig.System("MooncakeSidecarConnector", "mooncake_sidecar.connector", model, case, options.cpu, lookup_rpc_port=10 + number,
                                   runtime_dir=str(runtime), store_bytes="4GiB", cache_prefix=case.name, lookup_timeout_ms=1000),
                "in_tree": rig.System("MooncakeStoreConnector", None, model, case, options.cpu, lookup_rpc_port=20 + number),
            }  # fmt: skip
            try:
                rows = Measurement(systems, options, seed=number).run()
            finally:
                for system in systems.values():
                    system.close()
                # Kept: the in-tree server's thread never ends, and whoever collects its ZeroMQ context waits for it for ever.
                ended.append(systems)
            report += [{"case": case.name, **row} for row in rows]
            print(text(case.name, rows, options.hooks), flush=True)
    finally:
        daemons.close()
        shutil.rmtree(work, ignore_errors=True)
    if options.json:
        path = pathlib.Path(options.json)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"clock": "cpu" if options.cpu else "wall", "target_us": TARGET_US, "rows": report}, indent=1) + "\n")
    return 0


def cases(rig) -> list:
    return [rig.Case(16, False, False), rig.Case(16, False, True), rig.Case(128, False, False), rig.Case(128, False, True), rig.Case(16, True, True)]


class Measurement:
    """One case. INVARIANT: both systems were given the same requests and as many steps."""

    def __init__(self, systems: dict, options: argparse.Namespace, seed: int):
        self.systems, self.options = systems, options
        self.random = random.Random(seed)
        self.turn = 0

    def run(self) -> list[dict]:
        stored = [self.tokens(LONG) for _ in range(self.options.long)]
        stored_short = [self.tokens(SHORT) for _ in range(self.options.short)]
        for i, tokens in enumerate(stored + stored_short):
            self.add(f"stored{i}", tokens, 1)
            self.settle()
        for system in self.systems.values():
            assert system.scheduler.reset_prefix_cache(), "the engine's cache is in use"
        for i in range(RUNNING):  # lengths spread, so that boundaries are crossed in every step
            self.add(f"r{i}", self.tokens(300 + i % 128), 100_000)
        prefill = self.steps(lambda: any(len(s.scheduler.running) < RUNNING for s in self.systems.values()))
        self.steps(8)
        gc.collect()
        gc.freeze()
        decode = self.steps(self.options.steps)
        short_missed = [self.new(f"short-missed{i}", self.tokens(SHORT))[0] for i in range(self.options.short)]
        short_found = [self.new(f"short-found{i}", tokens, found=True)[0] for i, tokens in enumerate(stored_short)]
        missed = [self.new(f"missed{i}", self.tokens(LONG))[0] for i in range(self.options.long)]
        found, loaded = zip(*(self.new(f"found{i}", tokens, found=True) for i, tokens in enumerate(stored)), strict=True)
        gc.unfreeze()
        rows = [row("prefilling", prefill), row(f"{RUNNING} running", decode, TARGET_US)]
        for name, times in (("new 2k request, not found", short_missed), ("new 2k request, found", short_found)):
            rows.append(row(name, times))
        for name, times in (("new 128k request, not found", missed), ("new 128k request, found", found)):
            rows.append(row(name, times, {"scheduler": TARGET_US["new"]}))
        rows.append(row("128k request, its load over", loaded))
        return rows

    def tokens(self, count: int) -> list[int]:
        return [self.random.randrange(1 << 15) for _ in range(count)]

    def add(self, name: str, tokens: list[int], max_tokens: int) -> None:
        for system in self.systems.values():
            system.add(system.prepare(name, tokens, max_tokens))

    def step(self) -> dict:
        """One step of both, by turns."""
        self.turn += 1
        order = list(self.systems.items())
        times = {}
        for name, system in order if self.turn % 2 else order[::-1]:
            come_to_rest()
            times[name] = system.step()
        return times

    def steps(self, until) -> list[dict]:
        taken = []
        while len(taken) < until if isinstance(until, int) else until():
            taken.append(self.step())
        return taken

    def settle(self) -> None:
        while any(system.scheduler.has_requests() for system in self.systems.values()):
            self.step()
            time.sleep(0.001)

    def new(self, name: str, tokens: list[int], found: bool = False) -> tuple[dict, dict]:
        """The step that admits one more request, and the step that it first runs in; it is ended afterwards."""
        for system in self.systems.values():
            request = system.prepare(name, tokens, 100_000)
            for watch in system.times.values():
                watch.take()
            system.add(request)
        admitted = latest = self.step()
        if found:  # a store that evicts would make other rows of these
            for s, system in self.systems.items():
                hit = system.scheduler.requests[name].num_computed_tokens
                assert hit >= len(tokens) - 256, f"{s} found {hit} of {len(tokens)} tokens"
        ran: dict = {}
        while True:
            for s, system in self.systems.items():
                if s not in ran and system.scheduler.requests[name].num_computed_tokens and name not in waiting(system):
                    ran[s] = latest[s]
            if len(ran) == len(self.systems):
                break
            latest = self.step()
        for system in self.systems.values():
            system.abort(name)
        self.steps(3)
        return admitted, ran


def come_to_rest() -> None:
    """Waits until no thread of this process has used the processor for a moment."""
    for _ in range(2000):
        before = time.process_time()
        time.sleep(0.001)
        if time.process_time() - before < 0.0002:
            return
    raise AssertionError("a thread of this process works for ever")


def waiting(system) -> set[str]:
    """Requests that wait for a load."""
    return {r.request_id for r in system.scheduler.requests.values() if r.status.name == "WAITING_FOR_REMOTE_KVS"}


def row(name: str, times: list[dict], targets: dict | None = None) -> dict:
    """Medians by role, the in-tree connector's beside ours; the ratio's spread is that of ten parts of the run."""
    result: dict = {"what": name, "steps": len(times)}
    for role in ("scheduler", "worker"):
        sums = {s: [sum(t[s][role].values()) / 1e3 for t in times] for s in ("ours", "in_tree")}
        size = max(1, len(times) // 10)
        parts = [slice(i, i + size) for i in range(0, len(times) - size + 1, size)]
        ratios = sorted(statistics.median(sums["ours"][p]) / statistics.median(sums["in_tree"][p]) for p in parts)
        result[role] = {
            "us": {s: {"median": statistics.median(v), "p99": sorted(v)[int(len(v) * 0.99)]} for s, v in sums.items()},
            "ratio": {"median": statistics.median(ratios), "low": ratios[0], "high": ratios[-1]},
            "target_us": (targets or {}).get(role),
            "hooks_us": {s: by_hook(times, s, role) for s in ("ours", "in_tree")},
        }
    return result


def by_hook(times: list[dict], system: str, role: str) -> dict[str, float]:
    names = sorted({hook for t in times for hook in t[system][role]})
    return {n: statistics.median(t[system][role].get(n, 0) / 1e3 for t in times) for n in names}


def text(case: str, rows: list[dict], hooks: bool) -> str:
    lines = [f"\n{case}", f"  {'':28}{'':11}{'ours us':>9}{'p99':>8}{'in-tree us':>12}{'p99':>8}{'ratio':>8}  {'spread':14} target"]
    for r in rows:
        for role in ("scheduler", "worker"):
            part = r[role]
            ours, theirs, ratio = part["us"]["ours"], part["us"]["in_tree"], part["ratio"]
            target = "" if part["target_us"] is None else f"{part['target_us']} {'met' if ours['median'] <= part['target_us'] else 'MISSED'}"
            spread = f"{ratio['low']:.2f} to {ratio['high']:.2f}"
            lines.append(
                f"  {r['what']:28}{role:11}{ours['median']:9.1f}{ours['p99']:8.0f}{theirs['median']:12.1f}{theirs['p99']:8.0f}"
                f"{ratio['median']:8.2f}  {spread:14} {target}"
            )
            if hooks:
                for s in ("ours", "in_tree"):
                    lines.append(f"      {s}: " + ", ".join(f"{n} {us:.1f}" for n, us in part["hooks_us"][s].items() if us >= 0.3))
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
