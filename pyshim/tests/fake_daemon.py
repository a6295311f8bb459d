"""Both daemons in one small Python process, for tests: the session protocol,
lookup channels, and copies that are really made, for one full-attention kind.

    python fake_daemon.py RUNTIME_DIR [--autostarted] [--no-lookup-reply]

It is steered through RUNTIME_DIR/control.sock, one JSON object a line:
{"hold": true} keeps jobs back, {"hold": false} does them; {"ignore_cancel": true}
makes it deaf to the job board; {"silent": true} leaves lookups unanswered until it is false again;
{"say": "..."} sends raw bytes (hex) to worker sessions; {"stats": true} answers.
{"generation": 5} is another engine's reset; {"hasty": true} makes it tell of one right behind each registration.
"""

import array
import json
import mmap
import os
import socket
import struct
import sys
import threading
import zlib

import msgspec

PACK = msgspec.msgpack.encode
UNPACK = msgspec.msgpack.decode
PROTOCOL = 3


def words(data):
    found = array.array("I")
    found.frombytes(data)
    return found


class Fake:
    def __init__(self, directory, autostarted):
        self.directory = directory
        self.autostarted = autostarted
        self.chunks = {}
        self.generation = 1
        self.hasty = False
        self.engines = []
        self.lock = threading.RLock()
        self.released = threading.Condition(self.lock)
        self.hold = False
        self.ignore_cancel = False
        self.silent = False
        self.pending_once = False
        self.store_ready = True
        self.stats = {
            "stores": 0,
            "ahead": 0,
            "loads": 0,
            "cancels": 0,
            "finished": [],
            "preempted": [],
            "leases_released": [],
            "lookups": 0,
            "results": 0,
        }
        self.workers = []

    def listen(self, name, serve):
        path = os.path.join(self.directory, name)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.bind(path + ".new")
        sock.listen(16)
        os.rename(path + ".new", path)

        def accept():
            while True:
                conn, _ = sock.accept()
                threading.Thread(target=serve, args=(conn,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()

    # ---- sessions ----

    def send(self, conn, *messages):
        bodies = map(PACK, messages)
        conn.sendall(b"".join(struct.pack(">I", len(body)) + body for body in bodies))

    def frames(self, conn):
        data, fds = b"", []
        while True:
            while len(data) >= 4 and len(data) >= 4 + struct.unpack(">I", data[:4])[0]:
                length = struct.unpack(">I", data[:4])[0]
                message = UNPACK(data[4 : 4 + length])
                data = data[4 + length :]
                taken, fds = fds, []
                yield message, taken
            got, new, _, _ = socket.recv_fds(conn, 1 << 16, 16)
            if not got:
                return
            data += got
            fds += new

    def hello(self, conn, message, daemon):
        if message.get("protocol") != PROTOCOL:
            self.send(conn, {"t": "error", "code": "version", "message": f"speak {PROTOCOL}"})
            return False
        self.send(
            conn,
            {
                "t": "welcome",
                "protocol": PROTOCOL,
                "daemon": daemon,
                "version": "fake",
                "pid": os.getpid(),
                "session": 1,
                "autostarted": self.autostarted,
            },
        )
        return True

    def serve_lookupd(self, conn):
        bound = namespace = None
        try:
            for message, fds in self.frames(conn):
                kind = message["t"]
                if kind == "hello":
                    if not self.hello(conn, message, "mooncake-lookupd"):
                        return
                elif kind == "engine":
                    path = message["lookup_path"]
                    if os.path.exists(path + ".taken"):
                        self.send(conn, {"t": "error", "code": "socket_taken", "message": path + " is taken"})
                        return
                    # As a daemon does that has another file system there.
                    unseen = os.path.exists(os.path.join(os.path.dirname(path), "unseen"))
                    bound, namespace = path + ".there" if unseen else path, message["namespace"]
                    with open(bound, "w"):
                        pass
                    self.send(
                        conn,
                        {"t": "registered", "namespace_digest": "fake", "lookup_path": path, "generation": self.generation},
                        *([{"t": "generation", "generation": self.generation + 1}] if self.hasty else []),
                    )
                    self.engines.append(conn)
                elif kind == "lookup_channel":
                    channel = socket.socket(fileno=fds[0])
                    threading.Thread(target=self.serve_channel, args=(channel, namespace), daemon=True).start()
                elif kind == "ping":
                    self.send(conn, {"t": "pong", "seq": message["seq"], "store_ready": True})
        except OSError:
            pass
        finally:
            if bound is not None and os.path.exists(bound):
                os.unlink(bound)
            conn.close()

    def serve_channel(self, conn, namespace):
        stream = conn.makefile("rb")
        with conn:
            while len(head := stream.read(4)) == 4:
                body, frames = stream.read(struct.unpack(">I", head)[0]), []
                while body:
                    length = struct.unpack(">I", body[:4])[0]
                    frames.append(body[4 : 4 + length])
                    body = body[4 + length :]
                tag, *rest = frames
                with self.released:  # as a stopped process: answers come late
                    self.released.wait_for(lambda: not self.silent)
                if tag == b"release":
                    self.stats["leases_released"] += [name.decode() for name in rest]
                    continue
                if tag == b"ping":
                    reply = [b"\1"]
                elif tag == b"reset2":
                    with self.lock:
                        self.chunks.clear()
                        self.generation += 1
                    reply = [b"\1", struct.pack(">Q", self.generation)]
                elif tag == b"lookup2":
                    self.stats["lookups"] += 1
                    pending, self.pending_once = self.pending_once, False
                    reply = [struct.pack(">I", self.hit(namespace, *rest[:3])), rest[4] + bytes([1 if pending else 0])]
                else:
                    reply = [b"\0"]
                answer = b"".join(struct.pack(">I", len(frame)) + frame for frame in reply)
                try:
                    conn.sendall(struct.pack(">I", len(answer)) + answer)
                except OSError:
                    return

    def hit(self, namespace, tokens, hash_len, blob):
        tokens, hash_len = struct.unpack(">I", tokens)[0], struct.unpack(">H", hash_len)[0]
        if not hash_len:
            return 0
        block, per = namespace["scheduler_block_tokens"], namespace["hash_block_tokens"]
        hit = 0
        with self.lock:
            while hit + block <= tokens:
                at = ((hit + block) // per - 1) * hash_len
                key = blob[at : at + hash_len]
                if len(key) < hash_len or any((g, key) not in self.chunks for g in range(len(namespace["groups"]))):
                    break
                hit += block
        return hit

    def serve_worker(self, conn):
        state = {"jobs": {}, "ahead": set()}
        try:
            for message, fds in self.frames(conn):
                kind = message["t"]
                if kind == "hello":
                    if not self.hello(conn, message, "mooncake-worker"):
                        return
                elif kind == "register":
                    state["reg"] = message
                    state["regions"] = [
                        mmap.mmap(fds[r["fd"]], r["bytes"]) if r["kind"] == "memfd" else None
                        for r in message["regions"]
                    ]
                    state["board"] = mmap.mmap(fds[message["job_board"]], message["job_slots"] * 8)
                    self.workers.append(conn)  # not before: whoever only asked who is here may be gone any moment
                    self.send(conn, {"t": "registered", "namespace_digest": "fake", "store_ready": self.store_ready, "ahead": True})
                elif kind == "ahead":
                    state["ahead"].add(message["job"])
                    self.stats["ahead"] += 1
                elif kind == "final":
                    with self.released:
                        state["ahead"] -= set(message["jobs"])
                        self.released.notify_all()
                elif kind in ("store", "load"):
                    threading.Thread(target=self.run, args=(conn, state, message), daemon=True).start()
                elif kind == "cancel":
                    self.stats["cancels"] += len(message["jobs"])
                    with self.released:
                        self.released.notify_all()
                elif kind == "finished":
                    self.stats["finished"] += message["reqs"]
                    self.stats["preempted"] += message.get("preempted") or []
                elif kind == "ping":
                    self.send(conn, {"t": "pong", "seq": message["seq"], "store_ready": self.store_ready})
        except OSError:
            pass
        finally:
            if conn in self.workers:
                self.workers.remove(conn)
            conn.close()

    # ---- jobs ----

    def cancelled(self, state, job):
        if self.ignore_cancel:
            return False
        at = job % state["reg"]["job_slots"] * 8
        return struct.unpack("<Q", state["board"][at : at + 8])[0] != job

    def run(self, conn, state, job):
        with self.released:
            while (self.hold or job["job"] in state["ahead"]) and not self.cancelled(state, job["job"]):
                self.released.wait()
            result = {
                "t": "result",
                "job": job["job"],
                "kind": job["t"],
                "chunks": 0,
                "existing": 0,
                "bytes": 0,
                "us": 4,
            }
            if self.cancelled(state, job["job"]):
                result["status"] = "cancelled"
            elif not self.store_ready:
                result["status"] = "dropped" if job["t"] == "store" else "failed"
            else:
                self.stats[job["t"] + "s"] += 1
                result |= {"asked": 0, "ask_us": 1, "move_us": 2}
                getattr(self, job["t"])(state, job, result)
        try:
            self.send(conn, result)
            self.stats["results"] += 1
        except OSError:
            pass

    def pieces(self, state, group, block):
        for segment in state["reg"]["segments"]:
            if segment["group"] == group:
                start = segment["offset"] + block * segment["block_stride"]
                yield state["regions"][segment["region"]], start, start + segment["bytes"]

    def keyed(self, state, job):
        tables = [(0, words(table)) for table in job["blocks"]]
        return self.chunks_of(state, job["token_len"], tables, job["hash_len"], 0, job["hashes"])

    def parts(self, state, job):
        """The chunks of a store job, part by part."""
        rows, blocks, hashes = words(job["rows"]), words(job["blocks"]), job["hashes"]
        width, length = 8 + 2 * job["groups"], job["hash_len"]
        for at in range(0, len(rows), width):
            row, tables = rows[at : at + width], []
            own, hashes = hashes[: row[7] * length], hashes[row[7] * length :]
            for first, count in zip(row[8::2], row[9::2], strict=True):
                tables.append((first, blocks[:count]))
                blocks = blocks[count:]
            yield from self.chunks_of(state, row[0], tables, length, row[6], own)

    def chunks_of(self, state, token_len, tables, hash_len, first_hash, hashes):
        spec = state["reg"]["namespace"]
        for group, (first, ids) in enumerate(tables):
            tokens = spec["groups"][group]["block_tokens"]
            for index in range(first, token_len // tokens):
                at = ((index + 1) * tokens // spec["hash_block_tokens"] - 1 - first_hash) * hash_len
                assert 0 <= at < len(hashes)
                yield group, index * tokens, ids[index - first], hashes[at : at + hash_len]

    def store(self, state, job, result):
        for group, _, block, key in self.parts(state, job):
            if not block:
                continue
            result["asked"] += 1
            if (group, key) in self.chunks:
                result["existing"] += 1
            else:
                data = b"".join(bytes(region[a:b]) for region, a, b in self.pieces(state, group, block))
                self.chunks[group, key] = (zlib.crc32(data), data)
                result["chunks"] += 1
                result["bytes"] += len(data)
        result["status"] = "ok"

    def load(self, state, job, result):
        failed = array.array("I")
        for group, start, block, key in self.keyed(state, job):
            if start < job["local_tokens"] or not block:
                continue
            crc, data = self.chunks.get((group, key), (0, b"?"))
            result["asked"] += 1
            if zlib.crc32(data) != crc:
                failed.append(block)
                continue
            result["chunks"] += 1
            result["bytes"] += len(data)
            for region, a, b in self.pieces(state, group, block):
                region[a:b], data = data[: b - a], data[b - a :]
        result["status"] = "failed" if failed else "ok"
        if failed:
            result["failed"] = failed.tobytes()

    # ---- control ----

    def serve_control(self, conn):
        for line in conn.makefile("r"):
            order = json.loads(line)
            if order.get("stats"):
                answer = {**self.stats, "chunks": len(self.chunks), "sessions": len(self.workers)}
            else:
                answer = {"ok": True}
                with self.released:
                    for key in ("hold", "ignore_cancel", "silent", "store_ready", "pending_once", "hasty"):
                        setattr(self, key, order.get(key, getattr(self, key)))
                    if order.get("corrupt"):
                        self.chunks = {k: (crc, bytes([d[0] ^ 1]) + d[1:]) for k, (crc, d) in self.chunks.items()}
                    if order.get("forget"):
                        self.chunks.clear()
                    self.released.notify_all()
                if "generation" in order:
                    self.generation = order["generation"]
                    for engine in self.engines:
                        self.send(engine, {"t": "generation", "generation": self.generation})
                for worker in list(self.workers):
                    if "say" in order:
                        worker.sendall(bytes.fromhex(order["say"]))
                    if order.get("hang_up"):
                        worker.shutdown(socket.SHUT_RDWR)
            conn.sendall((json.dumps(answer) + "\n").encode())


def main():
    directory = sys.argv[1]
    fake = Fake(directory, "--autostarted" in sys.argv)
    fake.listen("lookupd.sock", fake.serve_lookupd)
    fake.listen("worker-host-0.sock", fake.serve_worker)
    fake.listen("control.sock", fake.serve_control)
    print("ready", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
