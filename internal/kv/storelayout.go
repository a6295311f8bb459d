package kv

// StoreLayoutWish is what decides whether engines of different tensor-parallel
// sizes can share shards: the user's wish and what the engine's KV cache is.
type StoreLayoutWish struct {
	// Wanted: the user asked for a TP-shared layout, however many shards.
	Wanted bool
	// StoreTP is the number of shards asked for, 0 where it can't be told.
	StoreTP int
	// Layout is the engine's KV-cache layout, for example "LBHNC".
	Layout string
	// Kinds are the kinds of the store groups.
	Kinds []SpecKind
	// UniformType: the one group packs several specs.
	UniformType bool
	// CrossLayerBlocks: enable_cross_layers_blocks.
	CrossLayerBlocks bool
}

// StoreLayout is the layout that pool keys name.
type StoreLayout struct {
	// Namespace is the PoolKeySpace's StoreNamespace.
	Namespace string
	// StoreTP is the number of shards of a TP-shared layout, 0 for a rank-local
	// one.
	StoreTP int
	// Format is the shards' format of a TP-shared layout.
	Format string
}

// ChooseStoreLayout follows the in-tree connector: shards are shared where one
// plain full-attention group in a layout that keeps a head's bytes together
// divides evenly. Where sharing was asked for and can't be had, the namespace
// keeps such an engine's keys apart.
func (p Parallel) ChooseStoreLayout(w StoreLayoutWish) StoreLayout {
	if !w.Wanted {
		return StoreLayout{}
	}
	format := ""
	switch w.Layout {
	case "LBHNC":
		format = FormatSharedLBHNC
	case "LBNHC":
		format = FormatSharedLBNHC
	}
	divides := w.StoreTP >= p.TP && w.StoreTP > 0 && w.StoreTP%p.TP == 0
	plain := len(w.Kinds) == 1 && w.Kinds[0] == FullAttention && !w.UniformType
	if format != "" && divides && plain && p.PCP == 1 && p.DCP == 1 && !w.CrossLayerBlocks {
		if p.KVHeads%w.StoreTP == 0 {
			return StoreLayout{Namespace: StoreNamespaceShared(w.StoreTP, p.PP, format), StoreTP: w.StoreTP, Format: format}
		}
		if p.KVHeads == 1 {
			return StoreLayout{Namespace: StoreNamespaceMQA(p.PP)}
		}
	}
	return StoreLayout{Namespace: StoreNamespaceRankLocal(p.PP, p.TP, w.Layout)}
}
