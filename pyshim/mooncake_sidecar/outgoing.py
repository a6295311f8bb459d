"""Bytes on their way into a socket that may not take them at once."""

import socket
from collections import deque
from itertools import islice

_PIECES_A_CALL = 64


class Outgoing:
    """What is to be sent, in order. Nothing is copied, however long the peer does not read."""

    def __init__(self) -> None:
        self._pieces: deque[memoryview] = deque()
        self.bytes = 0
        """Not sent yet."""

    def push(self, data: bytes | bytearray) -> None:
        """Add to the end."""
        self._pieces.append(memoryview(data))
        self.bytes += len(data)

    def clear(self) -> None:
        """Forget everything."""
        self._pieces.clear()
        self.bytes = 0

    def flush(self, sock: socket.socket) -> None:
        """Send what the socket takes without waiting.

        Raises:
            OSError: the connection is of no use any more.
        """
        pieces = self._pieces
        while pieces:
            try:
                sent = sock.sendmsg(islice(pieces, _PIECES_A_CALL), (), socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            self.bytes -= sent
            while sent:
                piece = pieces[0]
                if sent < len(piece):
                    pieces[0] = piece[sent:]
                    break
                sent -= len(piece)
                pieces.popleft()
