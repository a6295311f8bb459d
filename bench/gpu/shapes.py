"""KV caches as models and vLLM's layouts make them."""

from dataclasses import dataclass

from mooncake_sidecar import messages as msg


@dataclass(frozen=True)
class Shape:
    """A rank's KV cache."""

    model: str
    layers: int
    token_bytes: int
    """Of a layer, keys and values."""
    tokens: int
    """Of a block."""
    layout: str
    """``layers``: a run each layer (LBHNC, LBNHC); ``heads``: a run each layer and head, of two (LHBNC);
    ``blocks``: a block in one piece (BLHNC, BLNHC); ``shards``: two shards, each a layer's half (LBHNC shared between
    tensor-parallel sizes); ``tokens``: two shards, cut within each token (LBNHC shared so)."""

    @property
    def name(self) -> str:
        return f"{self.model}, {self.tokens} tokens, {self.layout}"

    @property
    def page(self) -> int:
        """Bytes of a layer's part of a block."""
        return self.token_bytes * self.tokens

    @property
    def block(self) -> int:
        """Bytes of a block."""
        return self.layers * self.page

    @property
    def held(self) -> int:
        """Shards that the rank holds of a block."""
        return 2 if self.layout in ("shards", "tokens") else 1

    @property
    def piece(self) -> int:
        """Bytes that lie together."""
        half = self.page // 2
        return {
            "layers": self.page, "heads": half, "blocks": self.block, "shards": half, "tokens": self.token_bytes // 2
        }[self.layout]  # fmt: skip

    def segments(self, blocks: int) -> list[msg.KVSegment]:
        """The pieces of each shard, as the shim registers them."""
        if self.layout == "blocks":
            return [msg.KVSegment(0, 0, 0, self.block, self.block)]
        starts = [layer * blocks * self.page for layer in range(self.layers)]
        if self.layout == "layers":
            return [msg.KVSegment(0, 0, start, self.page, self.page) for start in starts]
        if self.layout == "heads":
            starts = [run * blocks * self.piece for run in range(2 * self.layers)]
            return [msg.KVSegment(0, 0, start, self.piece, self.piece) for start in starts]
        if self.layout == "shards":
            return [
                msg.KVSegment(0, 0, start + shard * self.piece, self.page, self.piece, shard)
                for shard in range(2)
                for start in starts
            ]
        return [
            msg.KVSegment(0, 0, start + token * self.token_bytes + shard * self.piece, self.page, self.piece, shard)
            for shard in range(2)
            for start in starts
            for token in range(self.tokens)
        ]

    def view(self, cache, blocks: int):
        """The cache's bytes with the block's number in front."""
        if self.layout == "blocks":
            return cache.view(blocks, self.block)
        if self.layout == "heads":
            return cache.view(2 * self.layers, blocks, self.piece).transpose(0, 1)
        return cache.view(self.layers, blocks, self.page).transpose(0, 1)


def all_shapes() -> list[Shape]:
    """Llama 3 70B at TP 8, and DeepSeek-V3's latent cache."""
    return [
        Shape(model, layers, token_bytes, tokens, layout)
        for model, layers, token_bytes in (("Llama-70B TP8", 80, 512), ("DeepSeek-V3", 61, 1152))
        for tokens in (16, 64)
        for layout in ("layers", "heads", "blocks", "shards", "tokens")
        if layout in ("layers", "blocks") or model.startswith("Llama")
    ]
