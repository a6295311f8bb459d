package compare

import (
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestOptions(t *testing.T) {
	var o Options
	o.SetDefaults()
	if err := o.Validate(); err != nil {
		t.Error(err)
	}
	if o.Prompts*o.Rounds < 60 {
		t.Errorf("%d pairs by default", o.Prompts*o.Rounds)
	}
	bad := Options{
		With: []string{Ours, Ours, "theirs"}, Models: []string{"big"}, Parts: []string{"hot", PartCold}, Tokens: []int{10, 300, 300}, Prompts: -1,
		Rounds: -1, OverlapRounds: -1, Arrivals: 1, Load: 9, OutputTokens: 99, KVGiB: -1, StoreBytes: -1,
	}
	err := bad.Validate()
	if err == nil {
		t.Fatal("nonsense was taken")
	}
	for _, want := range []string{`system "ours" is named twice`, `system "theirs"`, `model "big"`, `part "hot"`, "10 tokens", "300 tokens are named twice", "-1 prompts",
		"-1 rounds", "-1 overlap", "1 arrivals", "load of 9", "99 output", "-1 GiB", "store of -1", "engine alone"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not reported: %v", want, err)
		}
	}
}

func TestClusterOptions(t *testing.T) {
	o := Options{With: []string{Null, InTree, Ours}, Parts: []string{PartWarm}, Cluster: true}
	o.SetDefaults()
	if err := o.Validate(); err != nil {
		t.Error(err)
	}
	o.With, o.Parts = append(o.With, LMCache), append(o.Parts, PartCold)
	if err := o.Validate(); err == nil || !strings.Contains(err.Error(), "other parts") || !strings.Contains(err.Error(), "lmcache has no part") {
		t.Errorf("a cluster with %v of %v: %v", o.Parts, o.With, err)
	}
}

func TestStoreBytes(t *testing.T) {
	o := Options{Tokens: []int{2000, 8000}, Prompts: 3}
	if got := o.storeBytes("kv2k"); got != 512<<20 {
		t.Errorf("kv2k: %d", got)
	}
	// 3 x 8000 x 64 KiB = 1.46 GiB, and half of it again.
	if got := o.storeBytes("kv64k"); got != 2304<<20 {
		t.Errorf("kv64k: %d MiB", got>>20)
	}
	// Four times a prompt of 500 MiB fit, so that a quarter holds one.
	if got := (&Options{Tokens: []int{8000}, Prompts: 1, Cluster: true}).storeBytes("kv64k"); got/4 < 8000*64<<10 {
		t.Errorf("kv64k of a cluster: %d MiB", got>>20)
	}
	o.StoreBytes = 77
	if got := o.storeBytes("kv64k"); got != 77 {
		t.Errorf("asked for 77, got %d", got)
	}
}

func TestPrompts(t *testing.T) {
	first := randomPrompt(generator(1, "warm", 2000), 50)
	if again := randomPrompt(generator(1, "warm", 2000), 50); !reflect.DeepEqual(first, again) {
		t.Error("the same use draws another prompt")
	}
	for name, other := range map[string][]int{
		"seed": randomPrompt(generator(2, "warm", 2000), 50), "use": randomPrompt(generator(1, "cold", 2000), 50),
		"number": randomPrompt(generator(1, "warm", 8000), 50), "order": randomPrompt(generator(1, "warm", 2000, 0), 50),
	} {
		if reflect.DeepEqual(first, other) {
			t.Errorf("another %s draws the same prompt", name)
		}
	}
	if reflect.DeepEqual(generator(1, "x", 1, 2).Uint64(), generator(1, "x", 2, 1).Uint64()) {
		t.Error("numbers may be swapped")
	}
	for _, token := range first {
		if token < firstToken || token >= vocabulary {
			t.Errorf("token %d", token)
		}
	}
}

func TestArrivals(t *testing.T) {
	const n, mean = 4000, time.Second
	offsets := arrivals(generator(1, "x"), n, mean)
	if len(offsets) != n || offsets[0] != 0 {
		t.Fatalf("%d arrivals from %s", len(offsets), offsets[0])
	}
	for i := 1; i < n; i++ {
		if offsets[i] < offsets[i-1] {
			t.Fatalf("arrival %d before the one before it", i)
		}
	}
	if got := offsets[n-1] / (n - 1); got < mean*9/10 || got > mean*11/10 {
		t.Errorf("a mean gap of %s", got)
	}
}
