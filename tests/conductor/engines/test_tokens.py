"""The token ids that the router goes by are those that the engine makes of the same request, asked for or remembered.

What an engine makes of a request it says itself (return_token_ids). What the router goes by it shows by sending it to a
prefill engine, see recorder.py.
"""

from __future__ import annotations

import contextlib
import copy
import http.client
import json
import pathlib
import random
import tempfile

import pytest
from bodies import CHAT, COMPLETIONS, Bodies
from harness.engine import Engine
from recorder import Recorder
from service import Conductor, Refused, until

PROMPTS = 1000
TEMPLATE = pathlib.Path(__file__).parent / "chat.jinja"
ARGUMENTS = ("--chat-template", str(TEMPLATE), "--trust-request-chat-template", "--enable-auto-tool-choice", "--tool-call-parser", "hermes")
# What is said with each request, on which no token id depends.
ASKED = {"model": "tiny", "max_tokens": 1, "temperature": 0, "return_token_ids": True}


class Compared:
    """One engine behind the router."""

    def __init__(self, recorder: Recorder, conductor):
        self.recorder, self.conductor, self.rng = recorder, conductor, random.Random(3)
        self._connection = http.client.HTTPConnection("127.0.0.1", conductor.port, timeout=180)

    def tokenize(self, body: bytes) -> list[int]:
        """The engine's own /tokenize of a whole body."""
        status, _, answer = self.recorder.ask("POST", "/tokenize", body)
        assert status == 200, answer
        return json.loads(answer)["tokens"]

    def wait(self) -> None:
        """Until both faces of the engine are in use; on a busy machine the router may miss one for a while."""
        engines = lambda: self.conductor.get("/engines")["engines"]  # noqa: E731
        until(lambda: all(e["in_use"] and e["models"] for e in engines()), lambda: f"{engines()}\n{self.conductor.log()}", limit_s=120)

    def arrivals(self) -> int:
        """How often a face was out: what is remembered is forgotten when it comes back."""
        return sum(e["counts"]["outages"] for e in self.conductor.get("/engines")["engines"])

    def send(self, path: str, text: bytes) -> tuple[list[int], list[int] | None, dict, int]:
        """Sends a request through the router: the engine's token ids, the router's, its decision, questions to /tokenize."""
        while True:
            self.wait()
            before = self.arrivals()
            try:
                sent = self._send(path, text)
            except Refused as fault:
                if fault.status not in (502, 503) or self.arrivals() == before:
                    raise
                continue
            if sent[2].get("tokens_unknown_because", "").startswith("tokenize: ") and self.arrivals() != before:
                continue
            return sent

    def _send(self, path: str, text: bytes) -> tuple[list[int], list[int] | None, dict, int]:
        self.recorder.take()
        self._connection.request("POST", path, text, {"Content-Type": "application/json"})
        response = self._connection.getresponse()
        answer = response.read()
        if response.status != 200:
            raise Refused(response.status, answer.decode(errors="replace"))
        questions, prefills = self.recorder.take()
        said = json.loads(answer)
        engine = said["prompt_token_ids"] if path == CHAT else said["choices"][0]["prompt_token_ids"]
        decision = self.conductor.get(f"/decisions?id={response.headers['X-Mooncake-Decision']}")["decisions"][0]
        return engine, prefills[-1]["prompt"] if prefills else None, decision, len(questions)

    def same(self, path: str, text: bytes) -> tuple[bool, int]:
        """Sends a request; whether the router knew its token ids, and questions to /tokenize. What it knows must be right."""
        engine, router, decision, questions = self.send(path, text)
        where = f"{path} {text[:2000]!r}\n{decision}"
        assert decision["tokens_known"] == (router is not None), where
        if router is None:
            assert decision["tokens_unknown_because"], where
        else:
            assert router == engine, where
        return router is not None, questions


@pytest.fixture(scope="module")
def compared(model):
    with tempfile.TemporaryDirectory(prefix="mcc-") as name, contextlib.ExitStack() as ended:
        directory = pathlib.Path(name)
        engine = ended.enter_context(Engine(model, directory / "engine", arguments=ARGUMENTS)).wait_ready()
        recorder = ended.enter_context(Recorder(engine.port))
        listed = ",".join(f"{role}=http://127.0.0.1:{port};{role}" for role, port in recorder.engines)
        conductor = ended.enter_context(Conductor(directory, ("serve", "--engines", listed, "--tokenize-timeout", "60s")))
        made = Compared(recorder, conductor)
        made.wait()
        yield made


