#!/usr/bin/env python3
"""Empties a node's own store, so that what is loaded next comes from the cluster, and fails when something is left.

    forget.py LOOKUPD RUNTIME_DIR
"""

from __future__ import annotations

import json
import subprocess
import sys
import time

LIMIT_S = 10


def main() -> int:
    lookupd, runtime_dir = sys.argv[1:]

    def ctl(*words: str) -> dict:
        command = [lookupd, "--runtime-dir", runtime_dir, "ctl", *words, "--json"]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if not done.stdout:
            raise SystemExit(done.stderr)
        return json.loads(done.stdout)

    deadline = time.monotonic() + LIMIT_S
    while True:
        left = ctl("stats")["used_bytes"]
        if left == 0:
            return 0
        if time.monotonic() > deadline:
            raise SystemExit(f"still in the node's store after {LIMIT_S} s: {left} bytes")
        ctl("evict", "--bytes", "1TiB", "--yes")
        time.sleep(0.02)  # chunks that are on their way to the cluster stay until they are there


if __name__ == "__main__":
    sys.exit(main())
