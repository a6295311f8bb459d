package connector

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"os"
	"slices"
	"testing"
)

// goldenStore is testdata/golden/session/store.json.
type goldenStore struct {
	Job, Epoch, Generation uint64

	Frame string
	Parts []struct {
		Request     string
		Tokens      [4]int
		Most        *int
		SaltTag     string `json:"salt_tag"`
		TTL         int    `json:"ttl_s"`
		Pin         int
		FirstHash   int `json:"first_hash"`
		Hashes      string
		FirstBlocks []int `json:"first_blocks"`
		Blocks      [][]uint32
		Puts        [][3]int
	}
}

// TestGoldenStore: what the shim packs is read as it was meant.
func TestGoldenStore(t *testing.T) {
	text, err := os.ReadFile("../testdata/golden/session/store.json")
	if err != nil {
		t.Fatal(err)
	}
	var golden goldenStore
	if err := json.Unmarshal(text, &golden); err != nil {
		t.Fatal(err)
	}
	stream, err := hex.DecodeString(golden.Frame)
	if err != nil {
		t.Fatal(err)
	}
	frame, err := NewFrameReader(bytes.NewReader(stream)).Next()
	if err != nil {
		t.Fatal(err)
	}
	msg, err := Decode(frame)
	if err != nil {
		t.Fatal(err)
	}
	batch, ok := msg.(*StoreBatch)
	if !ok || batch.Job != golden.Job || batch.Epoch != golden.Epoch || batch.Generation != golden.Generation || batch.Event != -1 || len(batch.Parts) != len(golden.Parts) {
		t.Fatalf("got %+v", msg)
	}
	for i, want := range golden.Parts {
		got := batch.Parts[i]
		tokens := [4]int{got.TokenLen, got.CompletedTokens, got.PromptTokens, got.PrefillEnd}
		if got.Request != want.Request || tokens != want.Tokens || got.Label != (Label{SaltTag: want.SaltTag, TTLSeconds: want.TTL, Pin: want.Pin}) {
			t.Errorf("part %d: %+v, want %+v", i, got, want)
		}
		if most := got.Controls.MaxOffloadTokens; (most == nil) != (want.Most == nil) || most != nil && *most != *want.Most {
			t.Errorf("part %d: max_offload_tokens %v, want %v", i, most, want.Most)
		}
		if got.FirstHash != want.FirstHash || hex.EncodeToString(got.Hashes) != want.Hashes || got.HashLen != 16 {
			t.Errorf("part %d: hashes from %d: %x, want from %d: %s", i, got.FirstHash, got.Hashes, want.FirstHash, want.Hashes)
		}
		if !slices.Equal(got.FirstBlock, want.FirstBlocks) || !slices.Equal(got.BoundaryPuts, want.Puts) {
			t.Errorf("part %d: tables from %v, puts %v; want %v, %v", i, got.FirstBlock, got.BoundaryPuts, want.FirstBlocks, want.Puts)
		}
		for g, blocks := range want.Blocks {
			var table []byte
			for _, block := range blocks {
				table = binary.LittleEndian.AppendUint32(table, block)
			}
			if !bytes.Equal(got.Blocks[g], table) {
				t.Errorf("part %d, group %d: %x, want %x", i, g, got.Blocks[g], table)
			}
		}
	}
}

// TestGoldenRegistered: what is packed here is what the shim's test reads.
func TestGoldenRegistered(t *testing.T) {
	text, err := os.ReadFile("../testdata/golden/session/registered.json")
	if err != nil {
		t.Fatal(err)
	}
	var golden []struct {
		NamespaceDigest string `json:"namespace_digest"`
		StoreReady      bool   `json:"store_ready"`
		Generation      uint64
		EventsRefused   bool `json:"events_refused"`

		Frame string
	}
	if err := json.Unmarshal(text, &golden); err != nil || len(golden) != 2 {
		t.Fatal(err, len(golden))
	}
	for _, want := range golden {
		frame, err := AppendFrame(nil, &Registered{
			Type: TypeRegistered, NamespaceDigest: want.NamespaceDigest, StoreReady: want.StoreReady, Generation: want.Generation,
			EventsRefused: want.EventsRefused,
		})
		if err != nil || hex.EncodeToString(frame) != want.Frame {
			t.Errorf("%+v: %x, %v", want, frame, err)
		}
	}
}
