package model

// Shape is what of a transformer enters the formulas.
type Shape struct {
	Layers int
	// Hidden is the width d of a token's state.
	Hidden int
	// GQA is how many query heads share one key and value head.
	GQA int
	// ElementBytes is the size of a number in the KV cache.
	ElementBytes int
}

// LLaMA70B is the shape of LLaMA2-70B and LLaMA3-70B.
func LLaMA70B() Shape { return Shape{Layers: 80, Hidden: 8192, GQA: 8, ElementBytes: 2} }

// KVBytesPerToken is the size of a token's keys and values in all layers.
func (s Shape) KVBytesPerToken() int64 {
	return int64(2*s.Hidden/s.GQA) * int64(s.Layers*s.ElementBytes)
}

// hop is the bytes of a token's hidden state, which pipeline stages hand on.
func (s Shape) hiddenBytes() float64 { return float64(s.Hidden * s.ElementBytes) }

// PaperFLOPs is Eq. 1 of the paper: the operations of a prompt of n tokens, with
// attention not halved by causality.
func (s Shape) PaperFLOPs(n int) float64 {
	t, d := float64(n), float64(s.Hidden)
	return float64(s.Layers) * (4*t*t*d + 22*t*d*d)
}

// FLOPs are the operations that a prompt of n tokens with p cached ones really
// takes: causal attention, and 22 d^2 for the matrices of a layer.
func (s Shape) FLOPs(n, p int) float64 {
	t, c, d := float64(n), float64(p), float64(s.Hidden)
	return float64(s.Layers) * (22*d*d*(t-c) + 2*(t*t-c*c)*d)
}

// MinLoadBytesPerSecond is Eq. 2 of the paper: the bandwidth above which loading
// a prefix of p tokens is faster than computing it.
func (s Shape) MinLoadBytesPerSecond(hardware Hardware, p int) float64 {
	d := float64(s.Hidden)
	return hardware.FLOPS * 2 * d * float64(s.ElementBytes) / (float64(s.GQA) * (4*float64(p)*d + 22*d*d))
}

// Hardware is a node.
type Hardware struct {
	// FLOPS of all of its GPUs, operations a second.
	FLOPS float64
	// HBMBytesPerSecond is the memory bandwidth of all of its GPUs.
	HBMBytesPerSecond float64
	// HostBytesPerSecond is the bandwidth between its DRAM and its GPUs.
	HostBytesPerSecond float64
	// NICBytesPerSecond is the nominal bandwidth of its network adapters, each way.
	NICBytesPerSecond float64
	// KVBytes is the GPU memory that is left for KV cache.
	KVBytes float64
}

// A800 is a node of eight NVIDIA A800.
func A800() Hardware {
	return Hardware{FLOPS: 8 * 312e12, HBMBytesPerSecond: 16.3e12, HostBytesPerSecond: 128e9, NICBytesPerSecond: 100e9, KVBytes: 435e9}
}

// H800 is a node of eight NVIDIA H800; only what Eq. 2 needs differs.
func H800() Hardware {
	h := A800()
	h.FLOPS = 8 * 989e12
	return h
}
