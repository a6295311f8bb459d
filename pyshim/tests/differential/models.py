"""The kinds of KV-cache group that a case runs with."""

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace

import torch
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheTensor,
    MambaSpec,
    SlidingWindowSpec,
)


def _full(block=16):
    return FullAttentionSpec(block_size=block, num_kv_heads=1, head_size=16, dtype=torch.float32)


def _window(block=16, window=40):
    return SlidingWindowSpec(
        block_size=block, num_kv_heads=1, head_size=16, dtype=torch.float32, sliding_window=window
    )


def _recurrent(block=16, drafts=0):
    return MambaSpec(
        block_size=block,
        shapes=((2, 16),),
        dtypes=(torch.float32,),
        mamba_cache_mode="align",
        num_speculative_blocks=drafts,
    )


@dataclass(frozen=True)
class Model:
    """Groups of a model; ``specs`` gets the number of drafted tokens."""

    name: str
    specs: Callable[[int], list]
    unit: int | None = None
    """``prefix_match_unit`` in tokens: with recurrent state, hits end at its multiples."""
    drafts: int = 0
    eagle: bool = False
    eagle_groups: tuple[int, ...] = ()
    recurrent: bool = False

    def kv_config(self, num_blocks: int) -> KVCacheConfig:
        groups, tensors = [], []
        for index, spec in enumerate(self.specs(self.drafts)):
            names = [f"layer.{index}.{i}" for i in range(2)]
            page = 8192  # one size for all, as vLLM pads them to
            tensors.append(
                KVCacheTensor(
                    size=page * num_blocks * 2, layers=names, layer_stride=page * num_blocks, block_stride=page
                )
            )
            groups.append(KVCacheGroupSpec(names, spec, is_eagle_group=index in self.eagle_groups))
        return KVCacheConfig(
            num_blocks=num_blocks, kv_cache_tensors=tensors, kv_cache_groups=groups, kv_cache_layout="LBHNC"
        )

    def speculation(self):
        """A stand-in for vLLM's ``SpeculativeConfig``, which would want a drafter's checkpoint."""
        if not self.drafts:
            return None
        flags = {
            name: lambda: False
            for name in ("use_dspark", "use_dflash", "uses_draft_model", "use_multi_module_mtp", "use_ngram_gpu",
                         "uses_dynamic_speculative_decoding")
        }  # fmt: skip
        return SimpleNamespace(
            **flags,
            num_speculative_tokens=self.drafts,
            num_speculative_tokens_per_batch_size=None,
            max_num_new_slots_for_drafting=0,
            use_eagle=lambda: self.eagle,
            use_eagle_block_drop=lambda: self.eagle,
            method="eagle" if self.eagle else "ngram",
        )


MODELS = [
    Model("full", lambda _: [_full()]),
    Model("full, drafts", lambda _: [_full()], drafts=3),
    Model("full, eagle", lambda _: [_full()], drafts=2, eagle=True, eagle_groups=(0,)),
    Model("full + window", lambda _: [_full(), _window()]),
    Model("full + small window blocks", lambda _: [_full(32), _window(8, 20)], unit=8),
    Model("full + window, eagle", lambda _: [_full(), _window()], drafts=2, eagle=True, eagle_groups=(0,)),
    Model("full + recurrent", lambda d: [_full(), _recurrent(drafts=d)], recurrent=True),
    Model("full + recurrent, fine", lambda d: [_full(), _recurrent(drafts=d)], unit=4, recurrent=True),
    Model("small full + recurrent, fine", lambda d: [_full(4), _recurrent(drafts=d)], recurrent=True),
    Model("full + window + recurrent, fine", lambda d: [_full(), _window(4, 10), _recurrent(drafts=d)], unit=4,
          recurrent=True),
    Model("full + recurrent, fine, eagle", lambda d: [_full(), _full(8), _recurrent(drafts=d)], unit=4, drafts=2,
          eagle=True, eagle_groups=(1,), recurrent=True),
]  # fmt: skip
