"""How an engine of several ranks is started on two cores."""

import os

from .engine import REPOSITORY

RANKS = 2
TP = ("--tensor-parallel-size", str(RANKS))
DP = ("--data-parallel-size", str(RANKS))

# The ranks of a CPU engine have a core each, and wait for each other in loops (patient says how these are tamed).
ENVIRONMENT = {
    "VLLM_CPU_OMP_THREADS_BIND": "0|1",
    "PYTHONPATH": f"{REPOSITORY / 'tests' / 'harness' / 'patient'}{os.pathsep}{REPOSITORY / 'pyshim'}",
}
