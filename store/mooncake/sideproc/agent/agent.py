"""Mooncake Store's client in a process of its own, for a daemon without Python in it.

The daemon that starts it passes two descriptors: a stream socket (3), over which
it calls, and a memory file (4), in which the bytes are. Only calls pass through
the socket: keys, offsets, lengths, answers. package sideproc of the daemon has
the other side, and says what the frames are.

There is a thread for every call that the daemon may have under way, so that a
slow transfer makes no question wait. Those for questions take turns at reading, and
each makes the call that it has read. Transfers are handed to threads of low priority:
Mooncake's calls wait for their bytes by looking again and again, on a core that those
who move the bytes could have.
Nothing but frames is written to the socket: what Mooncake prints goes to stderr.
"""

import array
import contextlib
import ctypes
import functools
import json
import mmap
import os
import platform
import queue
import signal
import socket
import struct
import sys
import threading
import uuid

PROTOCOL = 1
SOCKET_FD, MEMORY_FD = 3, 4
MAX_FRAME = 8 << 20

EXIST, PUT, GET, REMOVE, REMOVE_REGEX, PING = 1, 2, 3, 4, 5, 6
ANSWERS, REFUSED, FAILED, HELLO, SETUP, READY = 0, 1, 2, 10, 11, 12

SOFT_PIN, HARD_PIN = 1, 2
NO_ROOM = -200
CLOSE_S = 2.0
HUGE_PAGE = 2 << 20
MAP_FIXED, MAP_NORESERVE = 0x10, 0x4000
# As the daemon's own work that nobody waits for: beside somebody who wants all of a core it has about a tenth of it.
MOVER_NICE = 10
# What TCP brings of an object in one piece. Of long ranges a fast peer sends more at a time than the processor's caches
# hold, and each byte goes to memory and back before it is copied to its place.
PIECE = 256 << 10
# The first release whose call for pieces is known to get all that the call for ranges does, from disks, too.
CUTTING = [0, 3, 13]
LEAVING = threading.Lock()

HEAD = struct.Struct("<IIB")  # bytes of all behind the first field, call, kind
COUNTS = struct.Struct("<II")  # keys, bytes of keys
HOW = struct.Struct("<IB")  # replicas, pins


class Refused(Exception):
    """A call that must not be made; the text says why."""


class Frames:
    """Frames over a stream socket, for many readers and writers."""

    def __init__(self, sock: socket.socket):
        self._sock = sock
        self._reading = threading.Lock()
        self._writing = threading.Lock()

    def read(self) -> tuple[int, int, memoryview] | None:
        """(call, kind, body) of the next frame; None at the end of the stream."""
        with self._reading:
            return self._read()

    def _read(self) -> tuple[int, int, memoryview] | None:
        head = self._exactly(HEAD.size)
        if head is None:
            return None
        size, call, kind = HEAD.unpack(head)
        if not HEAD.size - 4 <= size <= MAX_FRAME:
            raise Refused(f"a frame of {size} bytes")
        body = self._exactly(size - (HEAD.size - 4))
        return None if body is None else (call, kind, body)

    def _exactly(self, n: int) -> memoryview | None:
        # All at once: a socket does not hold thousands of keys, and each wake-up would wait for the interpreter's lock.
        data = self._sock.recv(n, socket.MSG_WAITALL)
        while len(data) < n:
            step = self._sock.recv(n - len(data), socket.MSG_WAITALL)
            if not step:
                return None
            data += step
        return memoryview(data)

    def write(self, call: int, kind: int, body: bytes) -> None:
        frame = HEAD.pack(HEAD.size - 4 + len(body), call, kind) + body
        with self._writing:
            self._sock.sendall(frame)


def map_aligned(fd: int, size: int) -> int:
    """Map a file for as long as the process lives, at an address at which its huge pages are huge ones here, too."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]

    def mapped(*arguments) -> int:
        at = libc.mmap(*arguments)
        if at == ctypes.c_void_p(-1).value:
            raise OSError(ctypes.get_errno(), f"map {size} bytes: {os.strerror(ctypes.get_errno())}")
        return at

    room = mapped(None, size + HUGE_PAGE, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
    at = -(-room // HUGE_PAGE) * HUGE_PAGE
    return mapped(at, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | MAP_FIXED, fd, 0)


class Memory:
    """The daemon's memory file, mapped whole, of which Mooncake may use what was registered."""

    def __init__(self, fd: int, size: int):
        have = os.fstat(fd).st_size
        if size <= 0 or have != size:
            raise Refused(f"the memory file has {have} bytes, {size} were announced")
        self.address = map_aligned(fd, size)
        self.size = size
        self._registered = 0

    def register(self, store) -> int:
        code = store.register_buffer(self.address, self.size)
        if code == 0:
            self._registered = self.size
        return code

    def addresses(self, offsets: array.array, sizes: array.array) -> list[int]:
        """Addresses of ranges that are registered. TCP transfers would take any address."""
        limit = self._registered
        for offset, size in zip(offsets, sizes):
            if not 0 < size <= limit - offset:
                raise Refused(f"range [{offset}, +{size}) is not inside the {limit} registered bytes")
        address = self.address
        return [address + offset for offset in offsets]


