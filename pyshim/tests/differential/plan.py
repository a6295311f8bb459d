"""Random cases and what happens in them."""

from dataclasses import dataclass
from random import Random

from .engine import Engine
from .models import MODELS, Model
from .pair import PENDING


@dataclass(frozen=True)
class Case:
    seed: int
    model: Model
    role: str
    leads_ours: bool
    second_runner: bool
    save_decode: bool
    lookup_async: bool
    ranks: int
    num_blocks: int
    seqs: int
    budget: int
    failures: float
    hits: float
    asynchronous: bool
    """Steps are scheduled before the one before has ended."""


def draw(seed):
    """The case of a seed. Models take turns, so that a run of seeds has all."""
    random = Random(seed)
    model = MODELS[seed % len(MODELS)]
    return Case(
        seed=seed,
        model=model,
        role=random.choice(("kv_both", "kv_both", "kv_producer", "kv_consumer")),
        leads_ours=random.random() < 0.5,
        second_runner=random.random() < 0.5,
        save_decode=random.random() < 0.5,
        lookup_async=random.random() < 0.3,
        ranks=random.choice((1, 1, 2, 3)),
        num_blocks=random.choice((40, 60, 90, 200)),
        seqs=random.choice((2, 4, 8)),
        budget=random.choice((32, 64, 128, 256)),
        failures=random.choice((0.0, 0.15, 0.4)),
        hits=random.choice((0.0, 0.4, 0.8)),
        asynchronous=random.random() < 0.35,
    )


class Story:
    """Runs one case to its end: requests come, go on, are aborted; then the engine comes to rest."""

    def __init__(self, engine: Engine, steps: int):
        self._engine = engine
        self._random = Random(engine.case.seed + 1)
        self._steps = steps
        self._families = [[self._random.randrange(100) for _ in range(400)] for _ in range(3)]
        self._names: list[str] = []

    def run(self):
        engine = self._engine
        for _ in range(self._steps):
            self._events()
            engine.step()
        left = 600
        while engine.scheduler.has_requests():
            self._answers()
            engine.step(calm=True)
            if not engine.scheduler.has_unfinished_requests():
                engine.catch_up()
            left -= 1
            if left == 100 and engine.is_stuck_in_vllm():
                for name in self._names:
                    engine.abort(name)
            assert left, "the engine does not come to rest"
        assert not engine.pair.our_pool.held, "blocks are held though every job is through"
        assert not engine.pair.their_pool.held
        assert engine.used() == 0

    def _events(self):
        random, engine = self._random, self._engine
        if random.random() < 0.35 and len(engine.scheduler.requests) < 12:
            self._add()
        if self._names and random.random() < 0.05:
            engine.abort(random.choice(self._names))
        if self._names and random.random() < 0.2:
            engine.abort_at_checkpoint()
        if random.random() < 0.02:
            engine.reset(running=random.random() < 0.5)
        self._answers()

    def _add(self):
        random = self._random
        family, shared = random.choice(self._families), random.randrange(0, 260)
        new_tokens = random.choice((1, 1, 5, 20, 60))
        most = max(1, min(330, self._engine.capacity - new_tokens))
        tokens = family[:shared] + [random.randrange(100) for _ in range(random.randrange(1, 60))]
        name = f"r{len(self._names)}"
        self._names.append(name)
        self._engine.add(name, tokens[:most], new_tokens)

    def _answers(self):
        """What lookups find in the next step."""
        random, engine = self._random, self._engine
        answers = engine.notes.store.answers
        answers.clear()
        for name, request in engine.scheduler.requests.items():
            longest = (request.num_tokens - 1) // engine.align
            if engine.case.lookup_async and random.random() < 0.3:
                answers[name] = PENDING
            elif longest and random.random() < engine.case.hits:
                hit = random.randint(1, longest) * engine.align
                answers[name] = (hit, [(group, hit) for group in range(engine.groups)])
