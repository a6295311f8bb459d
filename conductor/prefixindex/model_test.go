package prefixindex

import (
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/mooncake-sidecar/sidecar/conductor/kvevents"
)

// model is an index without any of its means: lists that are searched.
type model struct {
	blocks  []*modelBlock
	sources []*modelSource
}

// modelBlock is a block under one hash; content is what it and those before it hold,
// empty when nobody has told.
type modelBlock struct {
	space, content string
	hash           kvevents.Hash
	copies         map[modelCopy]int
}

type modelCopy struct {
	source *modelSource
	group  int
	tier   Tier
}

type modelSource struct {
	origin Origin
	real   *Source
	scheme string // how its engine hashes
	// windows are the groups that are windows, and how many blocks they need.
	windows map[int]int
	// told are the groups that it has told of since it was cleared, and where.
	told map[modelGroup]bool
	open bool
}

// modelGroup is a group in a tier.
type modelGroup struct {
	group int
	tier  Tier
}

// space names what engines have in common that call equal blocks by the same hash.
func (src *modelSource) space() string { return src.origin.LoRA + "|" + src.origin.Salt }

// tells whether a group was told of, wherever.
func (src *modelSource) tells(group int) bool {
	return src.told[modelGroup{group, GPU}] || src.told[modelGroup{group, CPU}] || src.told[modelGroup{group, Disk}]
}

const modelTokens = 2 // a block

// prompt is what a block and those before it are.
type prompt struct {
	lora, engineSalt, salt string
	tokens                 []uint32
}

func (p prompt) upTo(blocks int) prompt { p.tokens = p.tokens[:blocks*modelTokens]; return p }

// content is what must be equal for blocks to be.
func (p prompt) content() string {
	return fmt.Sprint(p.lora, "|", p.engineSalt, "|", p.salt, "|", p.tokens)
}

// hash is an engine's.
func (p prompt) hash(scheme string) kvevents.Hash {
	h := fnv.New64a()
	_, _ = h.Write([]byte(scheme + p.content()))
	return kvevents.Hash(h.Sum64())
}

func (m *model) find(space string, hash kvevents.Hash) *modelBlock {
	for _, b := range m.blocks {
		if b.space == space && b.hash == hash {
			return b
		}
	}
	return nil
}

func (m *model) store(src *modelSource, group int, tier Tier, hash kvevents.Hash, content string) {
	b := m.find(src.space(), hash)
	if b == nil {
		b = &modelBlock{space: src.space(), hash: hash, copies: map[modelCopy]int{}}
		m.blocks = append(m.blocks, b)
	}
	if b.content == "" {
		b.content = content
	}
	b.copies[modelCopy{src, group, tier}]++
}

// prune forgets who holds nothing.
func (m *model) prune(gone func(modelCopy) bool) {
	for _, b := range m.blocks {
		for c, n := range b.copies {
			if n == 0 || gone(c) {
				delete(b.copies, c)
			}
		}
	}
	m.blocks = slices.DeleteFunc(m.blocks, func(b *modelBlock) bool { return len(b.copies) == 0 })
}

// holds tells whether a source's group has a block in a tier.
func (m *model) holds(src *modelSource, group int, tier Tier, content string) bool {
	return slices.ContainsFunc(m.blocks, func(b *modelBlock) bool {
		return b.space == src.space() && b.content == content && b.copies[modelCopy{src, group, tier}] > 0
	})
}

// has tells whether all groups of a source of which a prefix has to be whole have a
// block.
func (m *model) has(src *modelSource, tier Tier, content string) bool {
	some := false
	for told := range src.told {
		if _, isWindow := src.windows[told.group]; told.tier != tier || isWindow {
			continue
		}
		if some = true; !m.holds(src, told.group, tier, content) {
			return false
		}
	}
	return some
}

// windowsAllow tells whether a prefix can end behind some blocks.
func (m *model) windowsAllow(src, store *modelSource, p prompt, blocks int, where ...Tier) bool {
	for group := range 3 {
		need := 0
		for _, one := range []*modelSource{src, store} {
			if one != nil && one.tells(group) {
				need = max(need, one.windows[group])
			}
		}
		for i := max(blocks-need, 0); i < blocks; i++ {
			content := p.upTo(i + 1).content()
			if !slices.ContainsFunc(where, func(tier Tier) bool {
				return m.holds(src, group, tier, content) || tier != GPU && store != nil && m.holds(store, group, tier, content)
			}) {
				return false
			}
		}
	}
	return true
}

