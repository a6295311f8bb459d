"""Runs a daemon detached from the engine that wanted it.

Executed as a script by a bare interpreter (``python -I -S launch.py LOG BINARY
ARG...``), never imported by the connector. The daemon must not be a child of
the engine, which kills its children when it fails; and must not inherit what
vLLM set for itself: CPU affinity, memory policy, OpenMP settings, preloads.
"""

import ctypes
import os
import platform
import sys

_DROPPED_PREFIXES = ("OMP_", "KMP_", "GOMP_", "MKL_", "VLLM_", "CUDA_", "NCCL_", "TORCH", "PYTORCH")
_DROPPED = {"LD_PRELOAD", "LD_LIBRARY_PATH", "MALLOC_CONF", "PYTHONPATH", "PYTHONHOME"}
_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}
_MPOL_DEFAULT = 0


def clean_environment(environment: dict[str, str]) -> dict[str, str]:
    """The environment without what was set for the engine alone."""
    return {
        key: value
        for key, value in environment.items()
        if key not in _DROPPED and not key.startswith(_DROPPED_PREFIXES)
    }


def _reset_placement() -> None:
    try:
        # The kernel cuts the set down to what the control group allows.
        os.sched_setaffinity(0, range(min(os.sysconf("SC_NPROCESSORS_CONF"), 4096)))
    except OSError:
        pass  # a sandbox forbids it; the daemon then shares the engine's CPUs
    number = _SET_MEMPOLICY.get(platform.machine())
    if number is not None:
        ctypes.CDLL(None).syscall(number, _MPOL_DEFAULT, None, 0)


def main(argv: list[str]) -> None:
    log_path, command = argv[0], argv[1:]
    os.setsid()
    if os.fork():
        os._exit(0)
    _reset_placement()
    null = os.open(os.devnull, os.O_RDONLY)
    log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.chdir("/")
    os.umask(0o077)
    try:
        os.execve(command[0], command, clean_environment(dict(os.environ)))
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
        os._exit(127)


if __name__ == "__main__":
    main(sys.argv[1:])
