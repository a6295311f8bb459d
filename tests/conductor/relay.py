"""A publisher's live messages on the way to a subscriber, some of which are lost. Replays don't come this way."""

from __future__ import annotations

import random
import threading

import zmq


class Relay:
    """Passes on what comes in at `source`, at `endpoint`.

    `loss` is the share of messages that are dropped; `heard` is the number of the last one that was passed on or dropped.
    """

    def __init__(self, source: str, endpoint: str, seed: int):
        self.endpoint, self.loss, self.dropped, self.heard = endpoint, 0.0, 0, -1
        self._random = random.Random(seed)
        context = zmq.Context.instance()
        self._in, self._out = context.socket(zmq.SUB), context.socket(zmq.PUB)
        self._stop, self._stopped = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
        self._in.subscribe(b"")
        self._in.connect(source)
        self._out.set_hwm(0)
        self._out.bind(endpoint)
        address = f"inproc://relay-{id(self)}"
        self._stopped.bind(address)
        self._stop.connect(address)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._in, zmq.POLLIN)
        poller.register(self._stopped, zmq.POLLIN)
        while True:
            ready = dict(poller.poll())
            if self._stopped in ready:
                return
            frames = self._in.recv_multipart()
            if self._random.random() < self.loss:
                self.dropped += 1
            else:
                self._out.send_multipart(frames)
            self.heard = int.from_bytes(frames[1], "big")

    def close(self) -> None:
        self._stop.send(b"")
        self._thread.join()
        for socket in (self._in, self._out, self._stop, self._stopped):
            socket.close(linger=0)
