package kv

import "testing"

func TestChooseStoreLayout(t *testing.T) {
	sizes := Parallel{TP: 2, PCP: 1, DCP: 1, PP: 2, KVHeads: 8}
	wish := StoreLayoutWish{Wanted: true, StoreTP: 4, Layout: "LBHNC", Kinds: []SpecKind{FullAttention}}
	const local = "@store_pp:2@store_format:rank_local_tp2_layout_LBHNC"
	for name, test := range map[string]struct {
		change func(*Parallel, *StoreLayoutWish)
		want   StoreLayout
	}{
		"shared":      {func(*Parallel, *StoreLayoutWish) {}, StoreLayout{"@store_tp:4@store_pp:2@store_format:tp_shared_lbhnc", 4, FormatSharedLBHNC}},
		"token-major": {func(_ *Parallel, w *StoreLayoutWish) { w.Layout = "LBNHC" }, StoreLayout{"@store_tp:4@store_pp:2@store_format:tp_shared_lbnhc", 4, FormatSharedLBNHC}},
		"not wanted":  {func(_ *Parallel, w *StoreLayoutWish) { w.Wanted = false }, StoreLayout{}},
		"one head":    {func(p *Parallel, _ *StoreLayoutWish) { p.KVHeads = 1 }, StoreLayout{Namespace: "@store_pp:2@store_format:tp_shared_mqa"}},
		"heads":       {func(p *Parallel, _ *StoreLayoutWish) { p.KVHeads = 6 }, StoreLayout{Namespace: local}},
		"no number":   {func(_ *Parallel, w *StoreLayoutWish) { w.StoreTP = 0 }, StoreLayout{Namespace: local}},
		"fewer":       {func(_ *Parallel, w *StoreLayoutWish) { w.StoreTP = 1 }, StoreLayout{Namespace: local}},
		"odd":         {func(_ *Parallel, w *StoreLayoutWish) { w.StoreTP = 3 }, StoreLayout{Namespace: local}},
		"pcp":         {func(p *Parallel, _ *StoreLayoutWish) { p.PCP = 2 }, StoreLayout{Namespace: local}},
		"dcp":         {func(p *Parallel, _ *StoreLayoutWish) { p.DCP = 2 }, StoreLayout{Namespace: local}},
		"subclass":    {func(_ *Parallel, w *StoreLayoutWish) { w.Kinds = []SpecKind{MLAAttention} }, StoreLayout{Namespace: local}},
		"two groups":  {func(_ *Parallel, w *StoreLayoutWish) { w.Kinds = append(w.Kinds, FullAttention) }, StoreLayout{Namespace: local}},
		"uniform":     {func(_ *Parallel, w *StoreLayoutWish) { w.UniformType = true }, StoreLayout{Namespace: local}},
		"cross":       {func(_ *Parallel, w *StoreLayoutWish) { w.CrossLayerBlocks = true }, StoreLayout{Namespace: local}},
		"layout":      {func(_ *Parallel, w *StoreLayoutWish) { w.Layout = "BLHNC" }, StoreLayout{Namespace: "@store_pp:2@store_format:rank_local_tp2_layout_BLHNC"}},
	} {
		p, w := sizes, wish
		w.Kinds = append([]SpecKind(nil), wish.Kinds...)
		test.change(&p, &w)
		if got := p.ChooseStoreLayout(w); got != test.want {
			t.Errorf("%s: got %+v, want %+v", name, got, test.want)
		}
	}
}
