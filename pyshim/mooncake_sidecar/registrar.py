"""The scheduler role's background thread: registers the engine with mooncake-lookupd.

Registered, and pinged on a lookup channel, the lookup client is up. The thread
then watches the session, and while the client is down opens another channel and
pings on it.
"""

import logging
import os
import random
import select
import threading
import time
from collections.abc import Callable

from mooncake_sidecar import messages as msg
from mooncake_sidecar import paths
from mooncake_sidecar.channel import Channel, ChannelError, pack_message
from mooncake_sidecar.lookup import LookupClient
from mooncake_sidecar.session import Session, SessionError, open_session

logger = logging.getLogger("vllm.mooncake_sidecar.registrar")

FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 2.0
_ANSWER_S = 2.0
_PING_S = 0.2


class Registrar:
    """Owns one thread. ``stop`` ends it and waits."""

    def __init__(
        self,
        client: LookupClient,
        spec: msg.NamespaceSpec,
        socket_path: str,
        lookup_path: str,
        engine_id: str,
        epoch: int,
        prepare: Callable[[threading.Event], None],
    ) -> None:
        """Args:
        socket_path: lookupd's session socket.
        lookup_path: the lookup socket the engine would like.
        prepare: makes lookupd be there (autostart); raises when it can't.
        """
        self._client = client
        self._spec = spec
        self._socket_path = socket_path
        self._lookup_path = lookup_path
        self._engine_id = engine_id
        self._epoch = epoch
        self._prepare = prepare
        self.lookup_path = ""
        """Where lookupd has bound the engine's lookup socket, for others who ask."""
        self.on_registered: Callable[[msg.Registered], None] = lambda _: None
        """Called in the thread with what lookupd answered, before the session is in use."""
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._stride = 0
        self._stop = threading.Event()
        self.first_attempt = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mooncake-sidecar", daemon=True)
        client.on_down = self._wake

    def start(self) -> None:
        """Begin registering."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread and wait for it."""
        self._stop.set()
        self._wake()
        if self._thread.is_alive():
            self._thread.join()
        self._client.on_down = lambda: None
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _wake(self) -> None:
        try:
            os.write(self._wake_write, b"x")
        except BlockingIOError:
            pass  # it is awake

    def _run(self) -> None:
        pause = FIRST_PAUSE_S
        warned = False
        while not self._stop.is_set():
            began = time.monotonic()
            try:
                self._prepare(self._stop)
                session, self.lookup_path = self._register()
            except Exception as error:
                # Whatever it is, the engine goes on without the cache.
                log = logger.debug if warned else logger.warning
                log("no KV store for now: %s (the engine runs without it; trying again in the background)", error)
                warned = True
            else:
                try:
                    warned = self._serve(session, warned)
                except Exception as error:
                    # No descriptor left for a channel, for example.
                    logger.warning("the session with mooncake-lookupd is over: %s (trying again)", error)
                finally:
                    self._client.mark_down()
                    session.close()
            self.first_attempt.set()
            if time.monotonic() - began > LONGEST_PAUSE_S:
                pause = FIRST_PAUSE_S
            self._stop.wait(pause * (0.5 + random.random()))
            pause = min(pause * 2, LONGEST_PAUSE_S)

    def _register(self) -> tuple[Session, str]:
        """A session on which lookupd has bound a lookup socket that this process can see, and the socket's path."""
        wanted = paths.lookup_paths(self._lookup_path, self._engine_id, os.path.dirname(self._socket_path))
        for path in wanted:
            try:
                session, bound = self._register_at(path)
            except SessionError as error:
                if error.code != msg.SOCKET_TAKEN or path == wanted[-1]:
                    raise
                logger.warning("%s; using one of this engine's own", error)
                continue
            if os.path.exists(bound):
                return session, bound
            session.close()
            logger.info("mooncake-lookupd and this engine have different %s", os.path.dirname(bound))
        raise SessionError(
            f"mooncake-lookupd has made {bound}, which this engine does not see: they need the same runtime directory"
        )

    def _register_at(self, path: str) -> tuple[Session, str]:
        """The same for one path."""
        session = open_session(self._socket_path, msg.ROLE_SCHEDULER, self._engine_id, self._epoch, _ANSWER_S)
        try:
            answer = session.call(msg.Engine(self._spec, path, self._engine_id, *self._client.patience), (), _ANSWER_S)
            if not isinstance(answer, msg.Registered):
                raise SessionError(f"expected registered, got {type(answer).__name__}")
            self._tell_registered(answer)
        except BaseException:
            session.close()
            raise
        self._stride = answer.lookup_stride
        if answer.generation is not None:
            self._client.heard(answer.generation)
        return session, answer.lookup_path or path

    def _tell_registered(self, answer: msg.Registered) -> None:
        try:
            self.on_registered(answer)
        except Exception:
            # The store is there, whatever else is not.
            logger.warning("after the registration with mooncake-lookupd", exc_info=True)

    def _serve(self, session: Session, warned: bool) -> bool:
        """Until the session ends or stop. Returns whether the user was told of an outage that is still on."""
        for message in session.unread:
            self._take(message)
        poller = select.poll()
        poller.register(session.sock, select.POLLIN | select.POLLRDHUP)
        poller.register(self._wake_read, select.POLLIN)
        pause = FIRST_PAUSE_S
        opened: Channel | None = None
        try:
            while not self._stop.is_set():
                if not self._client.up:
                    opened, answered = _ping(session, opened)
                    if answered:
                        self._client.mark_up(opened, self._stride)
                        opened = None
                        self.first_attempt.set()
                        pause = FIRST_PAUSE_S
                        if warned:
                            logger.warning("mooncake-lookupd answers: the KV store is in use again")
                        warned = False
                    else:
                        warned = True
                wait_ms = None if self._client.up else int(pause * 1000)
                pause = min(pause * 2, LONGEST_PAUSE_S)
                for fd, _ in poller.poll(wait_ms):
                    if fd == self._wake_read:
                        os.read(self._wake_read, 4096)
                    elif not self._still_there(session):
                        return True
        except SessionError as error:
            logger.warning("session with mooncake-lookupd: %s", error)
        finally:
            if opened is not None:
                opened.close()
        return warned

    def _still_there(self, session: Session) -> bool:
        """Read what came: news of resets, an error, EOF."""
        try:
            data = session.sock.recv(1 << 16)
            for body in session.reader.feed(data):
                self._take(msg.decode(body))
        except (OSError, ValueError) as error:
            logger.warning("session with mooncake-lookupd: %s", error)
            return False
        if not data:
            logger.warning("mooncake-lookupd ended the session")
        return bool(data)

    def _take(self, message: msg.Incoming | msg.Unknown) -> None:
        match message:
            case msg.Generation(generation=generation):
                self._client.heard(generation)
            case msg.Error(message=text, code=code):
                logger.warning("mooncake-lookupd: %s [%s]", text, code)


def _ping(session: Session, opened: Channel | None) -> tuple[Channel | None, bool]:
    """Open a lookup channel, or go on waiting at the one of before, and say whether a ping on it was answered.

    A daemon that is stopped gets no second channel: descriptors on their way to
    it are few in all.

    Raises:
        SessionError: the session has ended, or the daemon does not read.
    """
    try:
        if opened is None:
            opened, theirs = Channel.pair()
            with theirs:
                session.post(msg.LookupChannel(1), (theirs.fileno(),), _ANSWER_S)
            opened.send(pack_message([b"ping"]))
        answer = opened.await_status(_PING_S)
        if answer is not False:
            return opened, bool(answer)
    except ChannelError as error:
        logger.debug("lookup channel: %s", error)
    except BaseException:
        if opened is not None:
            opened.close()
        raise
    opened.close()
    return None, False
