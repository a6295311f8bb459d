package model

import "time"

// Costs are the fitted constants of one node.
type Costs struct {
	Shape    Shape
	Hardware Hardware
	// LinearSeconds is GPU time a computed token, QuadraticSeconds that of the
	// attention between two tokens.
	LinearSeconds, QuadraticSeconds float64
	// A cached prefix costs LoadSeconds and LoadTokenSeconds a token before the
	// first token comes, while the GPU is free for others.
	LoadSeconds, LoadTokenSeconds float64
	// A decode iteration takes DecodeSeconds, DecodeSequenceSeconds a sequence and
	// DecodeTokenSeconds a token of context.
	DecodeSeconds, DecodeSequenceSeconds, DecodeTokenSeconds float64
	// LinkBytesPerSecond is what a transfer between nodes really reaches.
	LinkBytesPerSecond float64
	// ServiceFactor multiplies all prefill times. 1 is the fit.
	ServiceFactor float64
}

// Seconds a sequence adds to a decode iteration. The paper does not say; the one
// is calibrated to its times between tokens, the other to its share of rejected
// requests.
const (
	LatencySequenceSeconds   = 3.6e-3
	RejectionSequenceSeconds = 2.67e-3
	// ArithmeticSequenceSeconds is what the operations alone would take.
	ArithmeticSequenceSeconds = 0.125e-3
)

// Default are the fitted constants.
func Default() Costs {
	return Costs{
		Shape: LLaMA70B(), Hardware: A800(),
		LinearSeconds: 1.146e-4, QuadraticSeconds: 7.192e-10,
		LoadSeconds: 0.0665, LoadTokenSeconds: 2.48e-6,
		DecodeSeconds: 26.29e-3, DecodeSequenceSeconds: LatencySequenceSeconds, DecodeTokenSeconds: 0.0344e-6,
		LinkBytesPerSecond: 87e9, ServiceFactor: 1,
	}
}

// GPU is the time for which a prompt of n tokens, p of them cached, keeps a node's
// GPUs busy.
func (c *Costs) GPU(n, p int) float64 {
	t, u := float64(n), float64(p)
	return c.ServiceFactor * (c.LinearSeconds*(t-u) + c.QuadraticSeconds*(t*t-u*u))
}

// Latency is the time from the begin of a prefill to its first token.
func (c *Costs) Latency(n, p int) float64 {
	if p == 0 {
		return c.GPU(n, p)
	}
	return c.GPU(n, p) + c.ServiceFactor*(c.LoadSeconds+c.LoadTokenSeconds*float64(p))
}

// Iteration is the time of one decode step of a batch with so many tokens of
// context in all.
func (c *Costs) Iteration(sequences int, contextTokens int64) float64 {
	return c.DecodeSeconds + c.DecodeSequenceSeconds*float64(sequences) + c.DecodeTokenSeconds*float64(contextTokens)
}

// Transfer is the time that the KV cache of so many tokens takes on a free link.
func (c *Costs) Transfer(tokens int) float64 {
	return TransferSeconds(c.Shape, tokens, c.LinkBytesPerSecond)
}

// TransferSeconds is the time that the KV cache of so many tokens takes at a
// bandwidth.
func TransferSeconds(s Shape, tokens int, bytesPerSecond float64) float64 {
	return float64(int64(tokens)*s.KVBytesPerToken()) / bytesPerSecond
}

// MFU is the share of the node's peak that a prefill reaches.
func (c *Costs) MFU(n, p int) float64 {
	return c.Shape.FLOPs(n, p) / (c.GPU(n, p) * c.Hardware.FLOPS)
}

// KVTokens is how many tokens of KV cache fit into a node's GPU memory.
func (c *Costs) KVTokens() int64 {
	return int64(c.Hardware.KVBytes) / c.Shape.KVBytesPerToken()
}

// Duration turns seconds into what clocks count in.
func Duration(seconds float64) time.Duration {
	return time.Duration(seconds*float64(time.Second) + 0.5)
}
