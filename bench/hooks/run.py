#!/usr/bin/env python3
"""Time spent inside connector hooks per engine step: ours and the in-tree connector's, in one run.

Two real engines on the tiny checkpoint get the same requests turn by turn, so that what else this machine does meets both.
Each hook is timed inside the engine's processes. What is compared is the sum over both roles, per step that ran the model:
steps without a forward pass only poll, and a slower connector would dilute its own figures with them.

example:
  python bench/hooks/run.py --json build/bench/hooks.json
"""

from __future__ import annotations

import argparse
import json
import pathlib
import shutil
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from harness import checkpoint, mooncake  # noqa: E402
from harness.daemons import Daemons, runtime_directory  # noqa: E402
from harness.engine import Engine  # noqa: E402
from harness.prompts import Prompts  # noqa: E402

TARGET = 0.2


def connector(name: str, **extra: object) -> dict:
    return {
        "kv_connector": name,
        "kv_connector_module_path": "timed_connectors",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": extra,
    }


def read(directory: pathlib.Path) -> dict:
    """Sums of all processes' files of one engine, as of now."""
    total = {"steps": 0, "forward_steps": 0, "hooks": {}}
    for path in directory.glob("*.json"):
        part = json.loads(path.read_text())
        total["steps"] += part["steps"]
        total["forward_steps"] += part["forward_steps"]
        for name, (calls, ns) in part["hooks"].items():
            entry = total["hooks"].setdefault(f"{part['role']}.{name}", [0, 0])
            entry[0] += calls
            entry[1] += ns
    return total


def difference(after: dict, before: dict) -> dict:
    hooks = {n: [c - before["hooks"].get(n, [0, 0])[0], ns - before["hooks"].get(n, [0, 0])[1]] for n, (c, ns) in after["hooks"].items()}
    return {k: after[k] - before[k] for k in ("steps", "forward_steps")} | {"hooks": hooks}


def settle(engine: Engine) -> None:
    """Lets both roles write their figures: they do so at most twice a second, when a hook is called."""
    engine.wait_idle()
    time.sleep(0.6)
    engine.client.complete([5, 6, 7], 2)
    engine.wait_idle()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", help="also write the figures there")
    parser.add_argument("--prompts", type=int, default=12, help="prompts per round (default 12)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds (default 3)")
    options = parser.parse_args()
    if reason := mooncake.available():
        print(f"not possible: {reason}", file=sys.stderr)
        return 1

    model = checkpoint.generate(ROOT / "build" / "checkpoint")
    runtime = runtime_directory(ROOT / "build", "bench-run")
    work = pathlib.Path(tempfile.mkdtemp(prefix="mcs-bench-"))
    engines: dict[str, Engine] = {}
    times = {name: work / name / "times" for name in ("ours", "in_tree")}
    daemons = Daemons(runtime)
    master = mooncake.Master(work / "master")
    try:
        flags = {"ours": connector("TimedOurs", runtime_dir=str(runtime), store_bytes="1GiB"), "in_tree": connector("TimedInTree")}
        for name, flag in flags.items():
            times[name].mkdir(parents=True)
            environment = {
                "MOONCAKE_SIDECAR_HOOK_TIMES": str(times[name]),
                "PYTHONPATH": f"{ROOT / 'bench' / 'hooks'}:{ROOT / 'pyshim'}",
            }
            environment |= master.environment if name == "in_tree" else {}
            print(f"starting vLLM with {name}", file=sys.stderr, flush=True)
            engines[name] = Engine(model, work / name, connector=flag, environment=environment).wait_ready()
        rounds = []
        for i in range(options.rounds):
            print(f"round {i + 1} of {options.rounds}", file=sys.stderr, flush=True)
            rounds.append(measure(engines, times, Prompts(model, seed=100 + i), options.prompts))
    finally:
        for engine in engines.values():
            engine.kill()
        daemons.close()
        master.__exit__()
        shutil.rmtree(work, ignore_errors=True)
    report = summary(rounds)
    print(text(report))
    if options.json:
        path = pathlib.Path(options.json)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(report, indent=2) + "\n")
    return 0


def measure(engines, times, cut: Prompts, count: int) -> dict:
    """One round: cold one by one, sixteen at once, then all again from the store. Turns alternate between the engines."""
    for engine in engines.values():
        settle(engine)
    before = {name: read(times[name]) for name in engines}
    prompts = [cut.fresh(600 + 300 * i) for i in range(count)]
    order = list(engines.items())
    for _ in range(2):
        for i, prompt in enumerate(prompts):
            for _, engine in order if i % 2 else order[::-1]:
                engine.client.complete(prompt, 32)
        for _, engine in order:
            engine.client.complete_many(prompts, 32)
            engine.wait_idle()
            engine.client.reset_prefix_cache()
    for engine in engines.values():
        settle(engine)
    return {name: difference(read(times[name]), before[name]) for name in engines}


def summary(rounds: list[dict]) -> dict:
    per_step = {
        name: [sum(ns for _, ns in r[name]["hooks"].values()) / 1e3 / r[name]["forward_steps"] for r in rounds] for name in ("ours", "in_tree")
    }
    ratios = sorted(o / t for o, t in zip(per_step["ours"], per_step["in_tree"]))
    return {
        "us_per_step": {name: sorted(v)[len(v) // 2] for name, v in per_step.items()},
        "us_per_step_by_round": per_step,
        "ratio": ratios[len(ratios) // 2],
        "target": TARGET,
        "rounds": rounds,
    }


def text(report: dict) -> str:
    lines = ["", f"{'hook':42}{'ours us/step':>14}{'in-tree us/step':>18}"]
    last = report["rounds"][-1]
    for hook in sorted(set(last["ours"]["hooks"]) | set(last["in_tree"]["hooks"])):
        cells = [last[n]["hooks"].get(hook, [0, 0])[1] / 1e3 / last[n]["forward_steps"] for n in ("ours", "in_tree")]
        if max(cells) >= 0.05:
            lines.append(f"{hook:42}{cells[0]:14.2f}{cells[1]:18.2f}")
    per_step = report["us_per_step"]
    lines.append(f"{'all hooks, median of rounds':42}{per_step['ours']:14.2f}{per_step['in_tree']:18.2f}")
    steps = ", ".join(f"{n} {last[n]['forward_steps']} of {last[n]['steps']}" for n in ("ours", "in_tree"))
    lines.append(f"steps with a forward pass, last round: {steps}")
    lines.append(f"ratio {report['ratio']:.3f} (target: at most {TARGET})")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
