"""A tiny Qwen3-Next-like checkpoint: gated delta nets with a recurrent state, and every fourth layer full attention.

Outputs depend on each stretch of the attention's KV cache, for the reasons given in `checkpoint.py`, and on every part of
the recurrent state: its decay is so slow that thousands of tokens stay in it, and its output is as large as the residual
stream. vLLM's CPU kernels for such layers want bfloat16 and heads of 128.

    python tests/harness/recurrent.py DIRECTORY
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

# A block holds either the attention's KV of so many tokens or one recurrent state, and vLLM makes the first as large as the
# second, in whole kernel blocks of 128 tokens.
BLOCK = 384


@dataclasses.dataclass(frozen=True)
class Shape:
    """What the checkpoint looks like."""

    layers: int = 4
    attention_every: int = 4
    hidden: int = 256
    heads: int = 4
    kv_heads: int = 1
    head_size: int = 64
    state_heads: int = 1
    state_head_size: int = 128
    convolution: int = 4
    intermediate: int = 768
    experts: int = 4
    experts_per_token: int = 2
    vocabulary: int = 4096
    max_positions: int = 16384
    seed: int = 21
    # Standard deviation of the attention scores before softmax.
    sharpness: float = 3.2
    # Standard deviation of the logits.
    logit_scale: float = 4.0

    def is_attention(self, layer: int) -> bool:
        return (layer + 1) % self.attention_every == 0


def generate(directory: pathlib.Path, shape: Shape = Shape()) -> pathlib.Path:
    """Writes the checkpoint unless the directory holds this very one already; returns the directory."""
    return checkpoint.build(directory, shape, _config(shape), _tensors, __file__)


def _config(shape: Shape) -> dict:
    return {
        "architectures": ["Qwen3NextForCausalLM"],
        "model_type": "qwen3_next",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "full_attention_interval": shape.attention_every,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_size,
        "linear_conv_kernel_dim": shape.convolution,
        "linear_key_head_dim": shape.state_head_size,
        "linear_value_head_dim": shape.state_head_size,
        "linear_num_key_heads": shape.state_heads,
        "linear_num_value_heads": shape.state_heads,
        "decoder_sparse_step": 1,
        # vLLM's model class wants one layer of experts at least.
        "mlp_only_layers": list(range(1, shape.layers)),
        "num_experts": shape.experts,
        "num_experts_per_tok": shape.experts_per_token,
        "moe_intermediate_size": shape.intermediate // 4,
        "shared_expert_intermediate_size": shape.intermediate // 4,
        "norm_topk_prob": True,
        "hidden_act": "silu",
        "max_position_embeddings": shape.max_positions,
        "rms_norm_eps": 1e-6,
        "rope_theta": 500000.0,
        "partial_rotary_factor": 0.25,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "vocab_size": shape.vocabulary,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "torch_dtype": "bfloat16",
    }


def _tensors(shape: Shape) -> dict:
    import torch

    matrix = checkpoint.matrices(shape.seed)
    # The family's norms multiply by one plus their weight.
    neutral = torch.zeros(shape.hidden)
    sharp = torch.full((shape.head_size,), math.sqrt(shape.sharpness) - 1)
    query = shape.heads * shape.head_size
    kv = shape.kv_heads * shape.head_size
    state = shape.state_heads * shape.state_head_size

    def attention() -> dict:
        return {
            # Each head's query is followed by its output gate.
            "self_attn.q_proj.weight": matrix(2 * query, shape.hidden, 1.0),
            "self_attn.k_proj.weight": matrix(kv, shape.hidden, 1.0),
            "self_attn.v_proj.weight": matrix(kv, shape.hidden, 3.0),
            "self_attn.o_proj.weight": matrix(shape.hidden, query, 3.0),
            "self_attn.q_norm.weight": sharp.clone(),
            "self_attn.k_norm.weight": sharp.clone(),
        }

    def recurrent() -> dict:
        # softplus of the bias times the exponential of A_log is the decay of one token: 1/200 to 1/5000.
        decay = torch.logspace(math.log10(1 / 200), math.log10(1 / 5000), shape.state_heads + 1)[1:]
        return {
            "linear_attn.in_proj_qkvz.weight": matrix(4 * state, shape.hidden, 1.0),
            "linear_attn.in_proj_ba.weight": matrix(2 * shape.state_heads, shape.hidden, 0.5),
            "linear_attn.conv1d.weight": matrix(3 * state, shape.convolution, 1.5).unsqueeze(1),
            "linear_attn.dt_bias": torch.log(torch.expm1(decay)),
            "linear_attn.A_log": torch.zeros(shape.state_heads),
            "linear_attn.norm.weight": torch.ones(shape.state_head_size),
            "linear_attn.out_proj.weight": matrix(shape.hidden, state, 3.0),
        }

    def feed_forward(width: int, prefix: str) -> dict:
        return {
            prefix + "gate_proj.weight": matrix(width, shape.hidden, 1.0),
            prefix + "up_proj.weight": matrix(width, shape.hidden, 1.0),
            prefix + "down_proj.weight": matrix(shape.hidden, width, 0.5),
        }

    tensors = {
        "model.embed_tokens.weight": matrix(shape.vocabulary, shape.hidden, math.sqrt(shape.hidden) * 0.5),
        "model.norm.weight": neutral.clone(),
        "lm_head.weight": matrix(shape.vocabulary, shape.hidden, shape.logit_scale),
    }
    for layer in range(shape.layers):
        parts = attention() if shape.is_attention(layer) else recurrent()
        parts |= {"input_layernorm.weight": neutral.clone(), "post_attention_layernorm.weight": neutral.clone()}
        if layer == 0:
            narrow = shape.intermediate // 4
            parts["mlp.gate.weight"] = matrix(shape.experts, shape.hidden, 1.0)
            parts["mlp.shared_expert_gate.weight"] = matrix(1, shape.hidden, 1.0)
            parts |= feed_forward(narrow, "mlp.shared_expert.")
            for expert in range(shape.experts):
                parts |= feed_forward(narrow, f"mlp.experts.{expert}.")
        else:
            parts |= feed_forward(shape.intermediate, "mlp.")
        tensors |= {f"model.layers.{layer}.{name}": tensor.to(torch.bfloat16) for name, tensor in parts.items()}
    return {name: tensor.to(torch.bfloat16) for name, tensor in tensors.items()}


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    print(generate(pathlib.Path(sys.argv[1])))
