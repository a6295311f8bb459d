"""Namespaces that can't collide: each thing that changes KV bytes changes the namespace, and nothing else does."""

import enum
import functools
import logging
import os
import pickle
import shutil
from types import SimpleNamespace

import msgspec
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core import kv_cache_utils
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheTensor,
    SlidingWindowSpec,
)
from vllm.v1.request import Request

from mooncake_sidecar import checkpoint, namespace

BLOCKS = 8


class Engine:
    """What a namespace is built from; a test changes one thing."""

    def __init__(self, **change):
        self.model = {"model": "org/m", "revision": None, "dtype": torch.bfloat16, "quantization": None, "seed": 0,
                      "hf_overrides": {}, "served_model_name": "m", "max_model_len": 4096, "enforce_eager": False}  # fmt: skip
        self.parallel = {"tensor_parallel_size": 1, "pipeline_parallel_size": 1, "prefill_context_parallel_size": 1,
                         "decode_context_parallel_size": 1, "rank": 0, "data_parallel_index": 0}  # fmt: skip
        self.cache = {"prefix_caching_hash_algo": "sha256", "cache_dtype": "auto", "gpu_memory_utilization": 0.9}
        self.spec = {"block_size": 16, "num_kv_heads": 4, "head_size": 8, "dtype": torch.bfloat16}
        self.kv = {"kv_cache_layout": "LBHNC"}
        self.window = None
        self.load_format, self.speculative, self.attention, self.heads = "auto", None, None, 4
        self.prefix, self.blocks, self.store_tp, self.num_blocks = "", (16, 16), 0, BLOCKS
        self.alignment, self.retention = 16, None
        self.load, self.engine_id, self.instance_id = {}, "e1", "1"
        for name, value in change.items():
            current = getattr(self, name)
            setattr(self, name, {**current, **value} if isinstance(current, dict) else value)

    def namespace(self):
        names = ["l.0", "l.1"]
        groups = [KVCacheGroupSpec(names, FullAttentionSpec(**self.spec))]
        if self.window:
            groups.append(KVCacheGroupSpec(names, SlidingWindowSpec(sliding_window=self.window, **self.spec)))
        page = groups[0].kv_cache_spec.page_size_bytes
        place = {"layer_stride": page * self.num_blocks, "block_stride": page}
        tensors = [KVCacheTensor(size=page * self.num_blocks * 2, layers=g.layer_names, **place) for g in groups]
        kv = KVCacheConfig(num_blocks=self.num_blocks, kv_cache_tensors=tensors, kv_cache_groups=groups, **self.kv)
        kv.cache_hit_alignment_tokens, kv.prefix_cache_retention_interval = self.alignment, self.retention
        config = SimpleNamespace(
            parallel_config=SimpleNamespace(**self.parallel),
            cache_config=SimpleNamespace(**self.cache),
            model_config=SimpleNamespace(**self.model, get_total_num_kv_heads=lambda: self.heads),
            load_config=SimpleNamespace(load_format=self.load_format, **self.load),
            kv_transfer_config=SimpleNamespace(engine_id=self.engine_id),
            instance_id=self.instance_id,
            speculative_config=self.speculative and SimpleNamespace(**self.speculative),
            attention_config=self.attention and SimpleNamespace(**self.attention, backend_per_kind={}),
        )
        return msgspec.msgpack.encode(namespace.build(config, kv, self.prefix, self.blocks, self.store_tp).spec)


class Backend(enum.Enum):
    FLASH_ATTN = "flash"


def drafter(**change):
    return {"method": "eagle", "model": "org/draft", "revision": None, "quantization": None,
            "use_eagle_block_drop": lambda: False, **change}  # fmt: skip