// query is Index.Query.
func (m *model) query(p prompt, instance string) []Match {
	total := len(p.tokens) / modelTokens
	var found []Match
	for _, src := range m.sources {
		if !src.open || src.origin.Salt != p.engineSalt || src.origin.LoRA != "" && src.origin.LoRA != p.lora || instance != "" && src.origin.Instance != instance {
			continue
		}
		var store *modelSource
		ranks := 0
		for _, other := range m.sources {
			if other.open && other.origin.Instance == src.origin.Instance && other.space() == src.space() {
				if other.origin.Rank == Shared {
					store = other
				} else {
					ranks++
				}
			}
		}
		if src.origin.Rank == Shared && ranks > 0 {
			continue
		}
		has := func(tier Tier, i int) bool {
			content := p.upTo(i + 1).content()
			return m.has(src, tier, content) || tier != GPU && store != nil && m.has(store, tier, content)
		}
		ways := [tiers]int{}
		match := Match{Instance: src.origin.Instance, Rank: src.origin.Rank}
		for tier := range Tier(tiers) {
			for ways[tier] < total && has(tier, ways[tier]) {
				ways[tier]++
			}
			in := ways[tier]
			for in > 0 && !m.windowsAllow(src, store, p, in, tier) {
				in--
			}
			match.In[tier] = in * modelTokens
		}
		through := [tiers]int{ways[GPU], ways[GPU], ways[GPU]}
		for through[CPU] < total && has(CPU, through[CPU]) {
			through[CPU]++
		}
		for through[Disk] < total && (has(CPU, through[Disk]) || has(Disk, through[Disk])) {
			through[Disk]++
		}
		for tier, where := range [][]Tier{{GPU}, {GPU, CPU}, {GPU, CPU, Disk}} {
			for through[tier] > 0 && !m.windowsAllow(src, store, p, through[tier], where...) {
				through[tier]--
			}
			match.Through[tier] = through[tier] * modelTokens
		}
		if match.In != [tiers]int{} || match.Through != [tiers]int{} {
			found = append(found, match)
		}
	}
	return found
}

func sorted(matches []Match) []Match {
	slices.SortFunc(matches, func(a, b Match) int {
		return strings.Compare(fmt.Sprint(a.Instance, a.Rank), fmt.Sprint(b.Instance, b.Rank))
	})
	return matches
}

// machine makes random events, and tells index and model of them.
type machine struct {
	x *Index
	m model
}

func (c *machine) open(src *modelSource) {
	src.real, src.open = c.x.Open(src.origin), true
	src.told = map[modelGroup]bool{}
}

func drawPrompt(t *rapid.T) prompt {
	p := prompt{lora: rapid.SampledFrom([]string{"", "", "a"}).Draw(t, "lora"), salt: rapid.SampledFrom([]string{"", "", "s"}).Draw(t, "salt")}
	p.tokens = rapid.SliceOfN(rapid.Uint32Range(0, 1), modelTokens, 5*modelTokens+1).Draw(t, "tokens")
	// Two prompts in three begin in the same way, or blocks would seldom meet.
	for i := range min(len(p.tokens), rapid.IntRange(0, 8).Draw(t, "same")) {
		p.tokens[i] = 0
	}
	return p
}

var modelMedia = [tiers]string{kvevents.MediumGPU, "cpu", kvevents.MediumStorage}

// store tells of some blocks of a prompt, as an engine that computed them does.
func (c *machine) store(t *rapid.T) {
	src := rapid.SampledFrom(c.m.sources).Draw(t, "source")
	p := drawPrompt(t)
	if src.origin.LoRA != "" {
		p.lora = "" // it does not say
	}
	last := len(p.tokens) / modelTokens
	first := rapid.IntRange(0, last-1).Draw(t, "first")
	if rapid.Bool().Draw(t, "from the beginning") {
		first = 0
	}
	group := rapid.SampledFrom([]int{0, 0, 0, 1, 2}).Draw(t, "group")
	tier := rapid.SampledFrom([]Tier{GPU, GPU, CPU, Disk}).Draw(t, "tier")
	e := &kvevents.BlockStored{BlockSize: modelTokens, Medium: modelMedia[tier], Group: &group, LoraName: p.lora}
	byHash := src.origin.Rank == Shared || rapid.IntRange(0, 7).Draw(t, "by hash") == 0
	placed := !byHash
	if need, ok := src.windows[group]; ok {
		e.SpecKind, e.Window, placed = "sliding_window", (need-1)*modelTokens+2, false
	}
	if first > 0 {
		parent := p.upTo(first).hash(src.scheme)
		e.Parent = &parent
		b := c.m.find(src.space(), parent)
		placed = placed && b != nil && b.content != ""
	}
	if byHash {
		e.BlockSize, e.Parent = 0, nil
	} else {
		e.TokenIDs = p.tokens[first*modelTokens : last*modelTokens]
		if p.lora != "" || p.salt != "" {
			e.HasExtraKeys, e.ExtraKeys = true, extraKeys(p, first, last)
		}
	}
	src.told[modelGroup{group, tier}] = true
	effective := p
	effective.engineSalt = src.origin.Salt
	if p.lora == "" {
		effective.lora = src.origin.LoRA
	}
	for i := first; i < last; i++ {
		hash := p.upTo(i + 1).hash(src.scheme)
		e.Hashes = append(e.Hashes, hash)
		content := ""
		if placed {
			content = effective.upTo(i + 1).content()
		}
		c.m.store(src, group, tier, hash, content)
	}
	src.real.Apply(&kvevents.Batch{Events: []kvevents.Event{e}})
}

