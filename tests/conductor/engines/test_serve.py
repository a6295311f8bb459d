"""`mooncake-conductor serve` in front of real engines."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from harness.client import Client
from harness.engine import BLOCK, Engine
from harness.prompts import Prompts
from service import until
from traffic import Seen, conversations, run

ENGINES, TALKS, TURNS = 3, 30, 3


def ready(conductor, names) -> None:
    """Engines answer, and all that they have told is known."""

    def so() -> bool:
        engines = {e["name"]: e for e in conductor.get("/engines")["engines"]}
        services = conductor.services()
        return all(engines[name]["up"] and services.get((name, 0), {}).get("state") == "complete" for name in names)

    until(so, lambda: f"{conductor.get('/engines')}\n{conductor.services()}\n{conductor.log()}", limit_s=120)


@pytest.fixture()
def three(cells):
    """Engines of three nodes: each has a store of its own, and few blocks."""
    made = [cells(f"node-{n}", store_bytes="256MiB", blocks=120, arguments=("--max-model-len", "8192")) for n in range(ENGINES)]
    with ThreadPoolExecutor(ENGINES) as pool:
        list(pool.map(lambda cell: cell.start(), made))
    return made


def test_conversations(three, serving, model, record_property):
    """KVCache-centric against round robin in one run, with the same engines: more tokens from caches, sooner first tokens."""
    names = [cell.name for cell in three]
    listed = [(cell.name, cell.engine.port, "") for cell in three]
    seen = {}
    for policy in ("round-robin", "kvcache-centric", "round-robin", "kvcache-centric"):
        for cell in three:
            cell.settle()
            cell.client.reset_prefix_cache(external=True)
        conductor = serving(listed, "--policy", policy, "--tokenize-timeout", "5s")
        ready(conductor, names)
        # Other words every time: nothing is left of the run before.
        talks = conversations(Prompts(model, seed=len(seen) + 100), TALKS, TURNS, seed=1)
        run(Client(conductor.port, "tiny"), talks, at_once=3)
        assert not [failure for talk in talks for failure in talk.failures], conductor.log()
        conductor.stop()
        seen.setdefault(policy, []).append(Seen.of(talks))
    print(json.dumps({policy: [vars(s) for s in all_seen] for policy, all_seen in seen.items()}))
    shares = {policy: [s.cached_share for s in all_seen] for policy, all_seen in seen.items()}
    record_property("shares", shares)
    assert all(s.requests == TALKS * TURNS for all_seen in seen.values() for s in all_seen)
    assert min(shares["kvcache-centric"]) > max(shares["round-robin"])


def test_an_engine_is_killed(three, serving, model):
    """No client sees more than its own request in flight fail; the engine comes back, and what it has is known anew."""
    names = [cell.name for cell in three]
    conductor = serving([(cell.name, cell.engine.port, "") for cell in three], "--tokenize-timeout", "5s")
    ready(conductor, names)
    victim = three[1]
    talks = conversations(Prompts(model, seed=7), TALKS, TURNS, seed=2)

    def before(number: int) -> None:
        if number == TALKS:  # in the middle, with others under way
            victim.crash()

    run(Client(conductor.port, "tiny"), talks, at_once=3, before=before)
    failures = [failure for talk in talks for failure in talk.failures]
    # Three clients: two of them may have been answered by the victim when it died.
    assert len(failures) <= 2, f"{failures}\n{conductor.log()}"
    assert sum(len(talk.answers) for talk in talks) == TALKS * TURNS - len(failures)
    port = victim.engine.port
    _restart(victim, port)
    ready(conductor, names)
    # It is sent to again, and what it computes now is known of it.
    prompt = Prompts(model, seed=8).fresh(3 * BLOCK + 1)
    victim.client.complete(prompt, 1)
    until(
        lambda: conductor.query(model="tiny", block_size=BLOCK, token_ids=prompt)[victim.name]["GPU"] == 3 * BLOCK,
        lambda: f"{conductor.query(model='tiny', block_size=BLOCK, token_ids=prompt)}\n{conductor.log()}",
    )
    answer = Client(conductor.port, "tiny").complete(prompt, 1)
    assert answer.cached_tokens >= 3 * BLOCK - BLOCK
    assert conductor.get("/decisions?limit=1")["decisions"][0]["decode"] == victim.name
    assert conductor.services()[victim.name, 0]["restarts"] >= 1


def _restart(cell, port: int) -> None:
    """The same command at the same port, as a service manager does it."""
    cell.options["port"] = port
    cell.start()


def test_prefill_and_decode_apart(cells, serving, model):
    """The two share a node's store. The decode engine computes one block of a prompt at most, and says what one engine says."""
    prefill = cells("prefill", store_bytes="1GiB").start()
    decode = cells("decode", extra={"runtime_dir": str(prefill.directory)}).start()
    cut = Prompts(model, seed=9)
    prompts = [cut.fresh(n) for n in [300 + 37 * k for k in range(50)]]
    conductor = serving([("prefill", prefill.engine.port, "prefill"), ("decode", decode.engine.port, "decode")], "--pooled", "--tokenize-timeout", "10s")
    conductor.post(
        "/register", endpoint=f"ipc://{prefill.directory}/kv-events.sock", replay_endpoint=f"ipc://{prefill.directory}/kv-events-replay.sock",
        type="Mooncake", modelname="tiny", instance_id="store", block_size=BLOCK, dp_rank=0,
    )
    ready(conductor, ["prefill", "decode"])
    answers = [Client(conductor.port, "tiny").complete(prompt, 8) for prompt in prompts]
    decisions = sorted(conductor.get("/decisions?limit=100")["decisions"], key=lambda d: d["id"])
    computed = [len(prompt) - answer.cached_tokens for prompt, answer in zip(prompts, answers)]
    print(json.dumps({"computed by the decode engine": computed}))
    assert all(d["note"].startswith("stored") for d in decisions), decisions
    assert max(computed) <= BLOCK, [(n, len(p), d) for n, p, d in zip(computed, prompts, decisions) if n > BLOCK]
    with Engine(model, prefill.directory, name="alone") as alone:
        alone.wait_ready()
        for prompt, answer in zip(prompts, answers):
            assert alone.client.complete(prompt, 8).tokens == answer.tokens
