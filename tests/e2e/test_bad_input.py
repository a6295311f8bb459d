"""Wrong configuration, an engine whose lookup socket is taken, and daemons that cannot start."""

import time

import pytest

from harness.cell import wait_in_use, whole
from harness.client import PATIENCE_S
from harness.compare import assert_right
from harness.engine import Engine, EngineDied, ours


def test_unknown_key_is_refused_with_the_known_ones(cells):
    cell = cells("wrong-key", extra={"store_byte": "1GiB"})
    with pytest.raises(EngineDied):
        cell.start()
    log = cell.engine.log()
    assert "store_byte" in log
    for known in ("store_bytes", "lookup_timeout_ms", "cache_prefix", "runtime_dir"):
        assert known in log, f"the refusal does not name {known}"


def test_two_engines_that_want_one_socket(shared, cut):
    prompt, second_prompt = cut.fresh(2000), cut.fresh(1500)
    warm = shared.client.complete(prompt)
    shared.settle()
    # The same directory means the same path for vLLM's sockets, and the same daemons.
    with Engine(shared.model, shared.directory, connector=ours(**shared.extra), name="engine-second") as second:
        wait_in_use(second.wait_ready())
        before = second.client.metrics().external_hit_tokens
        got = second.client.complete(prompt)
        assert second.client.metrics().external_hit_tokens - before == whole(prompt), "the second engine is not cached"
        assert got.tokens == warm.tokens
        second.client.complete(second_prompt, 1)
        second.wait_idle()
        log = second.log()
    shared.forget()
    _, tokens = shared.loaded(second_prompt)
    assert tokens == whole(second_prompt), "the first engine does not see what the second stored"
    _, tokens = shared.loaded(prompt)
    assert tokens == whole(prompt), "the first engine's lookups went with the second engine"
    assert "lookup_rpc_port" in log, "the second engine did not say that its lookup socket has another name"


def told(engine):
    """Warnings of ours in the engine's log."""
    return [line for line in engine.log().splitlines() if "WARNING" in line and "mooncake_sidecar" in line or "no such luck" in line]


def test_daemons_that_cannot_start(cells, tmp_path, cut, reference, noise):
    for name in ("mooncake-lookupd", "mooncake-worker"):
        program = tmp_path / name
        program.write_text("#!/bin/sh\necho 'no such luck' >&2\nexit 1\n")
        program.chmod(0o755)
    cell = cells("no-daemons", extra={"binaries_dir": str(tmp_path)}).start(in_use=False)
    prompts = [cut.fresh(1000), cut.fresh(1600)]
    assert_right(reference(prompts), cell.client.complete_many(prompts), noise)
    cell.settle()
    deadline = time.monotonic() + PATIENCE_S
    while not (warnings := told(cell.engine)):  # it tries for some seconds, in which a fast engine has answered
        assert time.monotonic() < deadline, "the engine runs without a cache and nobody was told"
        time.sleep(0.1)
    per_process: dict[str, int] = {}
    for line in warnings:
        process = line.split(")")[0]
        per_process[process] = per_process.get(process, 0) + 1
    assert max(per_process.values()) <= 2, "more than one warning a role:\n" + "\n".join(warnings)
