"""The engine's OpenAI API and its metrics, over the standard library's HTTP client."""

from __future__ import annotations

import dataclasses
import http.client
import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Iterable, Sequence

Prompt = str | Sequence[int]

# For how long is waited for what comes for certain. Only a hang takes longer: a machine that others use stands still for minutes at times.
PATIENCE_S = 600.0


@dataclasses.dataclass(frozen=True)
class Completion:
    """What one request gave. `logprobs` holds, per generated token, its log-probability and those of the best ones."""

    tokens: tuple[str, ...]
    logprobs: tuple[tuple[float, tuple[tuple[str, float], ...]], ...]
    text: str
    prompt_tokens: int
    cached_tokens: int
    finish_reason: str
    ttft_ms: float = 0.0

    @property
    def output(self) -> tuple:
        """All that must be equal between two runs of one prompt; floats are compared exactly."""
        return (self.tokens, self.logprobs, self.finish_reason)

    def margin(self, position: int) -> float:
        """Distance of the best from the second best token's log-probability at a generated position."""
        best = sorted((p for _, p in self.logprobs[position][1]), reverse=True)
        return best[0] - best[1]


class ApiError(RuntimeError):
    """The engine answered with an HTTP error."""

    def __init__(self, status: int, body: str):
        super().__init__(f"HTTP {status}: {body[:500]}")
        self.status = status


class Client:
    """Talks to one engine. Safe for use by many threads: every call has its own connection."""

    def __init__(self, port: int, model: str, timeout_s: float = PATIENCE_S):
        self.port = port
        self.model = model
        self.timeout_s = timeout_s

    def call(self, method: str, path: str, body: Any = None, timeout_s: float | None = None) -> str:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s or self.timeout_s)
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data, {"Content-Type": "application/json"})
            response = connection.getresponse()
            text = response.read().decode()
            if response.status != 200:
                raise ApiError(response.status, text)
            return text
        finally:
            connection.close()

    def healthy(self) -> bool:
        try:
            self.call("GET", "/health", timeout_s=5)
            return True
        except (OSError, ApiError, http.client.HTTPException):
            return False

    def complete(self, prompt: Prompt, max_tokens: int = 16, logprobs: int = 5, kv_transfer_params: dict | None = None) -> Completion:
        """One greedy completion, with log-probabilities."""
        wishes = {"kv_transfer_params": kv_transfer_params} if kv_transfer_params else {}
        answer = json.loads(self.call("POST", "/v1/completions", self._request(prompt, max_tokens, logprobs) | wishes))
        choice, usage = answer["choices"][0], answer["usage"]
        seen = choice["logprobs"] or {"tokens": [], "token_logprobs": [], "top_logprobs": []}
        return Completion(
            tokens=tuple(seen["tokens"]),
            logprobs=tuple(
                (p, tuple(sorted(top.items()))) for p, top in zip(seen["token_logprobs"], seen["top_logprobs"])
            ),
            text=choice["text"],
            prompt_tokens=usage["prompt_tokens"],
            cached_tokens=_cached(usage),
            finish_reason=choice["finish_reason"],
        )

    def complete_many(
        self, prompts: Sequence[Prompt], max_tokens: int = 16, at_once: int = 16, kv_transfer_params: dict | None = None
    ) -> list[Completion]:
        with ThreadPoolExecutor(at_once) as pool:
            return list(pool.map(lambda p: self.complete(p, max_tokens, kv_transfer_params=kv_transfer_params), prompts))

    def stream(self, prompt: Prompt, max_tokens: int = 16) -> Completion:
        """One greedy completion whose time to first token is measured. Its log-probabilities are of the chosen tokens."""
        body = self._request(prompt, max_tokens, 1) | {"stream": True, "stream_options": {"include_usage": True}}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=self.timeout_s)
        try:
            begin = time.perf_counter()
            connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            if response.status != 200:
                raise ApiError(response.status, response.read().decode())
            first, tokens, logprobs, text, reason, usage = 0.0, [], [], [], "", {}
            for event in _events(response):
                usage = event.get("usage") or usage
                for choice in event["choices"]:
                    seen = choice.get("logprobs")
                    if seen and seen["tokens"]:
                        first = first or time.perf_counter()
                        tokens += seen["tokens"]
                        logprobs += [(p, ()) for p in seen["token_logprobs"]]
                    text.append(choice["text"])
                    reason = choice.get("finish_reason") or reason
            return Completion(
                tokens=tuple(tokens),
                logprobs=tuple(logprobs),
                text="".join(text),
                prompt_tokens=usage["prompt_tokens"],
                cached_tokens=_cached(usage),
                finish_reason=reason,
                ttft_ms=(first - begin) * 1e3,
            )
        finally:
            connection.close()

    def reset_prefix_cache(self, external: bool = False) -> bool:
        """Empties the engine's own cache, and with external the connector's too. False: some block is held, or the store was late."""
        answer = self.call("POST", "/reset_prefix_cache" + ("?reset_external=true" if external else ""))
        return json.loads(answer)["success"]

    def metrics(self) -> "Metrics":
        return Metrics(self.call("GET", "/metrics"))

    def tokenize(self, text: str) -> list[int]:
        return json.loads(self.call("POST", "/tokenize", {"model": self.model, "prompt": text}))["tokens"]

    def _request(self, prompt: Prompt, max_tokens: int, logprobs: int) -> dict:
        return {
            "model": self.model,
            "prompt": prompt if isinstance(prompt, str) else list(prompt),
            "max_tokens": max_tokens,
            "temperature": 0,
            "logprobs": logprobs,
            "return_tokens_as_token_ids": True,
            "ignore_eos": True,
        }


class Metrics:
    """A snapshot of the engine's Prometheus page, summed over labels."""

    _SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(\{[^}]*\})?\s+(\S+)")

    def __init__(self, page: str):
        self._samples: list[tuple[str, str, float]] = []
        for line in page.splitlines():
            if match := self._SAMPLE.match(line):
                self._samples.append((match[1], match[2] or "", float(match[3])))

    def value(self, name: str, *labels: str) -> float:
        """Sum of the samples of that name whose label text holds every given piece; 0 when there is none."""
        return sum(v for n, l, v in self._samples if n == name and all(piece in l for piece in labels))

    def has(self, name: str) -> bool:
        """Whether there is any sample of that name."""
        return any(n == name for n, _, _ in self._samples)

    @property
    def external_hit_tokens(self) -> int:
        """Tokens that the connector brought, by the engine's count."""
        return int(self.value("vllm:external_prefix_cache_hits_total"))

    @property
    def own_hit_tokens(self) -> int:
        return int(self.value("vllm:prefix_cache_hits_total"))

    @property
    def preemptions(self) -> int:
        return int(self.value("vllm:num_preemptions_total"))

    @property
    def waiting(self) -> int:
        return int(self.value("vllm:num_requests_waiting"))

    @property
    def running(self) -> int:
        return int(self.value("vllm:num_requests_running"))

    @property
    def kv_usage(self) -> float:
        """Share of the engine's blocks that something holds; 0 on an idle engine that leaks none."""
        return self.value("vllm:kv_cache_usage_perc")


def _cached(usage: dict) -> int:
    return (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0


def _events(lines: Iterable[bytes]):
    """Server-sent events' payloads up to the closing mark."""
    for line in lines:
        if line.startswith(b"data: "):
            payload = line[6:].strip()
            if payload == b"[DONE]":
                return
            yield json.loads(payload)
