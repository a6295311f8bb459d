package experiment

// What the papers' figures show. Where no number is printed it was read off the
// drawing, to within a hundredth.

// fig14Prefill is S4 Fig. 14: prefill in seconds at 8k, 16k ... 128k tokens, with
// nothing and with 95 % cached.
func fig14Prefill() (none, cached []float64) {
	return []float64{1.002, 2.056, 4.479, 10.587, 27.512}, []float64{.135, .226, .407, .881, 2.328}
}

// fig14Decode is S4 Fig. 14: 128 tokens of decoding in seconds.
func fig14Decode() (none, cached []float64) {
	return []float64{3.394, 3.433, 3.521, 3.659, 3.939}, []float64{3.401, 3.440, 3.523, 3.660, 3.947}
}

// fig8NoCache and fig8Mooncake are S4 Fig. 8: mean prefill GPU time in seconds.
func fig8NoCache() map[string]float64 {
	return map[string]float64{conversation: 1.661, synthetic: 2.022}
}

func fig8Mooncake() map[string]float64 {
	return map[string]float64{conversation: 1.062, synthetic: .733}
}

// fig5 is S4 Fig. 5: mean TTFT in seconds by strategy, conversation trace.
func fig5() map[string]float64 {
	return map[string]float64{"random": 19.65, "load-balancing": 5.27, "cache-aware": 3.58, "kvcache-centric": 3.07}
}

// fig9 is S4 Fig. 9: the share of tokens that one cache of so many tokens has; no values
// for other traces.
func fig9(trace string) (tokens, share []float64) {
	return []float64{1e4, 1e5, 1e6, 2e6, 4e6, 5e6, 8e6, 1e7, 5e7, 1e8}, map[string][]float64{
		conversation: {.0449, .0731, .0866, .1202, .2149, .2471, .2997, .3263, .3983, .4006},
		synthetic:    {.0003, .0117, .1461, .2345, .3805, .4352, .5447, .5886, .6582, .6582},
	}[trace]
}

// fig10Hit and fig10Time are S4 Fig. 10: hit ratios and mean prefill times with
// caches of 3 million tokens a node on ten nodes.
func fig10Hit() (local, global map[string]float64) {
	return map[string]float64{conversation: .169, synthetic: .264}, map[string]float64{conversation: .375, synthetic: .622}
}

func fig10Time() (local, global map[string]float64) {
	return map[string]float64{conversation: 1.379, synthetic: 1.497}, map[string]float64{conversation: 1.051, synthetic: .783}
}

// fig12 is S4 Fig. 12, 4 adapters of 200 Gb/s: seconds for so many gigabytes.
func fig12() (gigabytes, mooncake, tcp, gloo []float64) {
	return []float64{1, 5, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100},
		[]float64{.013, .059, .114, .227, .340, .451, .554, .671, .775, 1.047, .993, 1.103},
		[]float64{.071, .220, .272, .541, .807, 1.082, 1.339, 1.565, 1.857, 2.192, 2.333, 2.686},
		[]float64{.070, .468, .972, 1.729, 2.734, 3.383, 4.207, 5.257}
}

// fig13 is S4 Fig. 13: mean TTFT in seconds by bandwidth, and without transfers.
func fig13() (gbits, ttft []float64, recompute float64) {
	return []float64{24, 40, 80, 100, 160, 320, 400}, []float64{5.094, 2.401, 1.730, 1.596, 1.406, 1.246, 1.252}, 2.618
}

// fig15 is S4 Fig. 15, synthetic trace: TTFT and TBT in seconds and the share of
// effective requests with 5, 6 ... 11 prefill nodes of 16.
func fig15() (ttft, tbt, effective []float64) {
	return []float64{5.738, 1.712, 1.302, 1.190, 1.123, 1.110, 1.137},
		[]float64{.0315, .0318, .0329, .0350, .0382, .0442, .0583},
		[]float64{.777, .972, .991, .990, .992, .984, .861}
}

// fig1 is S4 Fig. 1 and Fig. 7: the share of requests whose time between tokens is
// within 100, 200 and 300 ms.
func fig1(trace, system string) []float64 {
	return map[string][]float64{
		conversation + "/mooncake":      {.966, 1, 1},
		conversation + "/prefill-first": {.161, .388, .627},
		conversation + "/with cache":    {.150, .343, .555},
		conversation + "/chunked":       {.094, .288, .552},
		synthetic + "/mooncake":         {.996, 1, 1},
		synthetic + "/prefill-first":    {.613, .709, .779},
		synthetic + "/with cache":       {.609, .708, .772},
		synthetic + "/chunked":          {.465, .573, .695},
	}[trace+"/"+system]
}

// table2 is S1 Table 2: requests refused at twice the rate, of 23,000.
func table2() map[string]float64 {
	return map[string]float64{"baseline": .182, "early": .164, "prediction": .156}
}
