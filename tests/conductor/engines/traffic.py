"""Conversations of several turns through a router, and what their clients see."""

from __future__ import annotations

import dataclasses
import random
import statistics
import threading
from typing import Callable, Sequence

from harness.client import Client, Completion
from harness.prompts import Prompts


@dataclasses.dataclass
class Conversation:
    """A conversation whose turns each say all that was said before and something more."""

    turns: list[list[int]]
    answers: list[Completion] = dataclasses.field(default_factory=list)
    failures: list[tuple[int, Exception]] = dataclasses.field(default_factory=list)


def conversations(cut: Prompts, count: int, turns: int, seed: int) -> list[Conversation]:
    """A system prompt that some share, and turns of random lengths."""
    rng = random.Random(seed)
    systems = [cut.fresh(2 * 128) for _ in range(max(1, count // 6))]
    made = []
    for _ in range(count):
        said, all_turns = rng.choice(systems) + cut.fresh(rng.randrange(300, 900)), []
        for _ in range(turns):
            all_turns.append(list(said))
            said = said + cut.text(rng.randrange(150, 400))
        made.append(Conversation(all_turns))
    return made


def run(client: Client, talks: Sequence[Conversation], at_once: int, before: Callable[[int], None] = lambda n: None) -> None:
    """Turn by turn: the conversations' first turns, then their second ones; some at a time. before is told each request's number."""
    queue = [(n, talk) for n in range(max(len(t.turns) for t in talks)) for talk in talks if n < len(talk.turns)]
    lock, started = threading.Lock(), [0]
    done = {id(talk): threading.Semaphore(1) for talk in talks}

    def work() -> None:
        while True:
            with lock:
                if not queue:
                    return
                turn, talk = queue.pop(0)
                number = started[0]
                started[0] += 1
            before(number)
            with done[id(talk)]:  # a conversation's turns come one after the other
                try:
                    talk.answers.append(client.stream(talk.turns[turn], 4))
                except Exception as failure:
                    talk.failures.append((number, failure))

    workers = [threading.Thread(target=work) for _ in range(at_once)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


@dataclasses.dataclass
class Seen:
    """What all clients saw together."""

    requests: int
    cached_share: float
    ttft_ms: float

    @staticmethod
    def of(talks: Sequence[Conversation]) -> Seen:
        answers = [answer for talk in talks for answer in talk.answers]
        cached, asked = sum(a.cached_tokens for a in answers), sum(a.prompt_tokens for a in answers)
        return Seen(len(answers), cached / asked, statistics.median(a.ttft_ms for a in answers))
