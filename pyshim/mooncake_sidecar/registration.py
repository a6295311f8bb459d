"""Registering a rank's KV memory with mooncake-worker."""

import ctypes
import logging
import threading
from dataclasses import dataclass, field
from typing import Any

from mooncake_sidecar import daemons, gpumem, paths, sharing
from mooncake_sidecar import messages as msg
from mooncake_sidecar.board import JobBoard
from mooncake_sidecar.config import Settings
from mooncake_sidecar.hostmem import HostRegion
from mooncake_sidecar.layout import UnsupportedLayout, runs_from_tensors
from mooncake_sidecar.link import Limits, Link, log_registered
from mooncake_sidecar.namespace import Geometry, Ranks
from mooncake_sidecar.session import Session, SessionError, open_session

logger = logging.getLogger("vllm.mooncake_sidecar.registration")

START_BUDGET_S = 5.0
_WELCOME_S = 2.0
_REGISTER_S = 5.0
_PR_SET_PTRACER = 0x59616D61


@dataclass(frozen=True)
class Memory:
    """A rank's KV memory: regions, the descriptors that go with them, and the segments of a shard."""

    regions: list[msg.KVRegion]
    descriptors: list[int]
    segments: list[msg.KVSegment]
    device_uuid: bytes = b""
    """The GPU's; empty for CPU memory."""
    events: list[bytes] = field(default_factory=list)
    """Handles of the events that jobs wait for."""
    places: list[tuple[int, int]] = field(default_factory=list)
    """Of each region its address in this process, and its bytes."""
    owned: list[int] = field(default_factory=list)
    """Those of ``descriptors`` that are closed with this."""

    def close(self) -> None:
        """Give back what is only needed to register."""
        gpumem.close_all(self.owned)

    @property
    def by_address(self) -> bool:
        """Whether the daemon must reach into this process for some of it."""
        return any(region.kind == "process_vm" for region in self.regions)


def describe(
    kv_caches: dict[str, Any],
    kv_cache_config: Any,
    shared: list[HostRegion],
    groups: int,
    cut: int = 0,
    driver: gpumem.Driver | None = None,
) -> Memory:
    """Turn the registered tensors into regions and segments.

    Args:
        shared: memfds that hold KV memory; what is not in one is reached by address.
        groups: number of store groups; each uses every segment.
        cut: shards that each block is cut into, 0 for none.
        driver: shares what is in a GPU's memory.

    Raises:
        UnsupportedLayout: the tensors can't be described, or are neither on the CPU nor on a CUDA GPU.
    """
    by_address = {region.address: region for region in shared}
    regions: list[msg.KVRegion] = []
    descriptors: list[int] = []
    numbers: dict[int, int] = {}
    places: list[tuple[int, int]] = []
    segments: list[msg.KVSegment] = []
    owned: list[int] = []
    runs = runs_from_tensors(kv_caches, kv_cache_config, cut)
    try:
        for storage, run in runs:
            on_gpu = storage.device.type == "cuda" and driver is not None
            if storage.device.type != "cpu" and not on_gpu:
                raise UnsupportedLayout(f"the KV cache is on {storage.device}; CPU and CUDA engines are served")
            address = storage.data_ptr()
            if address not in numbers:
                numbers[address] = len(regions)
                places.append((address, storage.nbytes()))
                if on_gpu:
                    exported = gpumem.export(driver, address, storage.nbytes(), len(descriptors))
                    regions.append(exported.region)
                    descriptors += exported.descriptors
                    owned += exported.descriptors
                elif (host := by_address.get(address)) is not None and host.size >= storage.nbytes():
                    if len(descriptors) == gpumem.MAX_DESCRIPTORS:
                        raise UnsupportedLayout(f"the KV cache lies in more than {gpumem.MAX_DESCRIPTORS} shared files")
                    regions.append(msg.KVRegion("memfd", len(descriptors), 0, host.size))
                    descriptors.append(host.fd)
                else:
                    regions.append(msg.KVRegion("process_vm", 0, address, storage.nbytes()))
            segments.append(msg.KVSegment(0, numbers[address], run.offset, run.stride, run.bytes, run.shard))
    except BaseException:
        gpumem.close_all(owned)
        raise
    every = [
        msg.KVSegment(group, s.region, s.offset, s.block_stride, s.bytes, s.shard)
        for group in range(groups)
        for s in segments
    ]
    if len(every) > sharing.MAX_SEGMENTS:
        gpumem.close_all(owned)
        raise UnsupportedLayout(
            f"the KV cache is in {len(every)} pieces of {groups} groups, at most {sharing.MAX_SEGMENTS} can be registered"
            + ("; leave store_tp_size out" if cut else "")
        )
    return Memory(regions, descriptors, every, places=places, owned=owned)