def test_token_ids_are_the_engines_own(compared, record_property):
    """A thousand requests: the router's ids equal those of the engine and of its /tokenize; asked again they are remembered."""
    counts = dict.fromkeys(("known", "unknown", "asked", "equal to /tokenize", "remembered"), 0)
    for body in Bodies(seed=7).draw(PROMPTS):
        text = body.text(compared.rng, **ASKED)
        outages = compared.arrivals()
        known, questions = compared.same(body.path, text)
        counts["known" if known else "unknown"] += 1
        many = isinstance(body.fields.get("prompt"), list)
        assert questions <= (0 if many else 1), text[:2000]
        counts["asked"] += questions
        if not known:
            assert many or "truncate_prompt_tokens" in body.fields, text[:2000]
            continue
        if body.tokenize:
            assert compared.tokenize(text) == compared.send(body.path, text)[1], text[:2000]
            counts["equal to /tokenize"] += 1
        if not many and compared.rng.random() < 0.2:
            again = shuffled(compared.rng, text, {"temperature": 0.5, "seed": compared.rng.randrange(1000), "user": "u", "stop": ["x"], "top_p": 0.9})
            known, questions = compared.same(body.path, again)
            if compared.arrivals() == outages:
                assert (known, questions) == (True, 0), again[:2000]
                counts["remembered"] += 1
    print(json.dumps(counts))
    record_property("counts", counts)
    assert counts["known"] > 0.9 * PROMPTS and counts["unknown"] > 0.02 * PROMPTS
    assert counts["asked"] > 0.7 * PROMPTS and counts["equal to /tokenize"] > 0.6 * PROMPTS and counts["remembered"] > 0.1 * PROMPTS


def shuffled(rng: random.Random, text: bytes, more: dict) -> bytes:
    """The same request with its fields in another order, and with others; each value is written as it was."""
    decoder, at, fields = json.JSONDecoder(), 1, []
    content = text.decode()
    while True:
        at = _blank(content, at)
        begin = at
        _, at = decoder.raw_decode(content, at)
        name = content[begin:at]
        at = _blank(content, _blank(content, at) + 1)  # the colon
        begin = at
        _, at = decoder.raw_decode(content, at)
        fields.append((name, content[begin:at]))
        at = _blank(content, at)
        if content[at] == "}":
            break
        at += 1  # the comma
    fields = [(name, value) for name, value in fields if json.loads(name) not in more]
    fields += [(json.dumps(name), json.dumps(value)) for name, value in more.items()]
    rng.shuffle(fields)
    return ("{" + ", ".join(f"{name}: {value}" for name, value in fields) + "}").encode()


def _blank(text: str, at: int) -> int:
    while text[at] in " \t\r\n":
        at += 1
    return at


