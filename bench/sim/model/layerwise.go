package model

// Layerwise is how a prefill that loads a cached prefix and stores what it
// computed goes layer by layer, in seconds.
type Layerwise struct {
	// Overlapped: while a layer computes, the next one loads and the last stores.
	Overlapped float64 `json:"overlapped_seconds"`
	// Compute is the GPU time alone.
	Compute float64 `json:"compute_seconds"`
	// Serial loads all, computes all, stores all.
	Serial float64 `json:"serial_seconds"`
}

// Layerwise computes a prefill of n tokens, p of them cached, over the link
// between host and GPU.
func (c *Costs) Layerwise(n, p int) Layerwise {
	layers := float64(c.Shape.Layers)
	perToken := float64(c.Shape.KVBytesPerToken()) / c.Hardware.HostBytesPerSecond
	load, store := float64(p)*perToken, float64(n-p)*perToken
	gpu := c.GPU(n, p)
	var loaded, computed, stored float64
	for range c.Shape.Layers {
		loaded += load / layers
		computed = max(computed, loaded) + gpu/layers
		stored = max(stored, computed) + store/layers
	}
	return Layerwise{Overlapped: stored, Compute: gpu, Serial: load + gpu + store}
}

// CPP is the time of a prefill of n tokens, p of them cached, by chunked pipeline
// parallelism: groups of nodes own a share of the layers each, and chunks of the
// prompt go through them one behind the other. Small chunks cost efficiency on
// real GPUs; that is not in here.
//
// REQUIRES: groups > 0, chunkTokens > 0.
func (c *Costs) CPP(n, p, groups, chunkTokens int) float64 {
	free := make([]float64, groups)
	end := 0.0
	for begin := p; begin < n; begin += chunkTokens {
		upTo := min(begin+chunkTokens, n)
		stage := c.GPU(upTo, begin) / float64(groups)
		hop := float64(upTo-begin) * c.Shape.hiddenBytes() / c.Hardware.NICBytesPerSecond
		end = 0
		for g := range free {
			start := free[g]
			if g > 0 {
				start = max(start, end+hop)
			}
			end = start + stage
			free[g] = end
		}
	}
	return end
}
