"""Where shims and daemons meet on a node."""

import os
import socket
import stat

# sun_path holds 108 bytes with the final zero.
MAX_SOCKET_PATH = 107


class UnsafeDirectory(ValueError):
    """The runtime directory belongs to another user or is open to others."""


def runtime_dir(configured: str = "") -> str:
    """The runtime directory: configuration, then environment, then the user's own place."""
    if configured:
        return configured
    if from_env := os.environ.get("MOONCAKE_SIDECAR_RUNTIME_DIR"):
        return from_env
    if xdg := os.environ.get("XDG_RUNTIME_DIR"):
        return os.path.join(xdg, "mooncake-sidecar")
    return f"/tmp/mooncake-sidecar-{os.getuid()}"


def check_runtime_dir(path: str, create: bool = False) -> None:
    """Refuse a directory through which another user could stand in for a daemon.

    Raises:
        UnsafeDirectory: not a directory of this user's, or open to others.
        OSError: it is not there and can't be made.
    """
    if create:
        os.makedirs(path, mode=0o700, exist_ok=True)
    info = os.lstat(path)
    if not stat.S_ISDIR(info.st_mode):
        raise UnsafeDirectory(f"{path} is not a directory")
    if info.st_uid not in (os.getuid(), 0):
        raise UnsafeDirectory(f"{path} belongs to user {info.st_uid}, not to {os.getuid()}")
    if info.st_mode & 0o027:
        raise UnsafeDirectory(f"{path} has mode {info.st_mode & 0o777:04o}; others may enter it. chmod 0700 it")


def lookupd_socket(directory: str) -> str:
    """The session socket of mooncake-lookupd."""
    return os.path.join(directory, "lookupd.sock")


def worker_socket(directory: str, device: str) -> str:
    """The session socket of the mooncake-worker of ``device``, e.g. ``host-0``."""
    return os.path.join(directory, f"worker-{device}.sock")


def lookup_path(base: str, port: int, dp_rank: int, hostname: str | None = None) -> str:
    """The lookup socket of an engine, named as the in-tree connector names it.

    Args:
        base: VLLM_RPC_BASE_PATH, a directory.
        port: ``lookup_rpc_port``, only a part of the name.
        dp_rank: data-parallel index of the engine.
    """
    return f"{base}/lookup_rpc_port_{port}_host_{hostname or socket.gethostname()}_dp_rank{dp_rank}"


def private_lookup_path(path: str, engine_id: str) -> str:
    """The engine's own path, asked for when the common one is taken."""
    return f"{path}_engine_{engine_id[:8]}"
