"""A tiny Llama checkpoint whose outputs depend on every stretch of its KV cache.

Random weights of the usual small scale make attention almost uniform: thousands of tokens are averaged away, and a cache
full of rubbish gives nearly the outputs of a right one. Here the query and key weights are scaled so that each query
attends to some tens of tokens, the values and the output projection so that attention rather than the residual stream
decides, and the vocabulary projection so that the differences reach the log-probabilities. `test_checkpoint.py` measures
that one flipped byte in the cache shows.

    python tests/harness/checkpoint.py DIRECTORY
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import math
import os
import pathlib
import shutil
import sys
import tempfile
from typing import Any, Callable, Mapping

if __package__:
    from . import corpus
else:
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
    from harness import corpus


@dataclasses.dataclass(frozen=True)
class Shape:
    """What the checkpoint looks like. KV per token = 2 (K, V) x layers x kv_heads x head_size x 4 bytes = 4 KiB."""

    layers: int = 4
    hidden: int = 256
    heads: int = 4
    kv_heads: int = 2
    head_size: int = 64
    intermediate: int = 768
    vocabulary: int = 4096
    max_positions: int = 16384
    seed: int = 20
    # Standard deviation of the attention scores before softmax.
    sharpness: float = 3.2
    # Standard deviation of the logits.
    logit_scale: float = 4.0

    @property
    def kv_bytes_per_token(self) -> int:
        return 2 * self.layers * self.kv_heads * self.head_size * 4


def generate(directory: pathlib.Path, shape: Shape = Shape()) -> pathlib.Path:
    """Writes the checkpoint unless the directory holds this very one already; returns the directory."""
    return build(directory, shape, _config(shape), _tensors, __file__)


def build(
    directory: pathlib.Path, shape: Any, config: dict, tensors: Callable[[Any], Mapping[str, Any]], source: str
) -> pathlib.Path:
    """Writes a checkpoint of any family unless the directory holds this very one already; returns the directory.

    Args:
        shape: a dataclass with at least vocabulary and max_positions.
        config: the content of config.json.
        tensors: from the shape to the weights by name; called only when they are to be written.
        source: the file that defines the family; when it changes, the checkpoint is made anew.
    """
    directory = pathlib.Path(directory)
    directory.parent.mkdir(parents=True, exist_ok=True)
    # Without the lock a second process could take away what the first has just begun to use.
    with _locked(directory.parent / f".{directory.name}.lock"):
        mark = directory / ".generated"
        digest = _digest(shape, source)
        if not mark.exists() or mark.read_text() != digest:
            _write(directory, mark.name, digest, shape, config, tensors)
    return directory


@contextlib.contextmanager
def _locked(path: pathlib.Path):
    """One process at a time is within."""
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _write(directory: pathlib.Path, mark: str, digest: str, shape: Any, config: dict, tensors: Callable[[Any], Mapping[str, Any]]) -> None:
    # Built beside and renamed: an interrupted run leaves no half of a checkpoint behind.
    work = pathlib.Path(tempfile.mkdtemp(prefix=directory.name + ".", dir=directory.parent))
    try:
        _write_tokenizer(work, shape)
        _write_json(work / "config.json", config)
        _write_json(work / "generation_config.json", {"bos_token_id": 0, "eos_token_id": 1})
        _write_weights(work, tensors(shape))
        (work / mark).write_text(digest)
        work.chmod(0o755)
        if directory.exists():
            shutil.rmtree(directory)
        os.rename(work, directory)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise


def matrices(seed: int) -> Callable[..., Any]:
    """A function that draws matrices, always the same ones in the same order."""
    import torch

    rng = torch.Generator().manual_seed(seed)

    def matrix(rows: int, columns: int, gain: float) -> torch.Tensor:
        """Maps inputs of unit variance to outputs whose standard deviation is gain."""
        return torch.randn(rows, columns, generator=rng) * (gain / math.sqrt(columns))

    return matrix


def _digest(shape: Any, source: str) -> str:
    sources = b"".join(pathlib.Path(f).read_bytes() for f in dict.fromkeys((__file__, source)))
    described = json.dumps(dataclasses.asdict(shape), sort_keys=True).encode()
    return hashlib.sha256(sources + described + str(len(corpus.text())).encode()).hexdigest()


def _write_tokenizer(directory: pathlib.Path, shape: Any) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=shape.vocabulary,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus.text().splitlines(keepends=True), trainer)
    if tokenizer.get_vocab_size() != shape.vocabulary:
        raise RuntimeError(f"the corpus gave {tokenizer.get_vocab_size()} tokens, not {shape.vocabulary}")
    tokenizer.save(str(directory / "tokenizer.json"))
    _write_json(
        directory / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<s>",
            "eos_token": "</s>",
            "model_max_length": shape.max_positions,
            "clean_up_tokenization_spaces": False,
        },
    )


def _write_weights(directory: pathlib.Path, tensors: Mapping[str, Any]) -> None:
    from safetensors.torch import save_file

    save_file(dict(tensors), str(directory / "model.safetensors"), metadata={"format": "pt"})


def _write_json(path: pathlib.Path, value: dict) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")


def _config(shape: Shape) -> dict:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_size,
        "hidden_act": "silu",
        "max_position_embeddings": shape.max_positions,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "vocab_size": shape.vocabulary,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "torch_dtype": "float32",
    }


def _tensors(shape: Shape) -> dict:
    import torch

    matrix = matrices(shape.seed)
    ones = torch.ones(shape.hidden)
    sharp = math.sqrt(shape.sharpness)
    tensors = {
        "model.embed_tokens.weight": matrix(shape.vocabulary, shape.hidden, math.sqrt(shape.hidden) * 0.5),
        "model.norm.weight": ones.clone(),
        "lm_head.weight": matrix(shape.vocabulary, shape.hidden, shape.logit_scale),
    }
    for layer in range(shape.layers):
        name = f"model.layers.{layer}."
        tensors |= {
            name + "input_layernorm.weight": ones.clone(),
            name + "post_attention_layernorm.weight": ones.clone(),
            name + "self_attn.q_proj.weight": matrix(shape.heads * shape.head_size, shape.hidden, sharp),
            name + "self_attn.k_proj.weight": matrix(shape.kv_heads * shape.head_size, shape.hidden, sharp),
            name + "self_attn.v_proj.weight": matrix(shape.kv_heads * shape.head_size, shape.hidden, 2.0),
            name + "self_attn.o_proj.weight": matrix(shape.hidden, shape.heads * shape.head_size, 2.0),
            name + "mlp.gate_proj.weight": matrix(shape.intermediate, shape.hidden, 1.0),
            name + "mlp.up_proj.weight": matrix(shape.intermediate, shape.hidden, 1.0),
            name + "mlp.down_proj.weight": matrix(shape.hidden, shape.intermediate, 0.5),
        }
    return tensors


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    print(generate(pathlib.Path(sys.argv[1])))
