#!/usr/bin/env python3
"""Replays traces in a closed loop against vLLM with each store by turns: without one, with ours, with the in-tree connector.

One engine lives at a time. In every round each store has a fresh engine, in an order that goes round. The engine's own cache is
kept small beside the trace, so that what a store brings shows. `mooncake-bench rounds` sums up: cached tokens beside what the
trace says they must be, and times to first token relative to the first store's, with intervals. Without --trace a workload is
drawn that shares most of its prompts (the papers' L-Eval).

example:
  python bench/replay/live.py --trace conversation_trace.jsonl --out build/bench/replay
"""

from __future__ import annotations

import argparse
import contextlib
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from harness import checkpoint, mooncake  # noqa: E402
from harness.daemons import Daemons, runtime_directory  # noqa: E402
from harness.engine import Engine, in_tree, ours  # noqa: E402

# 2 KiB of KV cache a token, as the smaller model of the comparison.
SHAPE = checkpoint.Shape(layers=4, heads=4, kv_heads=1, head_size=64)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", action="append", type=pathlib.Path, default=[], help="may be given again")
    parser.add_argument("--limit", type=int, default=300, help="requests (default 300)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each trace (default 3)")
    parser.add_argument("--scale", default="1/16", help="of lengths (default 1/16)")
    parser.add_argument("--output-scale", type=float, default=1 / 64, help="of outputs (default 1/64)")
    parser.add_argument("--systems", default="none,ours,intree", help="default none,ours,intree; ratios are to the first")
    parser.add_argument("--block", type=int, default=32, help="tokens in an engine's block (default 32)")
    parser.add_argument("--blocks", type=int, default=512, help="blocks of an engine's own cache (default 512)")
    parser.add_argument("--store-mib", type=int, default=2048, help="of every store (default 2048)")
    parser.add_argument("--at-once", type=int, default=1, help="requests under way (default 1)")
    parser.add_argument("--bench", type=pathlib.Path, default=ROOT / "bin" / "mooncake-bench")
    parser.add_argument("--binaries", type=pathlib.Path, default=ROOT / "bin", help="the daemons' folder (default bin)")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build" / "bench" / "replay")
    options = parser.parse_args()
    options.systems = options.systems.split(",")
    if unknown := [name for name in options.systems if name not in SYSTEMS]:
        parser.error(f"--systems: there is no {', '.join(unknown)}; there are {', '.join(SYSTEMS)}")
    if "intree" in options.systems and (reason := mooncake.available()):
        raise SystemExit(f"not possible: {reason}")
    model = checkpoint.generate(ROOT / "build" / "checkpoint-kv2k", SHAPE)
    options.out.mkdir(parents=True, exist_ok=True)
    results, whole = [], True
    for trace in options.trace or [drawn(options)]:
        result = replay_trace(options, model, trace)
        results.append(result)
        whole = whole and all(s["answered"] == s["requests"] for s in result["systems"])
    (options.out / "rounds.json").write_text("".join(json.dumps(r) + "\n" for r in results))
    return 0 if whole else 3


def drawn(options) -> pathlib.Path:
    """A trace of the papers' L-Eval workload: long prompts of which most is shared."""
    path = options.out / "l-eval.jsonl"
    subprocess.run(
        [str(options.bench), "generate", "--workload", "l-eval", "--requests", str(options.limit), "--seed", "1", "--out", str(path)], check=True
    )
    return path


def replay_trace(options, model: pathlib.Path, trace: pathlib.Path) -> dict:
    """All rounds of one trace; prints and returns what they come to."""
    out = options.out / trace.stem
    out.mkdir(parents=True, exist_ok=True)
    replays = []
    for number in range(1, options.rounds + 1):
        turn = (number - 1) % len(options.systems)
        for system in options.systems[turn:] + options.systems[:turn]:
            print(f"{trace.stem}, round {number} of {options.rounds}, {system}: starting vLLM", file=sys.stderr, flush=True)
            with contextlib.ExitStack() as owned:
                engine = SYSTEMS[system](options, model, owned).wait_ready()
                replays.append(f"{system}@{number}={replay(options, trace, out / f'{system}-{number}', engine.port, number)}")
    replays.sort(key=lambda word: options.systems.index(word.partition("@")[0]))
    command = [str(options.bench), "rounds", "--baseline", options.systems[0], "--trace", trace.stem, "--html", str(out / "rounds.html")]
    print(subprocess.run([*command, *replays], stdout=subprocess.PIPE, text=True, check=True).stdout, flush=True)
    return json.loads(subprocess.run([*command, "--json", *replays], stdout=subprocess.PIPE, text=True, check=True).stdout)


def replay(options, trace: pathlib.Path, out: pathlib.Path, port: int, seed: int) -> pathlib.Path:
    """One replay; returns its file of requests."""
    command = [str(options.bench), "replay", "--trace", str(trace), "--url", f"http://127.0.0.1:{port}", "--model", "tiny", "--seed", str(seed)]
    command += ["--limit", str(options.limit), "--scale", options.scale, "--output-scale", str(options.output_scale)]
    command += ["--closed-loop", "--at-once", str(options.at_once), "--json", "--csv", f"{out}.csv", "--html", f"{out}.html"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode not in (0, 3):  # 3: a report that says what is amiss
        raise SystemExit(f"{out.name}: mooncake-bench ended with {done.returncode}")
    out.with_suffix(".json").write_text(done.stdout)
    return out.with_suffix(".csv")


def _engine(options, model: pathlib.Path, owned: contextlib.ExitStack, **more) -> Engine:
    work = pathlib.Path(tempfile.mkdtemp(prefix="mcs-replay-"))
    owned.callback(shutil.rmtree, work, ignore_errors=True)
    # The longest request must fit into the engine's own cache, of which one block is the null block.
    arguments = ["--block-size", str(options.block), "--max-model-len", str(options.block * options.blocks * 3 // 4)]
    engine = Engine(model, work, blocks=options.blocks, arguments=arguments, **more)
    owned.callback(engine.kill)
    return engine


def _none(options, model, owned):
    return _engine(options, model, owned)


def _ours(options, model, owned):
    runtime = runtime_directory(ROOT / "build", "replay-run")
    owned.callback(Daemons(runtime).close)
    extra = {"runtime_dir": str(runtime), "store_bytes": options.store_mib << 20, "binaries_dir": str(options.binaries)}
    return _engine(options, model, owned, connector=ours(**extra))


def _intree(options, model, owned):
    work = pathlib.Path(tempfile.mkdtemp(prefix="mcs-replay-"))
    owned.callback(shutil.rmtree, work, ignore_errors=True)
    master = owned.enter_context(mooncake.Master(work, segment_bytes=options.store_mib << 20))
    return _engine(options, model, owned, connector=in_tree(), environment=master.environment)


SYSTEMS = {"none": _none, "ours": _ours, "intree": _intree}

if __name__ == "__main__":
    sys.exit(main())
