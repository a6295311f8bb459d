package indexer

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/mooncake-sidecar/sidecar/conductor/contract"
	"github.com/mooncake-sidecar/sidecar/conductor/kvevents"
	"github.com/mooncake-sidecar/sidecar/conductor/prefixindex"
	"github.com/mooncake-sidecar/sidecar/internal/zmqx"
)

// benchBlock is a block of vLLM's usual size.
const benchBlock = 16

// chain tells of n blocks of a prompt of their own.
func chain(from uint64, n int) *kvevents.BlockStored {
	e := &kvevents.BlockStored{BlockSize: benchBlock, Medium: kvevents.MediumGPU}
	for i := range n {
		e.Hashes = append(e.Hashes, kvevents.Hash((from+uint64(i)+1)*0x9E3779B97F4A7C15))
		for j := range benchBlock {
			e.TokenIDs = append(e.TokenIDs, uint32(from+uint64(i))*31+uint32(j)&0x1ffff)
		}
	}
	return e
}

// The whole of a query by tokens: the index, the rows of 64 instances, and the states.
func BenchmarkQuery(b *testing.B) {
	for _, blocks := range []int{512, 8192} {
		b.Run(fmt.Sprintf("tokens=%d", blocks*benchBlock), func(b *testing.B) {
			transport, err := zmqx.New()
			if err != nil {
				b.Fatal(err)
			}
			defer transport.Close()
			x := New(options(transport))
			defer x.Close()
			prompt := chain(0, blocks)
			for i := range 64 {
				s := serviceAt(endpoints{fmt.Sprintf("ipc:///nowhere/%d", i), ""}, fmt.Sprint("e", i), 0)
				s.BlockTokens = benchBlock
				if _, err := x.Register(b.Context(), s); err != nil {
					b.Fatal(err)
				}
				src := x.index.Open(prefixindex.Origin{Model: "m", Instance: s.Instance})
				src.Apply(&kvevents.Batch{Events: []kvevents.Event{prompt}})
			}
			var tokens []byte
			for _, token := range prompt.TokenIDs {
				tokens = binary.LittleEndian.AppendUint32(tokens, token)
			}
			q := &contract.Query{Model: "m", BlockTokens: benchBlock, Tokens: tokens}
			var rows []contract.RankMatch
			b.ReportAllocs()
			for b.Loop() {
				rows = x.Query(q, rows[:0])
			}
			if len(rows) != 64 || rows[63].In[prefixindex.GPU] != blocks*benchBlock {
				b.Fatalf("%+v", rows)
			}
		})
	}
}
