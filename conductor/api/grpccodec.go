package api

import (
	"context"
	"sync"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/stats"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/mooncake-sidecar/sidecar/conductor/api/conductorpb"
)

// chargingCodec is gRPC's own codec, which takes what a query will have in memory from the
// bytes of all calls before it is decoded. One for which there is no room is not decoded: whoever
// gets it asks for it by taken, and gives it back. It is safe for concurrent use.
//
// It is a stats.Handler, too, because not every query that was decoded is handed to somebody: gRPC
// reads on after the one message of a call, and if its end does not come (it is cancelled, or there
// is a second message) no handler runs. What such a call was charged is given back at its end.
type chargingCodec struct {
	encoding.CodecV2
	rooms *rooms
	// charges are *charge of queries that were read and are not answered, by the query.
	charges sync.Map
}

// charge is what a query was charged.
type charge struct {
	bytes int64
	// busy: there was no room for it.
	busy bool
}

func newChargingCodec(r *rooms) *chargingCodec {
	return &chargingCodec{CodecV2: encoding.GetCodecV2("proto"), rooms: r}
}

// Unmarshal implements encoding.CodecV2.
func (c *chargingCodec) Unmarshal(data mem.BufferSlice, into any) error {
	q, ok := into.(*conductorpb.QueryRequest)
	if !ok {
		return c.CodecV2.Unmarshal(data, into)
	}
	buffer := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer buffer.Free()
	of := &charge{bytes: decodedBytes(buffer.ReadOnlyData())}
	if c.rooms.busy.Add(of.bytes) > c.rooms.most {
		c.rooms.busy.Add(-of.bytes)
		c.charge(q, &charge{busy: true})
		return nil
	}
	if err := c.CodecV2.Unmarshal(mem.BufferSlice{buffer}, into); err != nil {
		c.rooms.busy.Add(-of.bytes)
		return err
	}
	c.charge(q, of)
	return nil
}

// charge notes what a query was charged. gRPC reads a call's second message into the same query:
// what the first was charged is given back.
func (c *chargingCodec) charge(q *conductorpb.QueryRequest, of *charge) {
	if before, ok := c.charges.Swap(q, of); ok {
		c.giveBack(before)
	}
}

// giveBack gives back what charges had.
func (c *chargingCodec) giveBack(known any) {
	if of, _ := known.(*charge); of != nil && !of.busy {
		c.rooms.busy.Add(-of.bytes)
	}
}

// asked is the query of a call that was decoded and that nobody has taken. Only the goroutine
// that serves the call touches it.
type asked struct{ query *conductorpb.QueryRequest }

type askedKey struct{}

// TagConn implements stats.Handler.
func (*chargingCodec) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn implements stats.Handler.
func (*chargingCodec) HandleConn(context.Context, stats.ConnStats) {}

// TagRPC implements stats.Handler.
func (*chargingCodec) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context {
	return context.WithValue(ctx, askedKey{}, &asked{})
}

// HandleRPC implements stats.Handler.
func (c *chargingCodec) HandleRPC(ctx context.Context, event stats.RPCStats) {
	call, _ := ctx.Value(askedKey{}).(*asked)
	if call == nil {
		return
	}
	switch e := event.(type) {
	case *stats.InPayload:
		call.query, _ = e.Payload.(*conductorpb.QueryRequest)
	case *stats.End:
		if known, ok := c.charges.LoadAndDelete(call.query); ok {
			c.giveBack(known)
		}
	}
}

// taken returns whether there was room for a call's query. done gives it back; it is to be called
// in any case.
func (c *chargingCodec) taken(ctx context.Context, q *conductorpb.QueryRequest) (done func(), err error) {
	if call, _ := ctx.Value(askedKey{}).(*asked); call != nil {
		call.query = nil // or a stream would keep in memory what is not charged any more
	}
	known, ok := c.charges.LoadAndDelete(q)
	of, _ := known.(*charge)
	switch {
	case !ok: // nobody sent it
		return func() {}, nil
	case of.busy:
		return func() {}, errBusy
	}
	return func() { c.giveBack(of) }, nil
}

// The fields of QueryRequest whose memory is another than that of their bytes.
const (
	tokenIDsField  = 9
	seqHashesField = 10
)

// decodedBytes is what a query takes once it is decoded, or at least as much as its bytes where
// they are none.
func decodedBytes(data []byte) int64 {
	all := int64(len(data))
	for len(data) > 0 {
		number, kind, n := protowire.ConsumeTag(data)
		if n < 0 {
			return all
		}
		data = data[n:]
		if n = protowire.ConsumeFieldValue(number, kind, data); n < 0 {
			return all
		}
		switch {
		case number == tokenIDsField && kind == protowire.BytesType:
			for _, b := range data[:n] {
				if b < 0x80 { // a number's last
					all += tokenBytes
				}
			}
		case number == tokenIDsField, number == seqHashesField && kind != protowire.BytesType:
			all += 2 * hashBytes // one by one; what they are kept in grows by doubling
		}
		data = data[n:]
	}
	return all
}
