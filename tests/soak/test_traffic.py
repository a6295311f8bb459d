"""Each way in which a request can go wrong is told of."""

import dataclasses
import threading
import types

import pytest
from harness.client import ApiError, Completion
from harness.compare import Noise
from soak.gate import Gate
from soak.pool import LONGEST_OUTPUT, Right
from soak.tally import Tally
from soak.traffic import Traffic

TOKENS = tuple(f"token_id:{k}" for k in range(LONGEST_OUTPUT))
OUTPUT = Completion(
    tokens=TOKENS,
    logprobs=tuple((-0.1, ((token, -0.1), ("token_id:9999", -3.0))) for token in TOKENS),
    text="",
    prompt_tokens=300,
    cached_tokens=256,
    finish_reason="length",
)
RIGHT = Right(tuple(range(300)), OUTPUT)


class Client:
    """Answers one request as told, and ends the traffic with it."""

    def __init__(self, answer):
        self.answer = answer

    def complete(self, prompt, tokens, kv_transfer_params=None):
        self.traffic._over.set()  # `run` waits for it
        answer = self.answer(RIGHT.first(tokens))
        if isinstance(answer, Exception):
            raise answer
        return answer


def moved(output, by):
    first = (output.logprobs[-1][0] + by, output.logprobs[-1][1])
    return dataclasses.replace(output, logprobs=(*output.logprobs[:-1], first))


def other_token(output):
    return dataclasses.replace(output, tokens=("token_id:7777", *output.tokens[1:]))


def run(answer, monkeypatch):
    monkeypatch.setattr("soak.traffic.ABORTED", 0.0)
    tally, client = Tally(), Client(answer)
    client.traffic = Traffic(types.SimpleNamespace(client=client), [RIGHT], Noise(1e-5, 100), 1, 1, tally, Gate())
    client.traffic.start()
    assert client.traffic._over.wait(60), "nothing was asked"
    client.traffic.stop()
    return tally


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (lambda output: output, None),
        (lambda output: moved(output, 2e-5), None),
        (lambda output: moved(output, 1e-3), "moved by"),
        (other_token, "is token_id:7777, not token_id:0"),
        (lambda output: dataclasses.replace(output, tokens=output.tokens[:-1]), "tokens, not"),
        (lambda output: dataclasses.replace(output, finish_reason="abort"), "the reason 'abort'"),
        (lambda output: TimeoutError(), "unfinished after"),
        (lambda output: ApiError(500, "no"), "ended with ApiError"),
        (lambda output: ConnectionResetError(), "ended with ConnectionResetError"),
        (lambda output: KeyError("choices"), "KeyError"),
    ],
)
def test_what_is_told_of_a_request(answer, told, monkeypatch):
    faults = run(answer, monkeypatch).faults
    if told is None:
        assert faults == []
    else:
        assert len(faults) == 1 and told in faults[0], faults


def test_how_far_right_answers_moved_is_told(monkeypatch):
    assert run(lambda output: moved(output, 2e-5), monkeypatch).summary()["moved"] == pytest.approx(2e-5)


def test_a_closed_gate_holds_clients():
    gate = Gate()
    passed = threading.Event()
    with gate.closed():
        waiting = threading.Thread(target=lambda: (gate.wait(), passed.set()))
        waiting.start()
        assert not passed.is_set()
    waiting.join(60)
    assert passed.is_set()
