"""A drafter of the EAGLE kind for the generated Llama checkpoint: one layer on the target's hidden states, random weights.

Its drafts are hardly ever right. What it is for: with it vLLM gives up the last matched block of every hit, and computes
drafts' KV behind the accepted tokens.

    python tests/harness/drafter.py DIRECTORY
"""

from __future__ import annotations

import pathlib
import sys

if __package__:
    from . import checkpoint
else:
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
    from harness import checkpoint


def generate(directory: pathlib.Path, target: checkpoint.Shape = checkpoint.Shape()) -> pathlib.Path:
    """Writes the drafter for targets of that shape unless it is there already; returns the directory."""
    config = checkpoint._config(target) | {"num_hidden_layers": 1}
    return checkpoint.build(directory, target, config, _tensors, __file__)


def _tensors(shape: checkpoint.Shape) -> dict:
    import torch

    matrix = checkpoint.matrices(shape.seed + 1)
    query, kv = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
    return {
        "fc.weight": matrix(shape.hidden, 2 * shape.hidden, 1.0),
        "layers.0.post_attention_layernorm.weight": torch.ones(shape.hidden),
        "layers.0.self_attn.q_proj.weight": matrix(query, shape.hidden, 1.0),
        "layers.0.self_attn.k_proj.weight": matrix(kv, shape.hidden, 1.0),
        "layers.0.self_attn.v_proj.weight": matrix(kv, shape.hidden, 1.0),
        "layers.0.self_attn.o_proj.weight": matrix(shape.hidden, query, 1.0),
        "layers.0.mlp.gate_proj.weight": matrix(shape.intermediate, shape.hidden, 1.0),
        "layers.0.mlp.up_proj.weight": matrix(shape.intermediate, shape.hidden, 1.0),
        "layers.0.mlp.down_proj.weight": matrix(shape.hidden, shape.intermediate, 0.5),
    }


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    print(generate(pathlib.Path(sys.argv[1])))
