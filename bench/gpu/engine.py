"""A stand-in for an engine's rank: a KV cache, a session, jobs."""

import hashlib
import os
import re
import subprocess
import time
from pathlib import Path

from mooncake_sidecar import gpumem, paths
from mooncake_sidecar import messages as msg
from mooncake_sidecar.batch import NO_LIMIT, StoreBatch
from mooncake_sidecar.board import JobBoard
from mooncake_sidecar.frames import pack
from mooncake_sidecar.jobs import block_bytes, load_frame
from mooncake_sidecar.session import open_session
from shapes import Shape

PATIENCE_S = 60.0


class Daemons:
    """mooncake-lookupd and a GPU's worker, from a directory of programs."""

    def __init__(
        self, programs: Path, directory: str, store: str, environment: dict[str, str], device: str = "cuda-0"
    ) -> None:
        self.directory, self._device = directory, device
        env = {**os.environ, **environment}
        self._log = open(os.path.join(directory, "daemons.log"), "ab")  # noqa: SIM115 - for as long as they run
        self.lookupd = self._start(env, programs / "mooncake-lookupd", "--store-bytes", store)
        self._worker_command = (env, programs / "mooncake-worker", "--device", device)
        self.start_worker()

    def _start(self, env, program, *more):
        return subprocess.Popen(
            [program, "--runtime-dir", self.directory, *more], env=env, stdout=self._log, stderr=self._log
        )

    def start_worker(self) -> None:
        """Also after it was killed."""
        self.worker = self._start(*self._worker_command)

    def ways(self) -> dict[str, str]:
        """What copies the last KV cache that was mapped."""
        found = re.findall(r'"?(stores|loads)_by"?[=:]"?(copy engine|kernel)', self.log())
        return dict(found)

    def log(self) -> str:
        return Path(self.directory, "daemons.log").read_text()

    def close(self) -> None:
        for process in (self.worker, self.lookupd):
            process.terminate()
        for process in (self.worker, self.lookupd):
            process.wait()
        self._log.close()


class Request:
    """What the job builders read of a vLLM request."""

    def __init__(self, name: str, blocks: int) -> None:
        self.request_id, self.cache_salt = name, None
        self.block_hashes = [hashlib.sha256(f"{name}/{i}".encode()).digest() for i in range(blocks)]


class Engine:
    """A registered rank. Closing the session unmaps its memory in the worker."""

    def __init__(
        self, device, directory: str, shape: Shape, blocks: int, worker: str = "cuda-0", memory=None
    ) -> None:
        """Args:
        memory: the KV cache's tensor and address, where there is one already.
        """
        self.shape, self.blocks, self._jobs = shape, blocks, 0
        self.cache, address = memory or device.allocate(shape.block * blocks)
        self.ring = device.ring()
        self.board = JobBoard()
        exported = gpumem.export(device.driver, address, shape.block * blocks, 0)
        spec = msg.NamespaceSpec(
            model=shape.name, revision="", fingerprint="", cache_prefix="", dtype="bfloat16", layout=shape.layout,
            hash_algorithm="sha256", hash_bytes=32, hash_block_tokens=shape.tokens, scheduler_block_tokens=shape.tokens,
            hit_alignment_tokens=0, use_eagle=False, retention_tokens=-1, tp=1, pp=1, pcp=1, dcp=1,
            groups=[
                msg.GroupSpec("full_attention", shape.tokens, 0, False, "full", shape.block // shape.held, shape.held)
            ],
        )  # fmt: skip
        self.session = self._open(paths.worker_socket(directory, worker))
        until = time.monotonic() + PATIENCE_S
        while not self.session.call(msg.Ping(1), (), PATIENCE_S).store_ready:  # the answer has the store's generation then
            if time.monotonic() > until:
                raise TimeoutError("the worker finds no store")
            time.sleep(0.05)
        self.registered = self.session.call(
            msg.Register(
                fds=len(exported.descriptors) + 1, namespace=spec, device="cuda", num_blocks=blocks, shard_by_group=[0],
                put_stride=[1], put_phase=[0], regions=[exported.region], segments=shape.segments(blocks),
                job_board=len(exported.descriptors), job_slots=self.board.slots, lookup_engine="bench", verify=True,
                held_shards=shape.held, device_uuid=device.uuid, events=self.ring.handles if self.ring else [],
            ),
            [*exported.descriptors, self.board.fd],
            PATIENCE_S,
        )  # fmt: skip
        gpumem.close_all(exported.descriptors)

    def _open(self, path: str):
        until = time.monotonic() + PATIENCE_S
        while True:
            try:
                return open_session(path, msg.ROLE_WORKER, "bench", time.time_ns(), PATIENCE_S)
            except OSError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.05)

    def store(self, name: str, ids: list[int], event: int = -1) -> msg.Result:
        """Store blocks as a request's, when an event of the ring has happened."""
        self.begin_store(name, ids, event)
        return self._await_result()

    def begin_store(self, name: str, ids: list[int], event: int = -1) -> None:
        """Store blocks without waiting for it."""
        self._jobs += 1
        tokens = len(ids) * self.shape.tokens
        batch = StoreBatch(self._jobs, 1)
        request = Request(name, len(ids))
        batch.add(name, (tokens, tokens, tokens, tokens), NO_LIMIT, ("", 0, 0), 0, request.block_hashes, [(0, block_bytes(ids))], [])
        self._send(batch.command(1, self.registered.generation or 0).frame, event)

    def load(self, name: str, ids: list[int], event: int = -1) -> msg.Result:
        """Load a request's blocks into these."""
        self.begin_load(name, ids, event)
        return self._await_result()

    def holds(self, name: str, ids: list[int]) -> bool:
        """Whether all of a request's blocks are stored. Loads what is there of them."""
        try:
            return not self.load(name, ids).failed
        except RuntimeError:
            return False

    def begin_load(self, name: str, ids: list[int], event: int = -1) -> None:
        """Load a request's blocks without waiting for it."""
        self._jobs += 1
        request, tokens = Request(name, len(ids)), len(ids) * self.shape.tokens
        self._send(load_frame(self._jobs, 1, request, tokens, 0, [block_bytes(ids)], [], self.shape.tokens), event)

    def _send(self, frame: bytes, event: int) -> None:
        self.board.arm(self._jobs)
        self.session.sock.settimeout(PATIENCE_S)
        self.session.sock.sendall(pack(msg.encode(msg.After(event))) + frame)

    def _await_result(self) -> msg.Result:
        while True:
            for body in self.session.reader.feed(self.session.sock.recv(1 << 16)):
                answer = msg.decode(body)
                if isinstance(answer, msg.Result) and answer.job == self._jobs:
                    self.board.release(self._jobs)
                    if answer.status != msg.STATUS_OK:
                        raise RuntimeError(f"job {answer.job}: {answer}")
                    return answer

    def close(self) -> None:
        """End the session, and wait until the worker has unmapped the memory."""
        self.session.sock.shutdown(1)
        while self.session.sock.recv(1 << 16):
            pass
        self.session.close()
        self.board.close()
