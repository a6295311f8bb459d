"""Where shims and daemons meet on a node.

Daemons that run as units of the system have ``SYSTEM_DIR``: it belongs to the
daemons' user, its group may enter, and nobody but root can have made it. An
engine whose user is in that group finds them there with nothing configured.
Everybody else has a directory of their own, in which daemons are autostarted.
"""

import hashlib
import os
import socket
import stat

# sun_path holds 108 bytes with the final zero.
MAX_SOCKET_PATH = 107

SYSTEM_DIR = "/run/mooncake-sidecar"


class UnsafeDirectory(ValueError):
    """The runtime directory belongs to another user or is open to others."""


def runtime_dir(configured: str = "") -> str:
    """The runtime directory: configuration, environment, the system's daemons if usable, the user's own place.

    Asked once by each process of an engine. Should daemons of the system appear in
    between, its processes use different stores, and the hits of one are misses of
    the other: restart the engine.
    """
    if configured:
        return configured
    if from_env := os.environ.get("MOONCAKE_SIDECAR_RUNTIME_DIR"):
        return from_env
    if system_daemons_usable():
        return SYSTEM_DIR
    if xdg := os.environ.get("XDG_RUNTIME_DIR"):
        return os.path.join(xdg, "mooncake-sidecar")
    return f"/tmp/mooncake-sidecar-{os.getuid()}"


def system_daemons_usable() -> bool:
    """Whether a lookupd of the system listens, or systemd for it, and lets this user in."""
    try:
        check_runtime_dir(SYSTEM_DIR)
    except (UnsafeDirectory, OSError):
        return False
    return os.access(lookupd_socket(SYSTEM_DIR), os.W_OK)


def is_system_dir(directory: str) -> bool:
    """Whether daemons of the system serve the directory: they are units, not autostarted."""
    return os.path.normpath(directory) == SYSTEM_DIR


def trusted_users(directory: str) -> set[int]:
    """The users whose daemons are trusted in a directory: root, this user, and the owner of the system's directory."""
    users = {0, os.getuid()}
    if is_system_dir(directory):
        above = os.lstat(os.path.dirname(SYSTEM_DIR))
        if above.st_uid == 0 and not above.st_mode & 0o022:
            users.add(os.lstat(SYSTEM_DIR).st_uid)
    return users


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
    if info.st_uid not in trusted_users(path):
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


def lookup_base(directory: str, engines_own: str) -> str:
    """Where an engine's lookup socket is: daemons of the system can make sockets in their own directory only.

    Args:
        engines_own: VLLM_RPC_BASE_PATH.
    """
    return SYSTEM_DIR if is_system_dir(directory) else engines_own


def lookup_paths(path: str, engine_id: str, directory: str) -> list[str]:
    """Lookup sockets in the order in which an engine asks for them.

    The common one first, then the engine's own for when that is taken. The last is
    in the runtime directory, for a daemon that runs in another container and makes
    the others where this engine does not see them. A path that no socket can have,
    since the machine's name is long, gives way to a digest of it.

    Args:
        path: the common one.
        directory: the runtime directory.
    """
    engine = f"_engine_{engine_id[:8]}"
    wanted = [path, path + engine]
    if os.path.normpath(os.path.dirname(path)) != os.path.normpath(directory):
        wanted.append(os.path.join(directory, os.path.basename(path) + engine))
    short = f"lookup_{hashlib.sha256(os.fsencode(path)).hexdigest()[:16]}{engine}"
    fitting = [p if len(os.fsencode(p)) <= MAX_SOCKET_PATH else os.path.join(os.path.dirname(p), short) for p in wanted]
    return list(dict.fromkeys(fitting))