def keys_of(body: memoryview) -> tuple[list[bytes], int]:
    """A body's keys and where they end."""
    count, size = COUNTS.unpack_from(body)
    end = COUNTS.size + size
    if end > len(body):
        raise Refused(f"{size} bytes of keys in a body of {len(body)}")
    keys = bytes(body[COUNTS.size : end]).split(b"\0") if count else []
    if len(keys) != count:
        raise Refused(f"{len(keys)} keys, {count} were announced")
    return keys, end


def objects_of(body: memoryview) -> tuple[list[bytes], array.array, array.array, int]:
    """A body's keys, offsets and sizes, and where they end."""
    keys, at = keys_of(body)
    columns = []
    for _ in range(2):
        column = array.array("Q")
        end = at + 8 * len(keys)
        if end > len(body):
            raise Refused(f"a column of {len(body) - at} bytes for {len(keys)} keys")
        column.frombytes(body[at:end])
        columns.append(column)
        at = end
    return keys, columns[0], columns[1], at


def pieces_of(addresses: list[int], sizes: array.array) -> tuple[list[list[int]], list[list[int]]]:
    """Addresses and sizes of the pieces of each range."""
    starts, lengths = [], []
    for address, size in zip(addresses, sizes):
        starts.append(list(range(address, address + size, PIECE)))
        lengths.append([min(PIECE, size - done) for done in range(0, size, PIECE)])
    return starts, lengths


class Agent:
    """Mooncake's store, and the calls to it."""

    def __init__(self, settings: dict):
        self.memory = Memory(MEMORY_FD, settings["memory_bytes"])
        self.settings = settings
        self.store = None
        self._config_type = None
        self._soft_pin = None
        self._cuts = False

    def setup(self) -> dict:
        """Connect, register, and prove that bytes come back; what went wrong is in the answer."""
        stage, code, text = "import", 0, ""
        versions: dict[str, str] = {}
        try:
            import mooncake
            from mooncake import store as engine

            versions["mooncake"] = wheel_version(list(mooncake.__path__))
            self._config_type = engine.ReplicateConfig
            self._soft_pin = getattr(engine, "SoftPinAction", None)
            stage, self.store = "setup", engine.MooncakeDistributedStore()
            self._cuts = self.settings["protocol"] == "tcp" and release(versions.get("mooncake", "")) >= CUTTING
            code = self._connect()
            if code == 0:
                stage, code = "register", self.memory.register(self.store)
            if code == 0 and self.settings["probe"]:
                stage = "probe"
                code, text = self._probe()
        except Exception as error:  # noqa: BLE001 - whatever it is, the daemon is told
            code, text = code or -1, f"{type(error).__name__}: {error}"
        segment = self.store.get_hostname() if stage != "import" and code == 0 else ""
        return {"stage": stage, "code": code, "text": text, "segment": segment, "versions": versions}

    def _connect(self) -> int:
        s = self.settings
        extra = {"tenant_id": s["tenant_id"]} if s["tenant_id"] else {}
        return self.store.setup(
            s["local_hostname"],
            s["metadata_server"],
            s["global_segment_size"],
            s["local_buffer_size"],
            s["protocol"],
            s["device_name"],
            s["master_server_address"],
            **extra,
        )

    def _probe(self) -> tuple[int, str]:
        """Put an object, get it and compare: versions that do not fit pass the setup."""
        half = mmap.PAGESIZE
        page = mmap.mmap(-1, 2 * half)
        view = ctypes.c_char.from_buffer(page)
        address = ctypes.addressof(view)
        key = "mooncake-sidecar@probe@" + uuid.uuid4().hex
        page[:half] = os.urandom(half)
        code = self.store.register_buffer(address, 2 * half)
        if code != 0:
            return code, "register"
        try:
            code = self.store.batch_put_from([key], [address], [half], self._config_type())[0]
            if code == NO_ROOM:
                return 0, "no room in the cluster for a probe"
            if code != 0:
                return code, "put"
            got = self.store.batch_get_into([key], [address + half], [half])[0]
            if got != half:
                return min(got, -1), f"get answered {got}"
            if page[:half] != page[half:]:
                return -1, "what was got is not what was put"
            return 0, ""
        finally:
            self.store.batch_remove([key], True)
            self.store.unregister_buffer(address)

    def call(self, kind: int, body: memoryview) -> list[int]:
        """The answers to one call."""
        if kind == EXIST:
            keys, _ = keys_of(body)
            return self.store.batch_is_exist(keys) if keys else []
        # Not by force: memory that others have a lease on would be given away while they read it.
        if kind == REMOVE:
            keys, _ = keys_of(body)
            return self.store.batch_remove(keys, False) if keys else []
        if kind == REMOVE_REGEX:
            keys, _ = keys_of(body)
            return [self.store.remove_by_regex(keys[0], False)]
        if kind == PING:
            return [0]  # the process lives; the master has no part in it
        raise Refused(f"a call of kind {kind}")

    def transfer(self, kind: int, body: memoryview):
        """A transfer that is ready to be made, as a function."""
        keys, offsets, sizes, end = objects_of(body)
        if not keys:
            return list
        addresses = self.memory.addresses(offsets, sizes)
        if kind == GET:
            if self._cuts and max(sizes) > PIECE:
                return functools.partial(self.store.batch_get_into_multi_buffers, keys, *pieces_of(addresses, sizes))
            return functools.partial(self.store.batch_get_into, keys, addresses, sizes.tolist())
        return functools.partial(self.store.batch_put_from, keys, addresses, sizes.tolist(), self._how(body[end:]))

    def _how(self, tail: memoryview):
        replicas, pins = HOW.unpack_from(tail)
        how = self._config_type()
        how.replica_num = max(replicas, 1)
        if pins & SOFT_PIN:
            if self._soft_pin is not None:
                how.soft_pin_action = self._soft_pin.ENABLE
            else:
                how.with_soft_pin = True  # wheels before 0.3.12
        how.with_hard_pin = bool(pins & HARD_PIN)
        segments = bytes(tail[HOW.size :])
        if segments:
            how.preferred_segments = segments.decode().split("\0")
        return how


