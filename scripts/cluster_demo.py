#!/usr/bin/env python3
"""Shows one Mooncake Store cluster shared by engines of two nodes, and by engines with vLLM's in-tree connector.

For each kind of model, on a real mooncake_master and its storage nodes:

  1. engine A computes prompts; its daemons write them to the cluster
  2. engine B, with daemons and a segment of its own as on another node, loads them and computes the last block only
  3. A and its daemons are killed; an engine with the in-tree connector loads what A stored
  4. the in-tree engine computes other prompts, and B loads those

The exit code is 0 only if every whole block came from the cluster, by the engines' metrics and the master's, and all outputs
are those of the engine that computed the prompt. The figures also go to build/cluster.json.

example:
  make cluster-demo
  scripts/cluster_demo.py --kinds llama,latent --prompts 2 --json
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import pathlib
import signal
import statistics
import sys
import time
from typing import Callable

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from harness import checkpoint, latent, recurrent, sliding  # noqa: E402
from harness.cluster import Cluster, available  # noqa: E402
from harness.daemons import Daemons, runtime_directory, wait_gone  # noqa: E402
from harness.engine import BLOCK, Engine, EngineDied, in_tree, ours  # noqa: E402
from harness.exchange import Answer, Handover, ask, hand_over, whole  # noqa: E402
from harness.prompts import Prompts  # noqa: E402

HANDOVERS = ("a_to_b", "ours_to_intree", "intree_to_ours")


@dataclasses.dataclass(frozen=True)
class Kind:
    """A model kind: its generator, the tokens of a block, and what vLLM must be told."""

    generate: Callable[[pathlib.Path], pathlib.Path]
    directory: str
    block: int = BLOCK
    arguments: tuple[str, ...] = ()


KINDS = {
    "llama": Kind(checkpoint.generate, "checkpoint"),
    "sliding": Kind(sliding.generate, "checkpoint-sliding"),
    # vLLM's kernels for AMX can't do the harness's full precision.
    "latent": Kind(latent.generate, "checkpoint-latent", latent.BLOCK, ("--attention-backend", "CPU_MLA")),
    "recurrent": Kind(
        recurrent.generate,
        "checkpoint-recurrent",
        recurrent.BLOCK,
        ("--dtype", "bfloat16", "--enable-prefix-caching", "--mamba-cache-mode", "align", "--block-size", str(recurrent.BLOCK)),
    ),
}


def main() -> int:
    options = parse()
    begin = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - begin:5.1f} s] {text}", file=sys.stderr if options.json else sys.stdout, flush=True)

    if why := available():
        say(why)
        return 1
    results: dict[str, Result] = {}
    try:
        with Cluster(ROOT / "build" / "cluster-demo", options.nodes, segment_bytes=512 << 20) as cluster:
            say(f"mooncake_master and {options.nodes} storage nodes serve")
            for name in options.kinds:
                results[name] = Demo(name, options, cluster, lambda text, name=name: say(f"{name}: {text}")).run()
    except (EngineDied, AssertionError, OSError) as error:
        say(f"failed: {error}")
        return 1
    report = summary(results)
    (ROOT / "build" / "cluster.json").write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(report, indent=2) if options.json else table(results))
    return 0 if passed(report) else 1


class Node:
    """An engine with our connector, and the daemons and segment that it starts: what one machine has."""

    def __init__(self, name: str, kind: Kind, model: pathlib.Path, cluster: Cluster):
        self.runtime = runtime_directory(ROOT / "build", f"cluster-{name}")
        self.daemons = Daemons(self.runtime)
        connector = ours(
            runtime_dir=str(self.runtime),
            binaries_dir=str(ROOT / "bin"),
            store="mooncake",
            store_python=sys.executable,
            store_bytes="512MiB",
            compat_keys=True,
            # The demo demands every token, on a busy machine too.
            lookup_timeout_ms=5000,
        )
        self.engine = Engine(model, self.runtime, connector=connector, environment=cluster.environment, arguments=kind.arguments, name=name)

    def kill(self) -> None:
        """As a machine that loses its power. The engine first: it would start its daemons again."""
        self.engine.kill()
        for pid in self.daemons.running():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            wait_gone(pid)

    def close(self) -> None:
        self.engine.kill()
        self.daemons.close()


@dataclasses.dataclass
class Result:
    """What one kind of model showed."""

    block: int
    handovers: dict[str, Handover]
    stored_keys: int

    def expected(self, name: str) -> int:
        return sum(whole(a.output.prompt_tokens, self.block) for a in self.handovers[name].cold)

    def faults(self) -> list[str]:
        return [f"{name}, {fault}" for name, h in self.handovers.items() for fault in h.missing(self.block) + h.wrong()]

    def report(self) -> dict:
        first = self.handovers["a_to_b"]
        figures: dict = {f"{name}_tokens": self.handovers[name].tokens for name in HANDOVERS}
        figures |= {f"{name}_expected_tokens": self.expected(name) for name in HANDOVERS}
        figures |= {f"{name}_cluster_bytes": self.handovers[name].cluster_read_bytes for name in HANDOVERS}
        return figures | {
            "prompts": len(first.cold),
            "b_computed_tokens": sum(a.computed_tokens for a in first.loaded),
            "stored_keys": self.stored_keys,
            "cold_ttft_ms": median_ttft(first.cold),
            "b_ttft_ms": median_ttft(first.loaded),
            "b_engine_warm_ttft_ms": median_ttft(first.again),
            "intree_ttft_ms": median_ttft(self.handovers["ours_to_intree"].loaded),
            "outputs_equal": not any(h.wrong() for h in self.handovers.values()),
            "faults": self.faults(),
        }


class Demo:
    """Runs one kind of model."""

    def __init__(self, name: str, options: argparse.Namespace, cluster: Cluster, say: Callable[[str], None]):
        self.kind, self.options, self.cluster, self.say = KINDS[name], options, cluster, say
        self.model = self.kind.generate(ROOT / "build" / self.kind.directory)
        self.owned = contextlib.ExitStack()

    def run(self) -> Result:
        with self.owned:
            cut = Prompts(self.model, seed=8)
            lengths = [900 + k * 1700 for k in range(self.options.prompts)]
            ours_first, theirs_first = ([cut.fresh(n) for n in lengths] for _ in range(2))
            keys = self.cluster.keys
            # Never more than two engines at a time: each takes some 2 GiB.
            a, b = self._node("a"), self._node("b")
            for node in (a, b):
                self._ready(node.engine)
            cold = self._store("A", a.engine, ours_first)
            stored = self.cluster.settled_keys() - keys
            a_to_b = self._load("B loads what A stored", cold, ours_first, b.engine)
            a.kill()
            self.say("A and its daemons are killed")
            their = self._in_tree()
            ours_to_intree = self._load("in-tree loads what A stored", cold, ours_first, their)
            cold = self._store("in-tree", their, theirs_first)
            self.cluster.settled_keys()
            intree_to_ours = self._load("B loads what in-tree stored", cold, theirs_first, b.engine)
        return Result(self.kind.block, dict(zip(HANDOVERS, (a_to_b, ours_to_intree, intree_to_ours))), stored)

    def _node(self, name: str) -> Node:
        node = Node(name, self.kind, self.model, self.cluster)
        self.owned.callback(node.close)
        return node

    def _in_tree(self) -> Engine:
        directory = runtime_directory(ROOT / "build", "cluster-c")
        arguments = self.kind.arguments
        engine = Engine(self.model, directory, connector=in_tree(), environment=self.cluster.environment, arguments=arguments, name="in-tree")
        self.owned.callback(engine.kill)
        return self._ready(engine)

    def _ready(self, engine: Engine) -> Engine:
        engine.wait_ready()
        # The first request pays for one-time work inside vLLM. It is shorter than a block: nothing is stored.
        engine.client.complete(list(range(2, 2 + self.kind.block // 2)), 2)
        self.say(f"{engine.log_path.stem} serves, {time.monotonic() - engine.started_at:.0f} s after its start")
        return engine

    def _store(self, who: str, engine: Engine, prompts: list) -> list[Answer]:
        answers = [ask(engine, prompt) for prompt in prompts]
        self.say(f"{who} computed {sum(a.computed_tokens for a in answers)} tokens")
        return answers

    def _load(self, what: str, cold: list[Answer], prompts: list, engine: Engine) -> Handover:
        found = hand_over(cold, prompts, engine, self.cluster)
        computed = sum(a.computed_tokens for a in found.loaded)
        self.say(f"{what}: {found.tokens} tokens, {computed} computed, {found.cluster_read_bytes >> 10} KiB from the cluster")
        return found


def median_ttft(answers: list[Answer]) -> float:
    return round(statistics.median(a.ttft_ms for a in answers), 1)


def summary(results: dict[str, Result]) -> dict:
    kinds = {name: result.report() for name, result in results.items()}
    sums = [f"{name}{what}_tokens" for name in HANDOVERS for what in ("", "_expected")]
    totals: dict = {key: sum(kind[key] for kind in kinds.values()) for key in sums}
    return totals | {"outputs_equal": all(kind["outputs_equal"] for kind in kinds.values()), "kinds": kinds}


def passed(report: dict) -> bool:
    kinds = report["kinds"].values()
    return bool(kinds) and report["outputs_equal"] and report["a_to_b_tokens"] > 0 and not any(kind["faults"] for kind in kinds)


def table(results: dict[str, Result]) -> str:
    rows = [("model", "A to B", "ours to in-tree", "in-tree to ours", "computed by B", "cold", "B", "in-tree", "outputs")]
    faults = []
    for name, result in results.items():
        r = result.report()
        tokens = [f"{r[f'{h}_tokens']}/{r[f'{h}_expected_tokens']}" for h in HANDOVERS]
        times = [f"{r[key]:.0f}" for key in ("cold_ttft_ms", "b_ttft_ms", "intree_ttft_ms")]
        rows.append((name, *tokens, str(r["b_computed_tokens"]), *times, "equal" if r["outputs_equal"] else "DIFFER"))
        faults += [f"{name}: {fault}" for fault in r["faults"]]
    widths = [max(len(row[c]) for row in rows) for c in range(len(rows[0]))]
    lines = ["  ".join(cell.rjust(w) for cell, w in zip(row, widths)) for row in rows]
    lines.insert(1, "-" * len(lines[0]))
    verdict = "\n".join(faults) or "every whole block came from the cluster, and all outputs are right"
    return "\n".join(["", "tokens from the cluster, of those that it could bring; median times to first token in ms", *lines, "", verdict])


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON; progress goes to standard error")
    parser.add_argument("--kinds", default=",".join(KINDS), metavar="NAMES", help=f"kinds of models (default {','.join(KINDS)})")
    parser.add_argument("--prompts", type=int, default=3, metavar="N", help="how many prompts each way (default 3)")
    parser.add_argument("--nodes", type=int, default=3, metavar="N", help="storage nodes (default 3)")
    options = parser.parse_args()
    options.kinds = options.kinds.split(",")
    if unknown := [name for name in options.kinds if name not in KINDS]:
        parser.error(f"no kind {', '.join(unknown)}; there are {', '.join(KINDS)}")
    if not 1 <= options.prompts <= 6:
        parser.error("--prompts must be from 1 to 6")
    if not 1 <= options.nodes <= 16:
        parser.error("--nodes must be from 1 to 16")
    return options


if __name__ == "__main__":
    sys.exit(main())
