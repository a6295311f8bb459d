"""A tiny Gemma-3-like checkpoint: two layers in three see a short window, the third sees everything.

vLLM makes three KV-cache groups of it, two with a window and one without, that lie over the same memory. The window is
longer than a block, so that a hit needs two blocks of each group with a window. Why the weights are as they are:
`checkpoint.py`; this family also normalises queries and keys, and what each part of a layer adds.

    python tests/harness/sliding.py DIRECTORY
"""

from __future__ import annotations

import dataclasses
import math
import pathlib
import sys

if __package__:
    from . import checkpoint
else:
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
    from harness import checkpoint


@dataclasses.dataclass(frozen=True)
class Shape:
    """What the checkpoint looks like."""

    layers: int = 6
    full_every: int = 3
    window: int = 192
    hidden: int = 256
    heads: int = 4
    kv_heads: int = 2
    head_size: int = 64
    intermediate: int = 512
    vocabulary: int = 4096
    max_positions: int = 16384
    seed: int = 22
    # Standard deviation of the attention scores before softmax.
    sharpness: float = 3.2
    # Standard deviation of the logits.
    logit_scale: float = 4.0

    def is_full(self, layer: int) -> bool:
        return (layer + 1) % self.full_every == 0


def generate(directory: pathlib.Path, shape: Shape = Shape()) -> pathlib.Path:
    """Writes the checkpoint unless the directory holds this very one already; returns the directory."""
    return checkpoint.build(directory, shape, _config(shape), _tensors, __file__)


def _config(shape: Shape) -> dict:
    kinds = ["full_attention" if shape.is_full(k) else "sliding_attention" for k in range(shape.layers)]
    return {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "layer_types": kinds,
        "sliding_window": shape.window,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_size,
        "query_pre_attn_scalar": shape.head_size,
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": shape.max_positions,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {
            "full_attention": {"rope_theta": 500000.0, "rope_type": "default"},
            "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
        },
        "tie_word_embeddings": False,
        "attention_bias": False,
        "vocab_size": shape.vocabulary,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "torch_dtype": "float32",
    }


def _tensors(shape: Shape) -> dict:
    import torch

    matrix = checkpoint.matrices(shape.seed)

    def norm(size: int, gain: float) -> torch.Tensor:
        """The family's norms multiply by one plus their weight."""
        return torch.full((size,), gain - 1)

    sharp = math.sqrt(shape.sharpness)
    query, kv = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
    tensors = {
        # The model multiplies what it looks up by the root of the hidden size.
        "model.embed_tokens.weight": matrix(shape.vocabulary, shape.hidden, 0.5),
        "model.norm.weight": norm(shape.hidden, 1.0),
        "lm_head.weight": matrix(shape.vocabulary, shape.hidden, shape.logit_scale),
    }
    for layer in range(shape.layers):
        name = f"model.layers.{layer}."
        tensors |= {
            name + "input_layernorm.weight": norm(shape.hidden, 1.0),
            name + "post_attention_layernorm.weight": norm(shape.hidden, 1.2),
            name + "pre_feedforward_layernorm.weight": norm(shape.hidden, 1.0),
            name + "post_feedforward_layernorm.weight": norm(shape.hidden, 0.4),
            name + "self_attn.q_proj.weight": matrix(query, shape.hidden, 1.0),
            name + "self_attn.k_proj.weight": matrix(kv, shape.hidden, 1.0),
            name + "self_attn.v_proj.weight": matrix(kv, shape.hidden, 1.0),
            name + "self_attn.o_proj.weight": matrix(shape.hidden, query, 1.0),
            name + "self_attn.q_norm.weight": norm(shape.head_size, sharp),
            name + "self_attn.k_norm.weight": norm(shape.head_size, sharp),
            name + "mlp.gate_proj.weight": matrix(shape.intermediate, shape.hidden, 1.0),
            name + "mlp.up_proj.weight": matrix(shape.intermediate, shape.hidden, 1.0),
            name + "mlp.down_proj.weight": matrix(shape.hidden, shape.intermediate, 1.0),
        }
    return tensors


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    print(generate(pathlib.Path(sys.argv[1])))