APART = {
    "model": {"model": {"model": "other/m"}},
    "revision": {"model": {"revision": "abc"}},
    "model data type": {"model": {"dtype": torch.float16}},
    "quantization": {"model": {"quantization": "fp8"}},
    "overrides": {"model": {"hf_overrides": {"rope_theta": 1e6}}},
    "its architecture": {"model": {"model_class_overrides": {"A": "mine:B"}}},
    "its code": {"model": {"code_revision": "abc"}},
    "code of another repository": {
        "model": {"trust_remote_code": True, "hf_config": SimpleNamespace(auto_map={"AutoModel": "org/code--m.C"})}
    },
    "online quantization": {"model": {"quantization_config": {"linear": "fp8"}}},
    "its configuration": {"model": {"hf_config_path": "org/config"}},
    "how its configuration is read": {"model": {"config_format": "mistral"}},
    "which of its files": {"load_format": "mistral"},
    "what the loader is told": {"load": {"model_loader_extra_config": {"tensorizer_uri": "s3://a"}}},
    "made-up weights": {"load_format": "dummy"},
    "seed of made-up weights": {"load_format": "dummy", "model": {"seed": 1}},
    "cache prefix": {"prefix": "tenant"},
    "KV data type": {"spec": {"dtype": torch.float16}},
    "KV cache dtype": {"cache": {"cache_dtype": "fp8"}},
    "layers left unquantised": {"cache": {"kv_cache_dtype_skip_layers": ["l.0"]}},
    "layout": {"kv": {"kv_cache_layout": "LBNHC"}},
    "attention backend": {"attention": {"backend": SimpleNamespace(name="FLASH_ATTN")}},
    "block": {"spec": {"block_size": 32}, "blocks": (32, 16)},
    "hash block": {"blocks": (16, 8)},
    "hash algorithm": {"cache": {"prefix_caching_hash_algo": "sha256_cbor"}},
    "short hashes": {"cache": {"prefix_caching_hash_algo": "xxhash"}},
    "fine hits": {"alignment": 8, "blocks": (16, 8)},
    "retention": {"retention": 64},
    "heads": {"spec": {"num_kv_heads": 2}, "heads": 2},
    "head size": {"spec": {"head_size": 16}},
    "a group more": {"window": 64},
    "its window": {"window": 128},
    "tp": {"parallel": {"tensor_parallel_size": 2}},
    "pp": {"parallel": {"pipeline_parallel_size": 2}},
    "pcp": {"parallel": {"prefill_context_parallel_size": 2}},
    "dcp": {"parallel": {"tensor_parallel_size": 2, "decode_context_parallel_size": 2}},
    "shared shards": {"store_tp": 2},
    "as many again": {"store_tp": 4},
    "drafter": {"speculative": drafter()},
    "drafter's model": {"speculative": drafter(model="org/draft2")},
    "drafter's revision": {"speculative": drafter(revision="r")},
    "drafter's code": {"speculative": drafter(code_revision="c")},
    "drafter's quantization": {"speculative": drafter(quantization="fp8")},
    "drafter's KV cache": {"speculative": drafter(kv_cache_dtype="fp8")},
    "drafter's attention": {"speculative": drafter(attention_backend=Backend.FLASH_ATTN)},
    "drafter's method": {"speculative": drafter(method="eagle3")},
    "hits without the drafter's block": {"speculative": drafter(use_eagle_block_drop=lambda: True)},
}

ALIKE = {
    "rank": {"parallel": {"rank": 3, "data_parallel_index": 2}},
    "name that is served": {"model": {"served_model_name": "n"}},
    "longest prompt": {"model": {"max_model_len": 128}},
    "compilation": {"model": {"enforce_eager": True}},
    "memory": {"cache": {"gpu_memory_utilization": 0.5}},
    "number of blocks": {"num_blocks": 64},
    "seed of sampling": {"model": {"seed": 7}},
    "drafts without a model": {
        "speculative": {"method": "ngram", "model": "ngram", "use_eagle_block_drop": lambda: False}
    },
}


def test_each_thing_that_changes_bytes_is_a_namespace_of_its_own():
    seen = {Engine().namespace(): "unchanged"}
    for name, change in APART.items():
        made = Engine(**change).namespace()
        assert made not in seen, f"{name} is in one namespace with {seen.get(made)}"
        seen[made] = name


@pytest.mark.parametrize("name", ALIKE)
def test_what_changes_no_bytes_changes_no_namespace(name):
    assert Engine(**ALIKE[name]).namespace() == Engine().namespace()


