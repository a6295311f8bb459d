#!/usr/bin/env python3
"""How long a daemon takes to serve, and what memory it needs beyond the store.

Each daemon is started several times in a fresh runtime directory; the time is
from exec to the answer to a hello. Its own memory is its anonymous and file
pages; the pages of the store's segment are shared memory and count apart.
Targets: start under 200 ms, own memory under 64 MiB.

example:
  python bench/daemons/run.py --runs 10 --json build/bench/daemons.json
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "pyshim"))

from mooncake_sidecar import messages as msg  # noqa: E402
from mooncake_sidecar.session import SessionError, open_session  # noqa: E402

START_TARGET_MS = 200.0
MEMORY_TARGET_MIB = 64.0


def answers(socket: str) -> bool:
    try:
        session = open_session(socket, msg.ROLE_PROBE, "", 1, 1.0)
    except (OSError, SessionError):
        return False
    session.close()
    return True


def memory_mib(pid: int) -> tuple[float, float]:
    """Own (anonymous and file pages) and shared memory of a process."""
    fields = {}
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.startswith("Rss"):
            fields[name] = int(value.split()[0]) / 1024
    return fields["RssAnon"] + fields["RssFile"], fields["RssShmem"]


def start_once(directory: str, binaries: pathlib.Path, store_bytes: str) -> dict[str, tuple[float, float]]:
    """Starts both daemons; returns start in ms and own memory in MiB by program."""
    commands = {
        "mooncake-lookupd": (["--store-bytes", store_bytes], "lookupd.sock"),
        "mooncake-worker": (["--device", "host-0"], "worker-host-0.sock"),
    }
    processes, out = [], {}
    try:
        for program, (flags, socket) in commands.items():
            began = time.monotonic()
            process = subprocess.Popen(
                [str(binaries / program), "--runtime-dir", directory, *flags],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            processes.append(process)
            while not answers(os.path.join(directory, socket)):
                if process.poll() is not None or time.monotonic() - began > 10:
                    raise SystemExit(f"{program} did not serve within 10 s")
                time.sleep(0.001)
            out[program] = ((time.monotonic() - began) * 1e3, memory_mib(process.pid)[0])
    finally:
        for process in processes:
            process.send_signal(signal.SIGTERM)
        for process in processes:
            process.wait(10)
    return out


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--store-bytes", default="4GiB")
    parser.add_argument("--binaries", type=pathlib.Path, default=ROOT / "bin")
    parser.add_argument("--json", type=pathlib.Path, help="write the result there")
    options = parser.parse_args()

    runs = []
    for _ in range(options.runs):
        with tempfile.TemporaryDirectory() as directory:
            os.chmod(directory, 0o700)
            runs.append(start_once(directory, options.binaries, options.store_bytes))
    result = {"store_bytes": options.store_bytes, "runs": options.runs, "daemons": {}}
    for program in runs[0]:
        starts, memory = ([run[program][i] for run in runs] for i in (0, 1))
        result["daemons"][program] = {
            "start_ms": {"min": min(starts), "median": statistics.median(starts), "max": max(starts)},
            "own_memory_mib": {"min": min(memory), "median": statistics.median(memory), "max": max(memory)},
        }
        print(
            f"{program}: start {statistics.median(starts):.0f} ms ({min(starts):.0f} to {max(starts):.0f}, target {START_TARGET_MS:.0f}), "
            f"own memory {statistics.median(memory):.1f} MiB (at most {max(memory):.1f}, target {MEMORY_TARGET_MIB:.0f})"
        )
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
