"""Keys of the in-tree connector (``compat_keys``): the same bytes as its own worker makes, and what they leave out."""

import importlib.util
import json
import logging
import random
from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

from in_tree_keys import Case, keys_of, worker_of

from mooncake_sidecar import compat, config, weights

GOLDEN = Path(__file__).parents[2] / "testdata" / "golden" / "keys"


def generator():
    spec = importlib.util.spec_from_file_location("generate_keys", GOLDEN / "generate.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def test_the_golden_keys_are_the_installed_workers():
    """And ``internal/kv`` makes the golden ones (``TestGoldenKeys``)."""
    made, every = generator(), json.loads((GOLDEN / "keys.json").read_text())
    seeds = random.sample(range(made.CASES), 12)
    found = made.golden(seeds)
    assert found, seeds
    for case in found:
        assert json.loads(json.dumps(case)) in every, f"seeds {seeds}: {case['Namespace']}"


def test_keys_begin_with_the_key_space():
    for seed in range(1000, 1040):
        case = Case.random(seed)
        try:
            spec = case.geometry().spec
        except ValueError as error:
            assert "compat_keys" in str(error)
            continue
        made = worker_of(case, next(iter(case.ranks())))
        shard = made.token_dbs[0].store_layout.local_shard_ids[0]
        key = made.token_dbs[0].store_layout.key_for(shard, b"\1" * 32)
        assert key.startswith(spec.key_space + "@tp_rank:"), f"seed {seed}: {case.__dict__}"


# What an engine may differ in, by the name that the warning has for it.
FACTORS = {
    "model": [{"model": "other/m"}, {"revision": "abc"}],
    "quantization": [{"quantization": "fp8"}],
    "quantization_config": [{"settings": {"quantization_config": {"linear": "fp8"}}}],
    "hf_overrides": [{"hf_overrides": {"rope_theta": 1e6}}],
    "hf_config_path": [{"settings": {"hf_config_path": "/other"}}],
    "model_weights": [{"settings": {"model_weights": "s3://bucket/m"}}],
    "model_impl": [{"settings": {"model_impl": "transformers"}}],
    "model_class_overrides": [{"settings": {"model_class_overrides": {"A": "x:B"}}}],
    "code_revision": [{"settings": {"code_revision": "abc"}}],
    "code": [{"settings": {"trust_remote_code": True, "hf_config": SimpleNamespace(auto_map={"AutoModel": "a/b--c.D"})}}],
    "config_format": [{"settings": {"config_format": "mistral"}}],
    "load_format": [{"load": {"load_format": "mistral"}}],
    "model_loader_extra_config": [{"load": {"model_loader_extra_config": {"tensorizer_uri": "s3://a"}}}],
    "seed": [{"load": {"load_format": "dummy"}, "settings": {"seed": 1}}],
    "dtype": [{"settings": {"dtype": torch.float16}}],
    "kv_cache_dtype_skip_layers": [{"skip_layers": ["layer.0"]}],
    "drafter": [{"speculative": SimpleNamespace(method="eagle", model="org/draft", use_eagle_block_drop=lambda: False)}],
    "kv_dtype": [{"dtype": torch.float16}],
    "cache_dtype": [{"cache_dtype": "fp8"}],
    "groups": [{"kinds": ["window"]}, {"block": 32}, {"kinds": ["full", "window"]}],
    "speculation": [{"speculative": SimpleNamespace(method="eagle", use_eagle_block_drop=lambda: False)}],
    "backend": [{"attention": SimpleNamespace(backend=SimpleNamespace(name="X"), backend_per_kind={})}],
    "layout": [{"layout": "LBNHC"}],
    "tp": [{"tp": 4}],
    "pp": [{"pp": 2}],
    "pcp": [{"pcp": 2}],
    "dcp": [{"dcp": 2}],
}
BASES = {
    "rank-local": {},
    "shared shards": {"store_tp": 4},
    "one head": {"store_tp": 4, "heads": 1},
    "asked for and not to be had": {"store_tp": 3, "heads": 4},
}


def test_every_setting_is_a_factor():
    case = Case(model="org/m", speculative=SimpleNamespace(method="eagle", use_eagle_block_drop=lambda: False))
    assert set(weights.every_setting(case.config)) <= set(FACTORS)
    for name in weights.every_setting(case.config):
        for change in FACTORS[name]:
            assert name in weights.settings(Case(**{"model": "org/m", **change}).config), name


def first_key(case):
    rank = next(iter(case.ranks()))
    layout = worker_of(case, rank).token_dbs[0].store_layout
    return layout.key_for(layout.local_shard_ids[0], b"\1" * 32)


@pytest.mark.parametrize("base", BASES)
def test_the_warning_names_what_the_keys_leave_out_and_nothing_else(base):
    """Each factor is changed by itself: it is left out if the installed worker makes the same key."""
    given = {"model": "org/m", "tp": 2, **BASES[base]}
    case = Case(**given)
    warned = set(compat.left_out(case.geometry().spec, case.config))
    same = set()
    for factor, changes in FACTORS.items():
        for change in changes:
            other = Case(**{**given, **change})
            if first_key(other) == first_key(case):
                same.add(factor)
    if base in ("shared shards", "one head"):
        same.remove("tp")  # not named, and of no matter: that is what such shards are for
    assert warned == same


def test_the_warning_is_concrete():
    case = Case(model="/models/run-a/m", revision="r1", quantization="fp8", tp=2, kinds=["full", "window"], lora=object())
    text = compat.warning(case.geometry().spec, case.config)
    for said in ("m@tp_rank:", "path /models/run-a/m, revision r1", "quantization fp8", "data type float32", "tensor parallelism 2",
                 "full_attention in blocks of 16; sliding_window of 40 in blocks of 16", "LBHNC/rank_local", "LoRA",
                 "cache_prefix", "PYTHONHASHSEED", "sha256", "model_class_overrides none"):  # fmt: skip
        assert said in text, text
    assert "another geometry" in text, "what lookupd does check"
    drafts = SimpleNamespace(method="eagle", model="org/draft", revision="r2", quantization="fp8", use_eagle_block_drop=lambda: False)
    case = Case(model="org/m", speculative=drafts, settings={"quantization_config": {"linear": "mxfp8"}})
    text = compat.warning(case.geometry().spec, case.config)
    for said in ("drafter method eagle, model org/draft, revision r2, quantization fp8", "quantization_config linear mxfp8"):
        assert said in text, text


def test_engines_of_one_base_name_share_and_others_do_not():
    one = Case(model="/models/run-a/m").geometry().spec
    assert Case(model="org/m", revision="r").geometry().spec == one
    assert Case(model="org/m2").geometry().spec != one
    assert Case(model="/models/run-a/m", prefix="p").geometry().spec != one
    assert Case(model="/models/run-a/m", dtype=torch.float16).geometry().spec != one, "kept apart where it can be"
    plain = Case(model="/models/run-a/m").geometry(compat_keys=False).spec
    assert plain != one and plain.key_space == ""


@pytest.mark.parametrize(
    ("case", "says"),
    [
        (Case(kinds=["window"], store_tp=4), "no keys for such shards"),
        (Case(kinds=["full", "window"], store_tp=4), "no keys for such shards"),
        (Case(prefix="a@b", model="c"), "cache_prefix is 'a@b'"),
        (Case(prefix="a", model="/models/b@c"), "the last part of the model's path is 'b@c'"),
        (Case(pcp=2, dcp=2), "prefill context parallelism of 2 and decode context parallelism of 2"),
    ],
)
def test_what_in_tree_keys_can_not_name_is_refused(case, says):
    with pytest.raises(ValueError, match=f"compat_keys is on.*({says})") as refused:
        case.geometry()
    assert "compat_keys out" in str(refused.value), "it says what to do"
    assert case.geometry(compat_keys=False).spec.key_space == ""


def test_the_setting():
    assert not config.parse({}).compat_keys and config.parse({"compat_keys": "true"}).compat_keys
    config.parse({"compat_keys": True, "enable_cross_layers_blocks": False})
    with pytest.raises(ValueError, match="enable_cross_layers_blocks"):
        config.parse({"compat_keys": True, "enable_cross_layers_blocks": "True"})


def test_the_warning_comes_once_at_the_start(make_engine, caplog):
    with caplog.at_level(logging.WARNING):
        make_engine(compat_keys=True)
    assert sum("compat_keys is on" in record.getMessage() for record in caplog.records) == 1


def test_keys_are_the_ranks_own():
    """A rank is told the same keys by both: its shards' (``keys_of`` asserts it)."""
    geometry, keys = keys_of(Case(tp=2, pp=2, heads=8, store_tp=4), b"\2" * 32)
    assert len(keys[0]) == geometry.spec.groups[0].shards == 8 and len(set(keys[0])) == 8
