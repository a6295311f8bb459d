"""Beside other things that vLLM does: another connector, one role only, speculative decoding, what decoding made saved."""

import contextlib
import json
import pathlib
import tomllib

import pytest

from harness import drafter, mooncake
from harness.cell import Cell, whole
from harness.compare import assert_right
from harness.engine import BLOCK, IN_TREE, REPOSITORY
from harness.prompts import block_hashes
from harness.segment import Segment

needs_master = pytest.mark.skipif(mooncake.available() is not None, reason=str(mooncake.available()))


def stored_hashes(cell):
    with Segment(cell.daemons.wait("mooncake-lookupd")) as segment:
        return {c.hash for c in segment.chunks()}


def installed(directory: pathlib.Path) -> pathlib.Path:
    """A directory on the path that has the package's entry points, as an installed wheel would."""
    project = tomllib.loads((REPOSITORY / "pyshim" / "pyproject.toml").read_text())["project"]
    info = directory / f"mooncake_sidecar-{project.get('version', '0')}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project.get('version', '0')}\n")
    lines = []
    for group, points in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {target}" for name, target in points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return directory


def named(config: dict) -> dict:
    """Our connector by its registered name: MultiConnector makes its stats again by that."""
    return {key: value for key, value in config.items() if key != "kv_connector_module_path"}


def family(*children):
    return {
        "kv_connector": "MultiConnector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"connectors": list(children)},
    }


@needs_master
@pytest.mark.parametrize("first", ["ours", "in-tree"])
def test_as_a_child_of_multi_connector(model, cut, reference, noise, tmp_path, first):
    """The first child that has a hit loads, every child saves."""
    prompts = [cut.fresh(n) for n in (500, 1300, 2600)]
    right = reference(prompts)
    with contextlib.ExitStack() as stack:
        master = stack.enter_context(mooncake.Master(tmp_path))
        paths = f"{REPOSITORY / 'pyshim'}:{installed(tmp_path / 'site')}"
        wrap = (lambda c: family(named(c), IN_TREE)) if first == "ours" else (lambda c: family(IN_TREE, named(c)))
        cell = stack.enter_context(
            Cell(model, "family", connector=wrap, environment=master.environment | {"PYTHONPATH": paths})
        ).start()
        for prompt in prompts:
            cell.client.complete(prompt, 1)
        cell.forget()
        expected = {h for p in prompts for h in block_hashes(p)[: whole(p) // BLOCK]}
        assert expected <= stored_hashes(cell), "ours did not save"
        for prompt, want in zip(prompts, right):
            got, tokens = cell.loaded(prompt)
            assert tokens == whole(prompt)
            assert_right([want], [got], noise)
            cell.forget()
        if first == "ours":
            # The other child goes on where ours is emptied: of this engine's namespace, and only with everything.
            cell.client.reset_prefix_cache(external=True)
            assert cell.loaded(prompts[0])[1] == 0
        cell.settle()
        assert "Traceback" not in cell.engine.log(), cell.engine.log_tail()


def test_a_producer_saves_and_a_consumer_loads(cells, cut, reference, noise):
    prompt, other = cut.fresh(2000), cut.fresh(1000)
    (right,) = reference([prompt])
    cell = cells("roles", connector=lambda c: c | {"kv_role": "kv_producer"}).start()
    cell.client.complete(prompt, 1)
    cell.settle()
    assert len(stored_hashes(cell)) == whole(prompt) // BLOCK
    cell.crash()
    cell.connector = lambda c: c | {"kv_role": "kv_consumer"}
    cell.start()
    got, tokens = cell.loaded(prompt)
    assert tokens == whole(prompt)
    assert_right([right], [got], noise)
    cell.client.complete(other, 1)
    cell.settle()
    assert len(stored_hashes(cell)) == whole(prompt) // BLOCK, "a consumer saved"


def drafts(cell):
    """Tokens drafted and accepted by now."""
    metrics = cell.client.metrics()
    return [metrics.value(f"vllm:spec_decode_num_{what}_tokens_total") for what in ("draft", "accepted")]


def test_with_drafts_and_what_is_decoded_saved(cells, cut, reference, noise):
    """Drafts that are rejected leave KV behind the last accepted token; it must not be taken for a block's."""
    drafting = '{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3, "prompt_lookup_min": 1}'
    cell = cells("drafts", extra={"save_decode_cache": True}, arguments=["--speculative-config", drafting]).start()
    prompt = cut.fresh(900)
    (right,) = reference([prompt], 400)
    before = drafts(cell)
    out = cell.client.complete(prompt, 400)
    assert_right([right], [out], noise)
    drafted, accepted = (after - earlier for after, earlier in zip(drafts(cell), before))
    assert 0 < accepted < drafted, "drafts must have been accepted and rejected"
    # The last token's KV was never computed.
    longer = prompt + [int(token.removeprefix("token_id:")) for token in out.tokens]
    decoded = (len(longer) - 1) // BLOCK * BLOCK
    assert decoded > whole(prompt)
    follow = longer + cut.text(50)
    (right,) = reference([follow])
    cell.forget()
    got, tokens = cell.loaded(follow)
    assert tokens == decoded
    assert_right([right], [got], noise)
    cell.forget()
    again, tokens = cell.loaded(follow)
    assert (again.output, tokens) == (got.output, decoded)


def test_with_an_eagle_drafter(cells, cut, reference, noise):
    """Hits are as long as the engine's own, one block less than without; the drafter's KV is stored and loaded with the rest."""
    model = drafter.generate(REPOSITORY / "build" / "checkpoint-drafter")
    drafting = json.dumps({"method": "eagle", "model": str(model), "num_speculative_tokens": 2})
    cell = cells("eagle", arguments=["--speculative-config", drafting]).start()
    hits, (before, _) = set(), drafts(cell)
    for length in (300, 512, 513, 900, 1281, 2500):
        prompt = cut.fresh(length)
        (right,) = reference([prompt])
        cell.client.complete(prompt, 1)
        cell.settle()  # the second asks the store as well
        warm = cell.client.complete(prompt)
        cell.forget()
        got, tokens = cell.loaded(prompt)
        assert tokens == got.cached_tokens == warm.cached_tokens, f"{length} tokens"
        assert got.output == warm.output
        assert_right([right], [got], noise)
        hits.add(tokens)
        cell.forget()
    assert len(hits) > 4
    assert drafts(cell)[0] > before