def wheel_version(paths: list[str]) -> str:
    """Version of the wheel that the package is from, empty when it is from none."""
    for path in paths:
        for name in os.listdir(os.path.dirname(path)):
            if name.startswith("mooncake_transfer_engine") and name.endswith(".dist-info"):
                return name.removesuffix(".dist-info").rpartition("-")[2]
    return ""


def release(version: str) -> list[int]:
    """The numbers of a version, as they compare: [0, 3, 13] of "0.3.13.post1"."""
    numbers = []
    for part in version.split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return numbers


def answer(frames: Frames, call: int, make) -> None:
    """Make a call and answer it."""
    try:
        reply, payload = ANSWERS, array.array("q", make()).tobytes()
    except (Refused, struct.error) as error:
        reply, payload = REFUSED, str(error).encode()
    except Exception as error:  # noqa: BLE001 - the daemon decides what to do
        reply, payload = FAILED, f"{type(error).__name__}: {error}".encode()[:1024]
    frames.write(call, reply, payload)


def serve(agent: Agent, frames: Frames, transfers: queue.SimpleQueue) -> None:
    """Read calls and make them, one after the other, until the daemon says no more; transfers are handed on."""
    while (frame := frames.read()) is not None:
        call, kind, body = frame
        make = functools.partial(agent.call, kind, body)
        if kind in (PUT, GET):
            try:
                # Taken apart here: a thread of low priority keeps the interpreter from all others as short as it can.
                transfers.put((call, agent.transfer(kind, body)))
                continue
            except Exception as error:  # noqa: BLE001 - answered as below
                make = functools.partial(refuse, error)
        answer(frames, call, make)
    leave(agent)


def refuse(error: Exception):
    raise error


def move(frames: Frames, transfers: queue.SimpleQueue) -> None:
    """Make transfers at a low priority, one after the other."""
    with contextlib.suppress(OSError):  # a sandbox; a lower priority needs no right
        me = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, me, os.getpriority(os.PRIO_PROCESS, me) + MOVER_NICE)
    while True:
        answer(frames, *transfers.get())


def guarded(run, *arguments) -> None:
    """Run, and end the process if that fails: threads may be inside Mooncake for ever, and nothing else would."""
    try:
        run(*arguments)
    except BaseException as error:  # noqa: BLE001
        print(f"mooncake-sidecar store agent: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(1)


def leave(agent: Agent | None) -> None:
    """End, with the cluster told if that is quick. Every reader comes here; the first does it."""
    LEAVING.acquire()
    if agent is not None and agent.store is not None:
        closing = threading.Thread(target=agent.store.close, daemon=True)
        closing.start()
        closing.join(CLOSE_S)
    os._exit(0)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.dup2(2, 1)
    sock = socket.socket(fileno=SOCKET_FD)
    os.set_inheritable(SOCKET_FD, False)
    os.set_inheritable(MEMORY_FD, False)
    frames = Frames(sock)
    frames.write(0, HELLO, json.dumps({"protocol": PROTOCOL, "pid": os.getpid(), "python": platform.python_version()}).encode())
    first = frames.read()
    if first is None or first[1] != SETUP:
        leave(None)
    settings = json.loads(bytes(first[2]))
    agent = Agent(settings)
    ready = agent.setup()
    frames.write(0, READY, json.dumps(ready).encode())
    transfers: queue.SimpleQueue = queue.SimpleQueue()
    for _ in range(settings["movers"]):
        threading.Thread(target=guarded, args=(move, frames, transfers), daemon=True).start()
    for _ in range(settings["threads"] - 1):
        threading.Thread(target=guarded, args=(serve, agent, frames, transfers), daemon=True).start()
    serve(agent, frames, transfers)


guarded(main)
