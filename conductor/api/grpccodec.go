package api

import (
	"sync"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/mooncake-sidecar/sidecar/conductor/api/conductorpb"
)

// chargingCodec is gRPC's own codec, which takes what a query will have in memory from the
// bytes of all calls before it is decoded. One for which there is no room is not decoded: whoever
// gets it asks for it by taken, and gives it back. It is safe for concurrent use.
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
		c.charges.Store(q, &charge{busy: true})
		return nil
	}
	if err := c.CodecV2.Unmarshal(mem.BufferSlice{buffer}, into); err != nil {
		c.rooms.busy.Add(-of.bytes)
		return err
	}
	c.charges.Store(q, of)
	return nil
}

// taken returns whether there was room for a query. done gives it back; it is to be called in
// any case.
func (c *chargingCodec) taken(q *conductorpb.QueryRequest) (done func(), err error) {
	known, ok := c.charges.LoadAndDelete(q)
	of, _ := known.(*charge)
	switch {
	case !ok: // nobody sent it
		return func() {}, nil
	case of.busy:
		return func() {}, errBusy
	}
	return func() { c.rooms.busy.Add(-of.bytes) }, nil
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
