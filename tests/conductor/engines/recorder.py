"""An engine seen by the router as two: a prefill engine, which keeps what it is sent, and a decode engine, which asks the real one.

The router sends a prompt's token ids to the prefill engine, whatever way it has got them: so they can be seen.
"""

from __future__ import annotations

import http.client
import http.server
import json
import threading


class Recorder:
    """Two HTTP servers in front of an engine. A context manager."""

    def __init__(self, engine_port: int):
        self.engine_port = engine_port
        self._lock = threading.Lock()
        self._tokenized: list[tuple[bytes, bytes]] = []  # questions and answers
        self._prefilled: list[dict] = []
        self._servers = {role: http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._face(role)) for role in ("prefill", "decode")}
        self._threads = [threading.Thread(target=server.serve_forever, daemon=True) for server in self._servers.values()]

    def __enter__(self) -> Recorder:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_) -> None:
        for server in self._servers.values():
            server.shutdown()
            server.server_close()
        for thread in self._threads:
            thread.join()

    @property
    def engines(self) -> list[tuple[str, int]]:
        """Roles, which are names as well, and ports."""
        return [(role, server.server_address[1]) for role, server in self._servers.items()]

    def take(self) -> tuple[list[tuple[bytes, bytes]], list[dict]]:
        """What came since the last call: questions to /tokenize with their answers, and bodies of prefills."""
        with self._lock:
            taken = self._tokenized, self._prefilled
            self._tokenized, self._prefilled = [], []
            return taken

    def ask(self, method: str, path: str, body: bytes | None) -> tuple[int, str, bytes]:
        """The real engine's status, type and answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.engine_port, timeout=180)
        try:
            connection.request(method, path, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, response.getheader("Content-Type", ""), response.read()
        finally:
            connection.close()

    def _answer(self, role: str, method: str, path: str, body: bytes) -> tuple[int, str, bytes]:
        if role == "prefill" and path == "/v1/completions":
            with self._lock:
                self._prefilled.append(json.loads(body))
            return 200, "application/json", b'{"choices":[{"text":""}]}'
        status, kind, text = self.ask(method, path, body or None)
        if path == "/tokenize":
            with self._lock:
                self._tokenized.append((body, text))
        return status, kind, text

    def _face(self, role: str) -> type[http.server.BaseHTTPRequestHandler]:
        recorder = self

        class Face(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                try:
                    status, kind, text = recorder._answer(role, self.command, self.path, body)
                except OSError:
                    status, kind, text = 502, "text/plain", b"the engine does not answer"
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            do_POST = do_GET

            def log_message(self, *_) -> None:
                pass

        return Face
