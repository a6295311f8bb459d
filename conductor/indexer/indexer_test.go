package indexer

import (
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/vmihailenco/msgpack/v5"
	"go.uber.org/goleak"

	"github.com/mooncake-sidecar/sidecar/conductor/contract"
	"github.com/mooncake-sidecar/sidecar/conductor/kvevents"
	"github.com/mooncake-sidecar/sidecar/conductor/prefixindex"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// An engine over real sockets: what it told before it was registered, what it tells, what is
// lost, its end, another one in its place, and that it is unregistered.
func TestEngine(t *testing.T) {
	for name, free := range map[string]func(*testing.T) endpoints{"ipc": ipcEndpoints, "tcp": tcpEndpoints} {
		t.Run(name, func(t *testing.T) {
			at := free(t)
			transport := newTransport(t)
			x := newIndexer(t, options(transport))
			e := newEngine(t, transport, at)
			e.lose(stored(1, 2, 3))
			register(t, x, serviceAt(at, "a", 0))
			expect(t, x, ask(1, 2, 3, 4), row{"a", 0, 6, 6, contract.Complete, false})
			// Nobody says when a subscription is in force: what comes before it shows as a gap.
			e.lose(removed(3))
			eventually(t, x, func() bool {
				e.tell(stored(1))
				return x.Services()[0].Next > 2
			})
			expect(t, x, ask(1, 2, 3, 4), row{"a", 0, 4, 4, contract.Complete, false})
			if asked := e.replayed(); asked[0] != 0 {
				t.Errorf("asked %v", asked)
			}
			e.close()
			expect(t, x, ask(1, 2, 3), row{"a", 0, 4, 4, contract.Silent, false})
			another := newEngine(t, transport, at)
			another.lose(stored(1))
			expect(t, x, ask(1, 2, 3), row{"a", 0, 2, 2, contract.Complete, false})
			if s := x.Stats(); s.Blocks != 1 || s.Bytes == 0 || s.Queries == 0 || s.TokensAsked < s.TokensMatched || s.TokensMatched == 0 {
				t.Errorf("%+v", s)
			}
			if err := x.Unregister(t.Context(), contract.ServiceKey{Instance: "a"}); err != nil {
				t.Fatal(err)
			}
			expect(t, x, ask(1, 2, 3))
			if s := x.Stats(); s.Blocks != 0 || s.Bytes != 0 {
				t.Errorf("%+v", s)
			}
			if err := x.Unregister(t.Context(), contract.ServiceKey{Instance: "a"}); !errors.Is(err, contract.ErrNotFound) {
				t.Error(err)
			}
		})
	}
}

// Registrations: the same again, another one of the key, what can't be, and engines whose
// ports meet.
func TestRegister(t *testing.T) {
	x := newIndexer(t, options(newTransport(t)))
	first := serviceAt(endpoints{"tcp://127.0.0.1:5557", "tcp://127.0.0.1:5558"}, "a", 0)
	if made := register(t, x, first); made.Existed || len(made.Warnings) > 0 {
		t.Errorf("%+v", made)
	}
	if made := register(t, x, first); !made.Existed {
		t.Errorf("%+v", made)
	}
	other := first
	other.Endpoint = "tcp://127.0.0.1:6557"
	if _, err := x.Register(t.Context(), other); !errors.Is(err, contract.ErrConflict) {
		t.Error(err)
	}
	other.Endpoint = "tcp://*:6557"
	if _, err := x.Register(t.Context(), other); !errors.Is(err, contract.ErrInvalid) {
		t.Error(err)
	}
	// vLLM adds the rank to both ports.
	made := register(t, x, serviceAt(endpoints{"tcp://127.0.0.1:5558", "tcp://127.0.0.1:5559"}, "a", 1))
	if len(made.Warnings) != 1 || !strings.Contains(made.Warnings[0], "5558") {
		t.Errorf("%q", made.Warnings)
	}
	services := x.Services()
	if len(services) != 2 || services[0].Rank != 0 || services[0].Tenant != "default" || !slices.ContainsFunc(services[0].Warnings, func(w string) bool { return strings.Contains(w, "a|default|1") }) {
		t.Errorf("%+v", services)
	}
	if why := x.Unready(); why != nil {
		t.Errorf("%q", why)
	}
	static := serviceAt(endpoints{"tcp://127.0.0.1:7557", ""}, "s", 0)
	if _, err := x.RegisterAs(t.Context(), contract.Configured, static); err != nil || x.Services()[2].Ways != contract.Configured || len(x.Unready()) != 1 {
		t.Errorf("%v, %q", err, x.Unready())
	}
	x.Close()
	if _, err := x.Register(t.Context(), other); err == nil {
		t.Error("a closed indexer follows another one")
	}
}

// What each query may see: tenants, models, adapters, salts of requests and of engines,
// sizes of blocks.
func TestWhoIsAsked(t *testing.T) {
	transport := newTransport(t)
	x := newIndexer(t, options(transport))
	tell := func(s contract.Service, events ...kvevents.Event) {
		at := ipcEndpoints(t)
		s.Endpoint, s.ReplayEndpoint = at.events, at.replay
		newEngine(t, transport, at).lose(events...)
		register(t, x, s)
	}
	salted := stored(5)
	salted.HasExtraKeys, salted.ExtraKeys = true, []byte("\x91\x91\xa2t1")
	adapted := stored(6)
	id := int64(1)
	adapted.LoraID, adapted.LoraName, adapted.HasExtraKeys, adapted.ExtraKeys = &id, "l", true, []byte("\x91\x91\xa1l")
	plain := serviceAt(endpoints{}, "plain", 0)
	tell(plain, stored(1, 2), salted, adapted)
	second := serviceAt(endpoints{}, "plain", 1)
	tell(second, stored(1))
	quantised := serviceAt(endpoints{}, "fp8", 0)
	quantised.AdditionalSalt = "t1"
	tell(quantised, stored(1, 2, 3))
	otherModel := serviceAt(endpoints{}, "other", 0)
	otherModel.Model = "m2"
	tell(otherModel, stored(1))
	tenant := serviceAt(endpoints{}, "theirs", 0)
	tenant.Tenant = "t"
	tell(tenant, stored(1))
	rows := func(plain0, plain1, fp8 int) []row {
		return []row{
			{"fp8", 0, fp8, fp8, contract.Complete, false}, {"other", 0, 0, 0, contract.Complete, true},
			{"plain", 0, plain0, plain0, contract.Complete, false}, {"plain", 1, plain1, plain1, contract.Complete, false},
		}
	}
	with := func(change func(*contract.Query), blocks ...uint32) *contract.Query {
		q := ask(blocks...)
		change(q)
		return q
	}
	salt := func(q *contract.Query) { q.CacheSalt = "t1" }
	expect(t, x, ask(1, 2, 3), rows(4, 2, 0)...)
	expect(t, x, with(salt, 5), rows(2, 0, 0)...)
	expect(t, x, ask(5), rows(0, 0, 0)...)
	expect(t, x, with(salt, 1, 2, 3), rows(0, 0, 6)...)
	expect(t, x, with(func(q *contract.Query) { q.AdditionalSalt, q.HasAdditionalSalt = "t1", true }, 1, 2), rows(0, 0, 4)...)
	expect(t, x, with(func(q *contract.Query) { q.CacheSalt, q.HasAdditionalSalt = "t1", true }, 1, 2), rows(0, 0, 0)...)
	expect(t, x, with(func(q *contract.Query) { q.LoRA = "l" }, 6), rows(2, 0, 0)...)
	expect(t, x, ask(6), rows(0, 0, 0)...)
	expect(t, x, with(func(q *contract.Query) { q.Tenant = "t" }, 1), row{"theirs", 0, 2, 2, contract.Complete, false})
	expect(t, x, with(func(q *contract.Query) { q.Tenant = "nobody" }, 1))
	expect(t, x, with(func(q *contract.Query) { q.Instance = "plain" }, 1, 2), rows(4, 2, 0)[2:]...)
	expect(t, x, with(func(q *contract.Query) { q.Instance = "nobody" }, 1))
	expect(t, x, with(func(q *contract.Query) { q.BlockTokens = 0 }, 1, 2), rows(4, 2, 0)...)
	expect(t, x, with(func(q *contract.Query) { q.Tokens, q.Hashes = nil, []kvevents.Hash{1, 2} }), rows(4, 2, 0)...)
	foreign := rows(0, 0, 0)
	for i := range foreign {
		foreign[i].Foreign = true
	}
	expect(t, x, with(func(q *contract.Query) { q.BlockTokens = 16 }, 1, 2), foreign...)
	view := x.View(3)
	if len(view.Contexts) != 4 || len(view.Hashes) != 3 || !view.Truncated || x.View(100).Truncated || len(x.View(100).Hashes) != 9 {
		t.Errorf("%+v, %d hashes", view, len(x.View(100).Hashes))
	}
}

// master publishes as mooncake_master does: maps with names of its own, numbers of seven
// words, no replays.
func master(t *testing.T, publisher interface{ Send(...[]byte) error }, seq uint64, kind string, hashes ...uint64) {
	t.Helper()
	var events []map[string]any
	for _, hash := range hashes {
		events = append(events, map[string]any{
			"event_id": seq, "timestamp": uint64(1_700_000_000_000), "event_type": kind, "type": kind, "model_name": nil, "block_size": nil, "additional_salt": nil,
			"lora_name": nil, "tenant_id": "default", "backend_id": "b", "group_id": "", "medium": "cpu", "dp_rank": nil, "object_key": "k",
			"seq_hashes": []uint64{hash}, "block_hashes": []int64{int64(hash)}, "base_block_idx": 0, "parent_hash": nil, "token_ids": nil,
		})
	}
	payload, err := msgpack.Marshal([]any{uint64(1_700_000_000_000), events, 0})
	if err != nil {
		t.Fatal(err)
	}
	if err := publisher.Send(nil, binary.BigEndian.AppendUint64(nil, seq), payload); err != nil {
		t.Fatal(err)
	}
}

// A cluster's store counts with every engine, by the hashes that the engines have told of;
// that of a node with the ranks of its instance.
func TestStores(t *testing.T) {
	transport := newTransport(t)
	x := newIndexer(t, options(transport))
	at := ipcEndpoints(t)
	cluster, err := transport.Publish(at.events, 1000)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cluster.Close() }()
	store := serviceAt(endpoints{at.events, ""}, "mooncake", 0)
	store.Type = contract.TypeMooncake
	register(t, x, store)
	seq := uint64(0)
	eventually(t, x, func() bool { // until the subscription is in force
		master(t, cluster, seq, "stored", 1, 2)
		seq++
		return x.Services()[0].Batches > 0
	})
	node := ipcEndpoints(t)
	inCPU := &kvevents.BlockStored{Hashes: []kvevents.Hash{1, 2, 3}, Medium: "CPU"}
	lookupd := newEngine(t, transport, node)
	lookupd.topic = "kv@h@m"
	lookupd.lose(&kvevents.AllBlocksCleared{}, inCPU)
	lookupd.lose()
	own := serviceAt(node, "b", prefixindex.Shared)
	own.Type = contract.TypeMooncake
	register(t, x, own)
	eventually(t, x, func() bool { return x.Services()[0].State == contract.Complete })
	// What a hash stands for is known from an engine, as long as somebody holds the block.
	for _, instance := range []string{"a", "b"} {
		of := ipcEndpoints(t)
		newEngine(t, transport, of).lose(stored(1, 2, 3), removed(1, 2, 3), stored(1))
		register(t, x, serviceAt(of, instance, 0))
	}
	found := func() (a, b row) {
		rows := rowsOf(x, ask(1, 2, 3))
		if len(rows) != 2 {
			return a, b
		}
		return rows[0], rows[1]
	}
	eventually(t, x, func() bool {
		a, b := found()
		// The cluster's store may have told something before the subscription was in force.
		return a.Instance == "a" && a.GPU == 2 && a.All == 4 && b.Instance == "b" && b.GPU == 2 && b.All == 6
	})
	seq = 1 << 20
	eventually(t, x, func() bool { // as one that was started anew further on
		master(t, cluster, seq, "removed", 2)
		seq++
		a, b := found()
		return a.All == 2 && b.All == 6
	})
}