// extraKeys are those of vLLM: the adapter with every block, the salt with the first.
func extraKeys(p prompt, first, last int) []byte {
	out := []byte{0x90 + byte(last-first)}
	for i := first; i < last; i++ {
		var texts []string
		if p.lora != "" {
			texts = append(texts, p.lora)
		}
		if p.salt != "" && i == 0 {
			texts = append(texts, p.salt)
		}
		if len(texts) == 0 {
			out = append(out, 0xc0)
			continue
		}
		out = append(out, 0x90+byte(len(texts)))
		for _, text := range texts {
			out = append(append(out, 0xa0+byte(len(text))), text...)
		}
	}
	return out
}

func (c *machine) remove(t *rapid.T) {
	src := rapid.SampledFrom(c.m.sources).Draw(t, "source")
	group := rapid.SampledFrom([]int{0, 0, 0, 1, 2}).Draw(t, "group")
	tier := rapid.SampledFrom([]Tier{GPU, GPU, CPU, Disk}).Draw(t, "tier")
	e := &kvevents.BlockRemoved{Medium: modelMedia[tier], Group: &group}
	for range rapid.IntRange(1, 4).Draw(t, "blocks") {
		hash := drawPrompt(t).hash(src.scheme)
		if n := len(c.m.blocks); n > 0 && rapid.IntRange(0, 3).Draw(t, "known") > 0 {
			hash = c.m.blocks[rapid.IntRange(0, n-1).Draw(t, "block")].hash
		}
		e.Hashes = append(e.Hashes, hash)
		for _, b := range c.m.blocks {
			if who := (modelCopy{src, group, tier}); b.space == src.space() && b.hash == hash && b.copies[who] > 0 {
				b.copies[who]--
			}
		}
		c.m.prune(func(modelCopy) bool { return false })
	}
	src.real.Apply(&kvevents.Batch{Events: []kvevents.Event{e}})
}

func (c *machine) clear(t *rapid.T) {
	src := rapid.SampledFrom(c.m.sources).Draw(t, "source")
	c.m.prune(func(copy modelCopy) bool { return copy.source == src })
	clear(src.told)
	if rapid.Bool().Draw(t, "by event") {
		src.real.Apply(&kvevents.Batch{Events: []kvevents.Event{&kvevents.AllBlocksCleared{}}})
		return
	}
	src.real.Close()
	c.open(src)
}

func (c *machine) check(t *rapid.T) {
	if err := c.x.check(); err != nil {
		t.Fatal(err)
	}
	p := drawPrompt(t)
	p.engineSalt = rapid.SampledFrom([]string{"", "", "s"}).Draw(t, "engine salt")
	instance := rapid.SampledFrom([]string{"", "", "", "e1", "nobody"}).Draw(t, "instance")
	want := sorted(c.m.query(p, instance))
	q := &Query{Model: "m", LoRA: p.lora, Salt: p.salt, EngineSalt: p.engineSalt, BlockTokens: modelTokens, Tokens: littleEndian(p.tokens), Instance: instance}
	if got := sorted(c.x.Query(q, nil)); !slices.Equal(got, want) {
		t.Fatalf("%+v\n got %+v\nwant %+v", p, got, want)
	}
}

// What is cleared lives on in the index's memory until it is swept, and tells nobody
// what its hash stands for: the model forgets at once, so index and model are compared
// where the sweep is done.
func TestAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := &machine{x: New(Options{Seed: rapid.Uint64().Draw(t, "seed")})}
		for _, origin := range []Origin{
			{Instance: "e1"}, {Instance: "e1", Rank: 1}, {Instance: "e1", Rank: Shared}, {Instance: "e2"}, {Instance: "e3", Salt: "s"},
			{Instance: "e4", Rank: Shared}, {Instance: "e5", LoRA: "a"},
		} {
			origin.Model = "m"
			src := &modelSource{origin: origin, scheme: "sha256", windows: map[int]int{}}
			switch origin.Instance {
			case "e1":
				src.windows[1], src.windows[2] = 1, 2
			case "e2":
				src.scheme = "another"
				src.windows[2] = 2
			case "e3":
				src.windows[1], src.windows[2] = 1, 3
			}
			c.m.sources = append(c.m.sources, src)
			c.open(src)
		}
		t.Repeat(map[string]func(*rapid.T){
			"store": c.store, "store more": c.store, "remove": c.remove,
			"clear": func(t *rapid.T) {
				if rapid.IntRange(0, 4).Draw(t, "really") == 0 {
					c.clear(t)
				}
				for c.x.Sweep(1) {
				}
			},
			"": c.check,
		})
	})
}