def test_the_order_of_a_dict_is_nothing():
    one, other = {"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"d": 3, "c": 2}, "a": 1}
    assert Engine(model={"hf_overrides": one}).namespace() == Engine(model={"hf_overrides": other}).namespace()


def overridden(function):
    return Engine(model={"hf_overrides": function}).namespace()


def test_a_function_is_named_by_what_it_does():
    plain, four, eight = Engine().namespace(), overridden(lambda c: {"factor": 4.0}), overridden(lambda c: {"factor": 8.0})
    assert len({plain, four, eight}) == 3
    assert four == overridden(lambda c: {"factor": 4.0}), "of two processes that ran one script"
    scaled = lambda factor, c: {"factor": factor}  # noqa: E731
    assert overridden(functools.partial(scaled, 4.0)) == overridden(functools.partial(scaled, 4.0)) != overridden(
        functools.partial(scaled, 8.0)
    )


class Override:
    def __call__(self, config):
        return config


def test_an_engine_that_can_not_be_named_is_alone(caplog):
    def of(**change):
        return Engine(model={"hf_overrides": Override()}, **change).namespace()

    with caplog.at_level(logging.WARNING):
        made = of()
    assert "shares KV cache with no other" in caplog.text and "test_namespace.Override" in caplog.text
    assert made == of(), "its roles share"
    assert len({made, of(engine_id="e2"), of(instance_id="2"), Engine().namespace()}) == 4
    with pytest.raises(ValueError, match="no name of its own"):
        of(instance_id="")


def touched(path, change):
    """Whether a change of a model's files makes another namespace."""
    before = Engine(model={"model": str(path)}).namespace()
    change()
    return Engine(model={"model": str(path)}).namespace() != before


@pytest.mark.parametrize(
    "name",
    ["model.safetensors", "pytorch_model.bin", "model.pt", "consolidated.00.pth", "m.gguf", "config.json", "params.json",
     "hf_quant_config.json", "model.safetensors.index.json", "modeling_m.py", "parts/attention.py"],
)  # fmt: skip
def test_a_file_that_matters_and_was_replaced(tmp_path, name):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    assert touched(tmp_path, lambda: (tmp_path / name).write_bytes(b"x")), "is new"
    assert touched(tmp_path, lambda: (tmp_path / name).write_bytes(b"xx")), "is longer"
    assert touched(tmp_path, lambda: os.utime(tmp_path / name, ns=(1, 1))), "is of another time"


def test_a_file_that_does_not_matter(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "link.safetensors").symlink_to("nowhere")
    for name in ("notes.txt", ".git/config.json", "checkpoint-500/model.safetensors", "__pycache__/m.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        assert not touched(tmp_path, lambda name=name: (tmp_path / name).write_bytes(b"x")), name


def test_a_model_that_is_one_file(tmp_path):
    model = tmp_path / "m.gguf"
    model.write_bytes(b"x")
    assert touched(model, lambda: model.write_bytes(b"xx"))
    assert not touched(model, lambda: (tmp_path / "n.gguf").write_bytes(b"x"))


def snapshot(cache, name, commit, ref=None):
    place = cache / f"models--{name.replace('/', '--')}"
    (place / "snapshots" / commit).mkdir(parents=True)
    if ref:
        (place / "refs" / ref).parent.mkdir(parents=True, exist_ok=True)
        (place / "refs" / ref).write_text(commit)


@pytest.mark.parametrize("place", ["usual", "download_dir"])
def test_a_name_on_the_hub_is_the_commit_in_the_cache(tmp_path, monkeypatch, place):
    """And no other: what is looked at is on this machine."""
    from huggingface_hub import constants

    usual = tmp_path / "usual"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(usual))
    cache, load = tmp_path / place, {"download_dir": str(tmp_path / place)} if place != "usual" else {}

    def of(revision=None, model="org/m", **change):
        return Engine(load=load, model={"model": model, "revision": revision, **change}).namespace()

    never = of()
    snapshot(cache, "org/m", "c1", "main")
    snapshot(cache, "org/m", "c2", "refs/pr/1")
    first, request, pinned = of(), of("refs/pr/1"), of("c1")
    assert len({never, first, request, pinned}) == 4
    drafts = Engine(load=load, speculative=drafter(model="org/m")).namespace()
    configured, coded = of(model="x", hf_config_path="org/m"), of("c2", code_revision="main")
    quantised = of(model="org/m:Q4_K_M")
    snapshot(cache, "org/m", "c3", "main")
    assert of() not in (first, never), "the hub's cache was updated"
    assert drafts != Engine(load=load, speculative=drafter(model="org/m")).namespace()
    assert configured != of(model="x", hf_config_path="org/m") and coded != of("c2", code_revision="main")
    assert quantised != of(model="org/m:Q4_K_M")
    assert (of("refs/pr/1"), of("c1")) == (request, pinned), "these were not"
    shutil.rmtree(cache / "models--org--m" / "snapshots")
    assert of() == never


def test_a_revision_that_vllm_resolved_is_the_commit_that_was_loaded(tmp_path, monkeypatch):
    """vLLM has it before it loads; the cache's reference may be moved by another engine meanwhile."""
    from huggingface_hub import constants
    from huggingface_hub._revision import ResolvedRevision

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    snapshot(tmp_path, "org/m", "c1", "main")

    def of(revision):
        return Engine(model={"model": "org/m", "revision": revision}).namespace()

    pinned = ResolvedRevision("c1", None, "org/m")
    offline = of(None)
    assert of(pinned) == of(pickle.loads(pickle.dumps(pinned))) == offline
    snapshot(tmp_path, "org/m", "c2", "main")
    assert of(pinned) == offline != of(None)
    assert of(ResolvedRevision("c2", "main", "org/m")) != of(pinned)
    assert type(checkpoint.asked_for(ResolvedRevision("c2", "main"))) is str, "msgspec takes no other"
    assert checkpoint.asked_for(pinned) == ""


def test_code_of_another_repository_is_its_commit(tmp_path, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    change = {"trust_remote_code": True, "hf_config": SimpleNamespace(auto_map={"AutoModel": ["org/code--m.C", None]})}
    snapshot(tmp_path, "org/code", "c1", "main")
    before = Engine(model=change).namespace()
    snapshot(tmp_path, "org/code", "c2", "main")
    assert Engine(model=change).namespace() != before
    assert Engine(model={**change, "trust_remote_code": False}).namespace() == Engine().namespace()


def test_a_directory_with_very_many_files_is_alone(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(checkpoint, "_MAX_ENTRIES", 3)
    for number in range(4):
        (tmp_path / f"{number}.json").touch()
    made = Engine(model={"model": str(tmp_path)}).namespace()
    assert made != Engine(model={"model": str(tmp_path)}, instance_id="2").namespace() and "more than 3 files" in caplog.text


def test_weights_that_are_known_by_name_alone_are_told(caplog):
    Engine(model={"model": "s3://bucket/m"}).namespace()
    assert "known by name and revision alone" in caplog.text
    caplog.clear()
    Engine(load_format="dummy").namespace()
    assert "known by name" not in caplog.text


def first_hash(algorithm="sha256", **change):
    """The hash of a request's first block."""
    hash_fn = get_hash_fn_by_name(algorithm)
    kv_cache_utils.init_none_hash(hash_fn)
    request = Request(
        "r", list(range(32)), SamplingParams(max_tokens=1), None,
        block_hasher=kv_cache_utils.get_request_block_hasher(16, hash_fn), **change,
    )  # fmt: skip
    return bytes(request.block_hashes[0])


def lora(name, path):
    from vllm.lora.request import LoRARequest

    return LoRARequest(name, 1, path)


def test_what_a_request_brings_is_in_the_hash(monkeypatch):
    """Salt, adapter and the hash's seed: no namespace has them, because no two of them have a hash in common."""
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    found = [
        first_hash(),
        first_hash(cache_salt="a"),
        first_hash(cache_salt="b"),
        first_hash(lora_request=lora("a", "/a")),
        first_hash(lora_request=lora("a", "/b")),
        first_hash(lora_request=lora("b", "/a")),
        first_hash("sha256_cbor"),
    ]
    monkeypatch.setenv("PYTHONHASHSEED", "5")
    found.append(first_hash())
    monkeypatch.delenv("PYTHONHASHSEED")
    first_hash()  # the seed is the process'
    assert len(set(found)) == len(found)
