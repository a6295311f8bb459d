package zmqx

import (
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"testing"

	"github.com/pebbe/zmq4"
)

// freePort returns a port of an address that nobody has at present. It is none of those
// that the kernel gives to whoever asks for any: who listens there begins later.
func freePort(t *testing.T, network, host string) int {
	t.Helper()
	var err error
	for range 1000 {
		port := 10_000 + rand.IntN(20_000)
		var l net.Listener
		if l, err = net.Listen(network, net.JoinHostPort(host, strconv.Itoa(port))); err == nil {
			_ = l.Close()
			return port
		}
	}
	t.Skipf("%s: %v", host, err)
	return 0
}

// What the configuration accepts can be bound, and answers.
func TestTCPEndpoints(t *testing.T) {
	for name, test := range map[string]struct{ network, ip string }{
		"127.0.0.1": {"tcp4", "127.0.0.1"}, "localhost": {"tcp4", "127.0.0.1"}, "*": {"tcp4", "127.0.0.1"}, "[::1]": {"tcp6", "::1"},
	} {
		t.Run(name, func(t *testing.T) {
			transport := newTransport(t)
			port := strconv.Itoa(freePort(t, test.network, test.ip))
			r, err := transport.ListenStream("tcp://"+name+":"+port, 10, func(frames [][]byte, reply func([][]byte) bool) { reply(frames) })
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := r.Close(); err != nil {
					t.Error(err)
				}
			})
			socket, err := transport.newSocket(zmq4.REQ)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = socket.Close() })
			address := "tcp://" + net.JoinHostPort(test.ip, port)
			if err := socket.SetIpv6(strings.Contains(address, "[")); err != nil {
				t.Fatal(err)
			}
			if err := socket.SetRcvtimeo(patience); err != nil {
				t.Fatal(err)
			}
			if err := socket.Connect(address); err != nil {
				t.Fatal(err)
			}
			if _, err := socket.SendMessage("hello"); err != nil {
				t.Fatal(err)
			}
			if got, err := socket.RecvMessage(0); err != nil || len(got) != 1 || got[0] != "hello" {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
}
