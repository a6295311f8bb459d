#!/usr/bin/env python3
"""Runs one system of the comparison: an engine and what its connector needs, until standard input ends.

`mooncake-bench compare` starts one of these for each system. When the engine serves, one line of JSON goes to standard
output: the port, and the process sessions whose CPU time is the system's. Whatever ends the command that holds the other end
of standard input, also ends everything that was started here.

    host.py --prepare MODEL                     generate the checkpoint and print its directory
    host.py SYSTEM --model MODEL --dir DIR      run a system
    host.py cluster --model MODEL --dir DIR     run a Mooncake cluster for several systems
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import select
import signal
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent.parent
sys.path.insert(0, str(ROOT / "tests"))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from harness.cluster import LOOPBACK, Cluster  # noqa: E402
from harness.daemons import LOOKUPD, Daemons  # noqa: E402
from harness.engine import Engine, in_tree, ours  # noqa: E402
from harness.mooncake import Master  # noqa: E402

import lmcache_server  # noqa: E402
import models  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
CLUSTER_NODES = 3

NULL = {
    "kv_connector": "NullConnector",
    "kv_connector_module_path": "null_connector",
    "kv_role": "kv_both",
    "kv_load_failure_policy": "recompute",
}


class Stopped(Exception):
    """The command at the other end of standard input wants no more of this system, or is gone."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("system", nargs="?", choices=[*sorted(SYSTEMS), "cluster"])
    parser.add_argument("--prepare", metavar="MODEL")
    parser.add_argument("--model", choices=sorted(models.SHAPES))
    parser.add_argument("--dir", type=pathlib.Path)
    parser.add_argument("--store-bytes", type=int, default=1 << 30)
    parser.add_argument("--kv-gib", type=int, default=1)
    parser.add_argument("--cluster", type=pathlib.Path, metavar="FILE", help="ours and intree use the cluster of that configuration")
    parser.add_argument("--nap", action="store_true", help="engines sleep where they would yield (tests/harness/patient)")
    options = parser.parse_args()
    if options.prepare:
        print(models.prepare(options.prepare))
        return 0
    if not (options.system and options.model and options.dir):
        parser.error("a system, --model and --dir are needed")
    if options.nap:
        _add_path(ROOT / "tests" / "harness" / "patient")
    # Private: the daemons refuse a directory that others may write or look into.
    options.dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    options.dir.chmod(0o700)
    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _stop)
        with contextlib.ExitStack() as owned:
            if options.system == "cluster":
                report = _cluster(options, owned)
            else:
                sessions, engine, *more = SYSTEMS[options.system](options, owned)
                engine.wait_ready(tick=lambda _: _check_input())
                report = {"port": engine.port, "sessions": sessions()} | (more[0] if more else {})
            print(json.dumps(report), flush=True)
            while True:
                _check_input(None)
    except Stopped:
        return 0
    except Exception as error:  # told to the command, which shows it to the user
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}), flush=True)
        return 1


def _stop(*_: object) -> None:
    raise Stopped


def _check_input(wait_s: float | None = 0) -> None:
    """Raises Stopped when standard input ended; waits for that without a limit when wait_s is None."""
    if select.select([0], [], [], wait_s)[0] and not os.read(0, 4096):
        raise Stopped


def _add_path(directory: pathlib.Path) -> None:
    """Has the engine's Python look for modules in a directory; the engine's environment puts the shim before it."""
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(directory), os.environ.get("PYTHONPATH")]))


def _engine(options, owned: contextlib.ExitStack, **more) -> Engine:
    engine = Engine(models.prepare(options.model), options.dir, kv_gib=options.kv_gib, **more)
    owned.callback(engine.kill)
    return engine


def _none(options, owned):
    engine = _engine(options, owned)
    return lambda: [engine.process.pid], engine


def _null(options, owned):
    _add_path(pathlib.Path(__file__).resolve().parent)
    engine = _engine(options, owned, connector=NULL)
    return lambda: [engine.process.pid], engine


def _cluster(options, owned) -> dict:
    running = owned.enter_context(Cluster(options.dir, CLUSTER_NODES, segment_bytes=options.store_bytes))
    pids = [program.pid for program in (running.master, *running.nodes)]
    return {"port": running.metrics_port, "sessions": pids, "config": str(running.config_path)}


def _environment(options) -> dict[str, str]:
    return LOOPBACK | {"MOONCAKE_CONFIG_PATH": str(options.cluster)}


def _ours(options, owned):
    daemons = Daemons(options.dir)
    owned.callback(daemons.close)
    extra = {"runtime_dir": str(options.dir), "store_bytes": options.store_bytes, "binaries_dir": str(ROOT / "bin")}
    more = {}
    if options.cluster:
        extra |= {"store": "mooncake", "store_python": sys.executable, "compat_keys": True}
        more = {"environment": _environment(options)}
    engine = _engine(options, owned, connector=ours(**extra), **more)
    forget = [sys.executable, str(HERE / "forget.py"), str(ROOT / "bin" / LOOKUPD), str(options.dir)] if options.cluster else []

    def sessions():
        # The daemons are started by the engine, each in a session of its own.
        return [engine.process.pid, *(os.getsid(pid) for pid in daemons.running())]

    return sessions, engine, {"forget": forget}


def _intree(options, owned):
    if options.cluster:
        engine = _engine(options, owned, connector=in_tree(), environment=_environment(options))
        return lambda: [engine.process.pid], engine
    master = owned.enter_context(Master(options.dir, segment_bytes=options.store_bytes))
    engine = _engine(options, owned, connector=in_tree(), environment=master.environment)
    return lambda: [engine.process.pid, master.process.pid], engine


def _lmcache(options, owned):
    server = owned.enter_context(lmcache_server.Server(options.dir, options.store_bytes))
    members: list[int] = []
    owned.callback(lmcache_server.remove_memory, members)
    engine = _engine(
        options, owned, connector=server.connector, environment=server.environment, python=str(lmcache_server.PYTHON)
    )
    # Runs before the engine is killed; what its processes leave behind bears their names.
    owned.callback(lambda: members.extend(lmcache_server.session_members(engine.process.pid)))
    return lambda: [engine.process.pid, server.process.pid], engine


SYSTEMS = {"none": _none, "null": _null, "ours": _ours, "intree": _intree, "lmcache": _lmcache}

if __name__ == "__main__":
    sys.exit(main())
