#!/usr/bin/env python3
"""Replays a trace in a closed loop against vLLM with each store by turns: without one, with ours, with the in-tree connector.

One engine lives at a time. Its own cache is kept small beside the trace, so that what a store brings shows. Each replay after
the first is compared with the first, request by request.

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
    parser.add_argument("--trace", required=True, type=pathlib.Path)
    parser.add_argument("--limit", type=int, default=300, help="requests (default 300)")
    parser.add_argument("--scale", default="1/16", help="of lengths (default 1/16)")
    parser.add_argument("--output-scale", type=float, default=1 / 64, help="of outputs (default 1/64)")
    parser.add_argument("--systems", default="none,ours,intree", help="default none,ours,intree")
    parser.add_argument("--block", type=int, default=32, help="tokens in an engine's block (default 32)")
    parser.add_argument("--blocks", type=int, default=512, help="blocks of an engine's own cache (default 512)")
    parser.add_argument("--store-mib", type=int, default=2048, help="of every store (default 2048)")
    parser.add_argument("--at-once", type=int, default=1, help="requests under way (default 1)")
    parser.add_argument("--bench", type=pathlib.Path, default=ROOT / "bin" / "mooncake-bench")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build" / "bench" / "replay")
    options = parser.parse_args()
    model = checkpoint.generate(ROOT / "build" / "checkpoint-kv2k", SHAPE)
    options.out.mkdir(parents=True, exist_ok=True)
    first = None
    for system in options.systems.split(","):
        print(f"{system}: starting vLLM", file=sys.stderr, flush=True)
        with contextlib.ExitStack() as owned:
            engine = SYSTEMS[system](options, model, owned).wait_ready()
            report = replay(options, system, engine.port, first)
        first = first or options.out / f"{system}.csv"
        print(line(system, report), flush=True)
    return 0


def replay(options, system: str, port: int, baseline: pathlib.Path | None) -> dict:
    out = options.out / system
    command = [str(options.bench), "replay", "--trace", str(options.trace), "--url", f"http://127.0.0.1:{port}", "--model", "tiny"]
    command += ["--limit", str(options.limit), "--scale", options.scale, "--output-scale", str(options.output_scale)]
    command += ["--closed-loop", "--at-once", str(options.at_once), "--json"]
    command += ["--csv", f"{out}.csv", "--html", f"{out}.html"]
    if baseline:
        command += ["--baseline", str(baseline)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode not in (0, 3):  # 3: a report that says what is amiss
        raise SystemExit(f"{system}: mooncake-bench ended with {done.returncode}")
    pathlib.Path(f"{out}.json").write_text(done.stdout)
    return json.loads(done.stdout)


def line(system: str, report: dict) -> str:
    summary, cached = report["summary"], report["summary"]["cached"]
    text = f"{system}: {summary['answered']} of {summary['requests']}, TTFT mean {summary['ttft']['mean_ms']:.1f} p50 {summary['ttft']['p50_ms']:.1f} "
    text += f"p99 {summary['ttft']['p99_ms']:.1f} ms; cached {cached['tokens']} of {cached['must']} ({cached['as_expected']} as expected, "
    text += f"{cached['too_few']} too few, {cached['too_many']} too many)"
    if versus := report.get("versus"):
        for name in ("mean_ttft_ratio", "median_of_ttft_ratios"):
            text += "; {} {value:.3f} [{low:.3f}, {high:.3f}]".format(name.replace("_", " "), **versus[name])
    return text


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
    extra = {"runtime_dir": str(runtime), "store_bytes": options.store_mib << 20, "binaries_dir": str(ROOT / "bin")}
    return _engine(options, model, owned, connector=ours(**extra))


def _intree(options, model, owned):
    if reason := mooncake.available():
        raise SystemExit(f"not possible: {reason}")
    work = pathlib.Path(tempfile.mkdtemp(prefix="mcs-replay-"))
    owned.callback(shutil.rmtree, work, ignore_errors=True)
    master = owned.enter_context(mooncake.Master(work, segment_bytes=options.store_mib << 20))
    return _engine(options, model, owned, connector=in_tree(), environment=master.environment)


SYSTEMS = {"none": _none, "ours": _ours, "intree": _intree}

if __name__ == "__main__":
    sys.exit(main())