class Registrant:
    """Makes registered links for one rank. Called by the maintainer's thread."""

    def __init__(
        self,
        settings: Settings,
        geometry: Geometry,
        ranks: Ranks,
        memory: Memory,
        *,
        num_blocks: int,
        engine_id: str,
        epoch: int,
        device: str,
    ) -> None:
        """Args:
        device: the daemon's device name, e.g. ``host-0``.
        epoch: identifies this process.
        """
        self._settings = settings
        self._geometry = geometry
        self._ranks = ranks
        self._memory = memory
        self._num_blocks = num_blocks
        self._engine_id = engine_id
        self._epoch = epoch
        self._device = device
        self._directory = paths.runtime_dir(settings.runtime_dir)
        self._limits = Limits(settings.load_timeout_s, settings.store_timeout_s, settings.fence_kill_after_s)

    def connect(self, stop: threading.Event) -> Link:
        """Find or start the daemons, register, and return the link.

        A daemon that takes its time gets it: the link is returned, and takes jobs once
        the answer has come. The memory may be mapped behind a link until that has ended.

        Raises:
            DaemonError, SessionError, OSError: not now.
        """
        wanted = [
            daemons.lookupd(self._directory, self._settings),
            daemons.worker(self._directory, self._device, self._settings),
        ]
        daemons.ensure(wanted, self._directory, self._settings, START_BUDGET_S, stop)
        session = open_session(wanted[1].socket, msg.ROLE_WORKER, self._engine_id, self._epoch, _WELCOME_S)
        board = None
        try:
            if session.pidfd < 0:
                raise SessionError(
                    f"the process of mooncake-worker (pid {session.welcome.pid}) can't be watched from here, so that "
                    "its death would go unnoticed and blocks would wait for it for ever; engine and daemon must share "
                    "a pid namespace"
                )
            if self._memory.by_address:
                _allow_access(session.pid)
            board = JobBoard()
            if stop.is_set():  # the memory may be about to go
                raise SessionError("given up before the registration")
            descriptors = [*self._memory.descriptors, board.fd]
            sent = session.post(self._message(board), descriptors, _REGISTER_S, stop)
            if not sent or (answer := session.answer(_REGISTER_S, stop)) is None:
                # What it maps it maps, now or later: only the session's end says that it has not.
                if not stop.is_set():
                    logger.warning(
                        "mooncake-worker (pid %d) is still at the registration: the engine runs without the KV store "
                        "until it is through",
                        session.pid,
                    )
                return Link(session, board, self._limits, False, registered=False)
            if not isinstance(answer, msg.Registered):
                raise SessionError(f"expected registered, got {type(answer).__name__}")
            ready = answer.store_ready or _await_store(session, stop)
        except BaseException:
            session.close()
            if board is not None:
                board.close()
            raise
        log_registered(session, answer)
        return Link(session, board, self._limits, ready, sees_events=not answer.events_refused, takes_ahead=answer.ahead)

    def _message(self, board: JobBoard) -> msg.Register:
        shards, strides, phases = self._geometry.shares(self._ranks)
        return msg.Register(
            fds=len(self._memory.descriptors) + 1,
            namespace=self._geometry.spec,
            device=self._device.partition("-")[0],
            num_blocks=self._num_blocks,
            shard_by_group=shards,
            put_stride=strides,
            put_phase=phases,
            regions=self._memory.regions,
            segments=self._memory.segments,
            job_board=len(self._memory.descriptors),
            job_slots=board.slots,
            lookup_engine=self._engine_id,
            verify=self._settings.verify,
            store_retention=self._settings.store_retention,
            held_shards=self._geometry.held_shards,
            device_uuid=self._memory.device_uuid,
            events=self._memory.events,
        )


def _await_store(session: Session, stop: threading.Event) -> bool:
    """Give a worker that has just started a moment to find its store; whether it did."""
    for attempt in range(20):
        session.post(msg.Ping(attempt), (), _WELCOME_S)
        if (answer := session.answer(_WELCOME_S, stop)) is None:
            break
        if isinstance(answer, msg.Pong) and answer.store_ready:
            return True
        if stop.wait(0.05):
            break
    return False


def _allow_access(pid: int) -> None:
    """Let the daemon read and write this process' memory where Yama restricts that to debuggers."""
    ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(pid), 0, 0, 0)  # fails without Yama: not needed there
