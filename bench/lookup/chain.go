package lookup

import (
	"bufio"
	"fmt"
	"os"
	"time"

	"github.com/mooncake-sidecar/sidecar/connector"
	"github.com/mooncake-sidecar/sidecar/internal/wire"
)

// prober asks on a lookup channel as the shim does: it names a chain by some of its
// hashes, or a short one by all.
type prober struct {
	channel  *os.File
	messages *connector.FrameReader
	stride   int
	q        *question
	seq      uint64
	out      []byte
}

const proberID = "bench"

func newProber(channel *os.File, stride int, q *question) *prober {
	return &prober{channel: channel, messages: connector.NewFrameReader(bufio.NewReader(channel)), stride: stride, q: q}
}

// ask asks once and returns how long it took. When it returns, the daemon has
// nothing left to do for the answer.
func (p *prober) ask() (time.Duration, error) {
	began := time.Now()
	hit, err := p.hit()
	took := time.Since(began)
	if err != nil {
		return 0, err
	}
	if hit != p.q.Want {
		return 0, fmt.Errorf("answer of %d tokens, want %d", hit, p.q.Want)
	}
	if err := p.send(wire.EncodeRelease([]string{proberID})); err != nil {
		return 0, err
	}
	_, err = p.exchange([][]byte{[]byte(wire.TagPing)}, 1)
	return took, err
}

// hit asks until there is an answer.
func (p *prober) hit() (int, error) {
	asking := wire.Asking{Tokens: p.q.Tokens, Hashes: p.q.blob, HashLen: hashBytes, ID: proberID, Stride: p.stride}
	for {
		p.seq++
		reply, err := p.exchange(asking.Frames(p.seq), 2)
		if err != nil {
			return 0, err
		}
		again, err := asking.Heard(reply)
		if err != nil {
			return 0, err
		}
		if !again {
			hit, _, err := wire.ParseHit(reply[0])
			return hit, err
		}
	}
}

func (p *prober) send(frames [][]byte) error {
	p.out = wire.AppendMessage(p.out[:0], frames)
	_, err := p.channel.Write(p.out)
	return err
}

// exchange sends a question and waits for its answer of so many frames.
func (p *prober) exchange(frames [][]byte, want int) ([][]byte, error) {
	if err := p.send(frames); err != nil {
		return nil, err
	}
	message, err := p.messages.Next()
	if err != nil {
		return nil, err
	}
	reply, err := wire.SplitMessage(nil, message)
	if err == nil && len(reply) != want {
		err = fmt.Errorf("answer of %d frames, want %d", len(reply), want)
	}
	return reply, err
}
