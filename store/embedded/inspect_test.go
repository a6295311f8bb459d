package embedded

import (
	"encoding/json"
	"slices"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store"
	"github.com/mooncake-sidecar/sidecar/store/embedded/storepb"
)

// TestInspect: an operator sees what keeps a chunk from being found, and looking
// does not change what the next lookup is told.
func TestInspect(t *testing.T) {
	w := newWorld(t, 4<<20)
	s := w.open(1, 1, 100, Declaration{})
	ns := w.namespace(testSpec("m", 8192, 2))
	other := w.namespace(testSpec("n", 8192, 2))
	for chunk := range 3 {
		w.store(s, ns, chunk, 0)
	}
	w.store(s, ns, 1, 1)
	w.store(s, ns, 2, 1)
	if err := w.m.ReportFailed(s, ns, []store.FailedChunk{{Hash: testHash(2)}}); err != nil {
		t.Fatal(err)
	}
	service := NewService(w.m)
	var hashes []byte
	for chunk := range 4 {
		h := testHash(chunk)
		hashes = append(hashes, h[:]...)
	}
	inspect := func(id store.NamespaceID, groups ...uint32) ([]byte, error) {
		reply, err := service.Inspect(t.Context(), &storepb.InspectRequest{Namespace: uint32(id), Groups: groups, Hashes: hashes})
		return reply.GetStates(), err
	}
	for range 2 {
		want := []byte{byte(ChunkPartial), byte(ChunkPresent), byte(ChunkFailed), byte(ChunkAbsent)}
		if got, err := inspect(ns.ID, 0, 0, 0, 0); err != nil || !slices.Equal(got, want) {
			t.Fatalf("states %v, %v, want %v", got, err, want)
		}
	}
	if got, err := inspect(other.ID, 0, 0, 0, 0); err != nil || !slices.Equal(got, make([]byte, 4)) {
		t.Errorf("another namespace has %v, %v", got, err)
	}
	if w.exists(ns, 2) || !w.exists(ns, 2) {
		t.Error("the failed load was not told once, and once only")
	}
	for name, groups := range map[string][]uint32{"columns": {0}, "group": {0, 0, 0, 1}} {
		if _, err := inspect(ns.ID, groups...); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := inspect(77, 0, 0, 0, 0); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("a namespace that is not there: %v", err)
	}

	reply, err := service.Namespaces(t.Context(), &storepb.NamespacesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var models []string
	for _, entry := range reply.GetNamespaces() {
		var spec kv.NamespaceSpec
		if err := json.Unmarshal(entry.GetSpec(), &spec); err != nil {
			t.Fatal(err)
		}
		models = append(models, spec.Model)
	}
	if !slices.Equal(models, []string{"m", "n"}) {
		t.Errorf("namespaces of %v", models)
	}
}
