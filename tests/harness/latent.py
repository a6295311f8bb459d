"""A tiny DeepSeek-V2-like checkpoint: multi-head latent attention, whose cache holds one compressed vector a token.

vLLM's reference kernel for CPUs wants a latent of 512 and a rotary part of 64, and blocks of 16 tokens. With that kernel
vLLM turns its own prefix cache and chunked prefill off; a connector still loads. Why the weights are as they are:
`checkpoint.py`.

    python tests/harness/latent.py DIRECTORY
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

BLOCK = 16


@dataclasses.dataclass(frozen=True)
class Shape:
    """What the checkpoint looks like."""

    layers: int = 3
    hidden: int = 256
    heads: int = 4
    query_rank: int = 128
    latent: int = 512
    rotary: int = 64
    head_size: int = 64
    intermediate: int = 512
    vocabulary: int = 4096
    max_positions: int = 16384
    seed: int = 23
    # Standard deviation of the attention scores before softmax.
    sharpness: float = 3.2
    # Standard deviation of the logits.
    logit_scale: float = 4.0


def generate(directory: pathlib.Path, shape: Shape = Shape()) -> pathlib.Path:
    """Writes the checkpoint unless the directory holds this very one already; returns the directory."""
    return checkpoint.build(directory, shape, _config(shape), _tensors, __file__)


def _config(shape: Shape) -> dict:
    return {
        "architectures": ["DeepseekV2ForCausalLM"],
        "model_type": "deepseek_v2",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.heads,
        "q_lora_rank": shape.query_rank,
        "kv_lora_rank": shape.latent,
        "qk_rope_head_dim": shape.rotary,
        "qk_nope_head_dim": shape.head_size,
        "v_head_dim": shape.head_size,
        # Dense throughout; the numbers of experts must be there all the same.
        "first_k_dense_replace": shape.layers,
        "n_routed_experts": 2,
        "n_shared_experts": 1,
        "num_experts_per_tok": 1,
        "n_group": 1,
        "topk_group": 1,
        "moe_intermediate_size": shape.intermediate,
        "hidden_act": "silu",
        "max_position_embeddings": shape.max_positions,
        "rms_norm_eps": 1e-6,
        # DeepSeek's own kind of rotary embedding. vLLM 0.32 has that one in plain torch; its CPU kernel for the default kind
        # turns the rotary part by other positions in every request of a batch but the first.
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "original_max_position_embeddings": shape.max_positions // 4,
            "beta_fast": 32,
            "beta_slow": 1,
            "mscale": 0.707,
            "mscale_all_dim": 0.707,
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
    sharp = math.sqrt(shape.sharpness)

    def latent_out() -> torch.Tensor:
        """From the latent to each head's key, then its value."""
        heads = [(matrix(shape.head_size, shape.latent, sharp), matrix(shape.head_size, shape.latent, 2.0)) for _ in range(shape.heads)]
        return torch.cat([part for head in heads for part in head])

    tensors = {
        "model.embed_tokens.weight": matrix(shape.vocabulary, shape.hidden, math.sqrt(shape.hidden) * 0.5),
        "model.norm.weight": torch.ones(shape.hidden),
        "lm_head.weight": matrix(shape.vocabulary, shape.hidden, shape.logit_scale),
    }
    for layer in range(shape.layers):
        name = f"model.layers.{layer}."
        tensors |= {
            name + "input_layernorm.weight": torch.ones(shape.hidden),
            name + "post_attention_layernorm.weight": torch.ones(shape.hidden),
            name + "self_attn.q_a_proj.weight": matrix(shape.query_rank, shape.hidden, 1.0),
            name + "self_attn.q_a_layernorm.weight": torch.ones(shape.query_rank),
            name + "self_attn.q_b_proj.weight": matrix(shape.heads * (shape.head_size + shape.rotary), shape.query_rank, sharp),
            # The first rows make the latent, which is normalised; the last the rotary part, which is not.
            name + "self_attn.kv_a_proj_with_mqa.weight": matrix(shape.latent + shape.rotary, shape.hidden, sharp),
            name + "self_attn.kv_a_layernorm.weight": torch.ones(shape.latent),
            name + "self_attn.kv_b_proj.weight": latent_out(),
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
