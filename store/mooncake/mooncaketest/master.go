package mooncaketest

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/mooncake-sidecar/sidecar/store/mooncake/cluster"
)

// Python returns the interpreter with Mooncake's wheel that tests are given, and
// skips the test when there is none.
func Python(t testing.TB) string {
	python := os.Getenv("MOONCAKE_SIDECAR_PYTHON")
	if python == "" {
		t.Skip("MOONCAKE_SIDECAR_PYTHON names no Python with vLLM and Mooncake")
	}
	if _, err := os.Stat(masterProgram(python)); err != nil {
		t.Skipf("Mooncake's wheel is not installed (scripts/setup.sh --with-peers): %v", err)
	}
	return python
}

// StartTellingMaster starts a master that publishes its KV events, and returns where. The
// wheel's takes the flags for it and publishes nothing unless it was built with them:
// MOONCAKE_SIDECAR_EVENTS_MASTER names one that does, and the test is skipped without.
func StartTellingMaster(t testing.TB, flags ...string) (m *Master, endpoint string) {
	t.Helper()
	program := os.Getenv("MOONCAKE_SIDECAR_EVENTS_MASTER")
	if program == "" {
		t.Skip("MOONCAKE_SIDECAR_EVENTS_MASTER names no mooncake_master that publishes KV events")
	}
	ports, err := holdPorts(4)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(ports.close)
	endpoint = "tcp://127.0.0.1:" + strconv.Itoa(ports.numbers[3])
	flags = append(flags, "--enable_kv_events=true", "--kv_events_backend_id=pool", "--kv_events_bind_endpoint="+endpoint)
	if m, err = startOn(program, ports, flags); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Kill)
	return m, endpoint
}

func masterProgram(python string) string {
	return filepath.Join(filepath.Dir(python), "mooncake_master")
}

// Master is a real mooncake_master with its metadata server, on loopback.
type Master struct {
	// Config reaches it over TCP, lending no memory.
	Config  cluster.Config
	process *os.Process
	log     *bytes.Buffer
	exited  <-chan struct{}
	program string
	flags   []string
	ports   *heldPorts // of calls, metadata and metrics
}

// StartMaster starts a master with flags of its own, which ends with the test.
func StartMaster(t testing.TB, python string, flags ...string) *Master {
	t.Helper()
	ports, err := holdPorts(3)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(ports.close)
	m, err := startOn(masterProgram(python), ports, flags)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Kill)
	return m
}

// Restart starts a master anew at the same addresses; what was stored is gone.
//
// REQUIRES: it was killed.
func (m *Master) Restart(t testing.TB) {
	t.Helper()
	again, err := startOn(m.program, m.ports, m.flags)
	if err != nil {
		t.Fatal(err)
	}
	m.process, m.log, m.exited = again.process, again.log, again.exited
}

// Signal sends the master a signal.
func (m *Master) Signal(t testing.TB, signal syscall.Signal) {
	t.Helper()
	if err := m.process.Signal(signal); err != nil {
		t.Fatal(err)
	}
}

func startOn(program string, held *heldPorts, flags []string) (*Master, error) {
	ports := held.numbers
	rpc, metadata := "127.0.0.1:"+strconv.Itoa(ports[0]), "127.0.0.1:"+strconv.Itoa(ports[1])
	m := &Master{program: program, ports: held, flags: flags, log: &bytes.Buffer{}, Config: cluster.Config{
		MetadataServer: "http://" + metadata + "/metadata", MasterServerAddress: rpc, Protocol: "tcp", Mode: cluster.ModeStandalone,
		LocalBufferBytes: cluster.DefaultBufferBytes, TenantID: cluster.DefaultTenant, LocalHostname: "127.0.0.1",
	}}
	cmd := exec.Command(program, append([]string{"--rpc_port=" + strconv.Itoa(ports[0]), "--enable_http_metadata_server=true",
		"--http_metadata_server_port=" + strconv.Itoa(ports[1]), "--metrics_port=" + strconv.Itoa(ports[2]), "--enable_metric_reporting=false"}, flags...)...)
	cmd.Stdout, cmd.Stderr = m.log, m.log
	var err error
	if m.exited, err = startChild(cmd); err != nil {
		return nil, fmt.Errorf("mooncake_master: %w", err)
	}
	m.process = cmd.Process
	for _, address := range []string{rpc, metadata} {
		if err := m.await(address); err != nil {
			m.Kill()
			return nil, fmt.Errorf("mooncake_master: %w\n%s", err, m.log)
		}
	}
	return m, nil
}

// await waits until an address is served.
func (m *Master) await(address string) error {
	deadline := time.Now().Add(30 * time.Second)
	for {
		conn, err := net.DialTimeout("tcp", address, time.Second)
		if err == nil {
			return conn.Close()
		}
		select {
		case <-m.exited:
			return errors.New("it ended")
		default:
		}
		if time.Now().After(deadline) {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// Kill ends the master and waits for that.
func (m *Master) Kill() {
	_ = m.process.Kill() // it may be dead already
	<-m.exited
}

// Environ is the environment for clients of a test's master: nothing leaves
// loopback.
func Environ() []string {
	return append(os.Environ(), "MC_TCP_BIND_ADDRESS=127.0.0.1", "MC_LOG_LEVEL=ERROR")
}