# Values of the fields of vLLM's requests, of which each is sent beside those of a request that is remembered. A text says
# why a field is not sent. What a field does to the token ids the engine says.
UNSUPPORTED = "vLLM refuses it with this model, or without more"
BOTH = {
    "model": ["tiny", None], "frequency_penalty": [0.5], "logit_bias": [{"5": 1.0}], "n": [2], "presence_penalty": [0.5], "seed": [5], "stop": [["zz"]],
    "stream": "its answer is another", "stream_options": "only with stream", "temperature": [0.7], "top_p": [0.5], "user": ["u"], "use_beam_search": UNSUPPORTED,
    "top_k": [3], "min_p": [0.1], "repetition_penalty": [1.5], "watermarking": UNSUPPORTED, "length_penalty": [0.5], "stop_token_ids": [[5]],
    "include_stop_str_in_output": [True], "ignore_eos": [True], "min_tokens": [1], "skip_special_tokens": [False], "spaces_between_special_tokens": [False],
    "truncate_prompt_tokens": [1, 5, 3000, -1], "truncation_side": ["left", "right"], "prompt_logprobs": [1], "allowed_token_ids": [[5, 6]], "bad_words": [["zz"]],
    "response_format": [{"type": "json_object"}], "structured_outputs": [{"choice": ["a", "b"]}], "priority": [0], "request_id": ["a-request"], "session_id": ["s"],
    "return_tokens_as_token_ids": [True], "return_token_ids": "it is how the engine's ids are seen", "return_token_offsets": [True], "cache_salt": ["salt"],
    "kv_transfer_params": [{"pin": "soft"}, {"prompt_token_ids": [5, 6, 7]}], "ec_transfer_params": UNSUPPORTED, "vllm_xargs": [{"a": 1}],
    "repetition_detection": UNSUPPORTED, "routed_experts_prompt_start": [0], "logprob_token_ids": UNSUPPORTED, "max_tokens": [2], "stream_interval": [2],
    "add_special_tokens": [True, False], "echo": [True], "thinking_token_budget": UNSUPPORTED, "mm_payload": ["none"], "return_mm_kwargs": [False],
}
FIELDS = {
    COMPLETIONS: BOTH | {
        "prompt": ["another", " a prompt", "a prompt ", "A prompt", ["two", "prompts"], [5, 6, 7], [[5, 6], [7]]], "logprobs": [2], "suffix": UNSUPPORTED,
        "prompt_embeds": UNSUPPORTED, "kv_transfer_params": [{"pin": "soft"}],
    },
    CHAT: BOTH | {
        "messages": [
            [{"role": "user", "content": "another"}], [{"role": "system", "content": "a prompt"}], [{"role": "user", "content": "a prompt", "name": "n"}],
            [{"role": "user", "content": [{"type": "text", "text": "a prompt"}]}], [{"role": "user", "content": "a prompt"}, {"role": "assistant", "content": "a"}],
            [{"role": "user", "content": "a prompt"}, {"role": "assistant", "content": "a", "reasoning": "r"}],
            [{"role": "user", "content": "a prompt"}, {"role": "assistant", "content": "a", "reasoning_content": "r"}],
            [{"role": "user", "content": "a prompt"}, {"role": "assistant", "content": "a", "reasoning_content": "s"}],
            [{"role": "user", "content": "a prompt"}, {"role": "assistant", "content": "a", "reasoning": "r", "reasoning_content": "s"}],
        ],
        "logprobs": [True], "top_logprobs": [0], "max_completion_tokens": [2], "tool_choice": ["none"], "reasoning_effort": ["none", "low", "high"],
        "tools": [[{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}] for name in ("f", "g")],
        "include_reasoning": [False], "parallel_tool_calls": [False], "add_generation_prompt": [True, False],
        "continue_final_message": [False], "documents": [[{"title": "a", "text": "b"}], [{"title": "a", "text": "c"}], []],
        "chat_template": ["{{ messages[0].content }}", "{{ messages[0].content }}."],
        "chat_template_kwargs": [{"enable_thinking": False}, {"enable_thinking": True}, {"tone": "kind"}, {"documents": [{"title": "x", "text": "y"}]}, {"reasoning_effort": "low"}],
        "media_io_kwargs": UNSUPPORTED, "mm_processor_kwargs": UNSUPPORTED, "return_prompt_text": [True],
    },
}
# What fields are sent beside, where that matters.
BESIDE = {"n": ({"temperature": 0.7},), "truncation_side": ({}, {"truncate_prompt_tokens": 1})}
BASES = {COMPLETIONS: {"prompt": "a prompt"}, CHAT: {"messages": [{"role": "user", "content": "a prompt"}]}}


def known_fields(path: str) -> set[str]:
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest

    return set((ChatCompletionRequest if path == CHAT else CompletionRequest).model_fields)


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_no_field_is_overlooked(compared, path):
    """Each field that vLLM's requests have, changed in a request that is remembered: its token ids are still the engine's."""
    assert known_fields(path) <= FIELDS[path].keys(), "fields that this test does not know"
    base = BASES[path] | ASKED
    plain = compared.send(path, json.dumps(base).encode())[0]
    changing, refused = set(), []
    for name, values in FIELDS[path].items():
        if isinstance(values, str) or name not in known_fields(path):
            continue
        for value in values:
            for before in BESIDE.get(name, ({},)):
                text = json.dumps(copy.deepcopy(base) | before | {name: value}).encode()
                try:
                    known, _ = compared.same(path, text)
                    engine = compared.send(path, text)[0]
                except Refused as fault:
                    refused.append((name, value, str(fault)))
                    continue
                if engine != plain:
                    changing.add(name)
    assert not refused, refused
    print(path, sorted(changing))
    expected = {
        COMPLETIONS: {"prompt", "truncate_prompt_tokens", "truncation_side"},
        CHAT: {
            "messages", "tools", "reasoning_effort", "add_generation_prompt", "documents", "chat_template", "chat_template_kwargs", "truncate_prompt_tokens",
            "truncation_side", "kv_transfer_params",
        },
    }
    # Else the test would compare nothing: these fields are known to change token ids.
    assert expected[path] <= changing
