package mooncaketest

import (
	"bufio"
	_ "embed" // the peer's source
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"testing"
)

//go:embed peer.py
var peerSource string

// Peer is a Python client of a cluster, in a process of its own.
type Peer struct {
	t   testing.TB
	mu  sync.Mutex
	in  io.WriteCloser
	out *bufio.Reader
	// Segment is the name of the memory that it lends.
	Segment string
	process *os.Process
	exited  <-chan struct{}
}

// StartPeer starts a client that lends the cluster that many bytes; it ends with
// the test.
func StartPeer(t testing.TB, python string, master *Master, lentBytes uint64) *Peer {
	t.Helper()
	cmd := exec.Command(python, "-I", "-u", "-c", peerSource, master.Config.MetadataServer, master.Config.MasterServerAddress, strconv.FormatUint(lentBytes, 10))
	cmd.Env = append(Environ(), "MC_STORE_CLIENT_SETUP_RETRIES=1")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	exited, err := startChild(cmd)
	if err != nil {
		t.Fatal(err)
	}
	p := &Peer{t: t, in: in, out: bufio.NewReader(out), process: cmd.Process, exited: exited}
	t.Cleanup(p.Kill)
	if err := p.answer(&p.Segment); err != nil {
		t.Fatalf("peer: %v", err)
	}
	return p
}

// Kill ends the peer and waits for that.
func (p *Peer) Kill() {
	_ = p.process.Kill() // it may be dead already
	<-p.exited
}

// Signal sends the peer a signal.
func (p *Peer) Signal(t testing.TB, signal syscall.Signal) {
	t.Helper()
	if err := p.process.Signal(signal); err != nil {
		t.Error(err)
	}
}

func (p *Peer) answer(into any) error {
	line, err := p.out.ReadBytes('\n')
	if err != nil {
		return err
	}
	var reply struct {
		OK    json.RawMessage `json:"ok"`
		Error string          `json:"error"`
	}
	if err := json.Unmarshal(line, &reply); err != nil {
		return err
	}
	if reply.Error != "" {
		return fmt.Errorf("%s", reply.Error)
	}
	return json.Unmarshal(reply.OK, into)
}

// Ask makes the peer do something: op and its arguments, see peer.py.
func (p *Peer) Ask(op string, arguments map[string]any, into any) {
	p.t.Helper()
	request := map[string]any{"op": op}
	for name, value := range arguments {
		request[name] = value
	}
	encoded, err := json.Marshal(request)
	if err != nil {
		p.t.Fatal(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, err = p.in.Write(append(encoded, '\n')); err == nil {
		err = p.answer(into)
	}
	if err != nil {
		p.t.Fatalf("peer: %s: %v", op, err)
	}
}
