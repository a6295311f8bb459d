package sideproc_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/mooncake-sidecar/sidecar/internal/shm"
	"github.com/mooncake-sidecar/sidecar/store/mooncake"
	"github.com/mooncake-sidecar/sidecar/store/mooncake/cluster"
	"github.com/mooncake-sidecar/sidecar/store/mooncake/mooncaketest"
	"github.com/mooncake-sidecar/sidecar/store/mooncake/sideproc"
)

// roleVariable makes this program play a side process: its value says which.
const roleVariable = "SIDEPROC_TEST_ROLE"

// holdVariable names a pipe: a process that lingers does so until that is closed.
const holdVariable = "SIDEPROC_TEST_HOLD"

func TestMain(m *testing.M) {
	if role := os.Getenv(roleVariable); role != "" {
		play(role)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

var unescape = regexp.MustCompile(`\\(.)`)

// play is a side process that shows one behaviour.
func play(role string) {
	if role == "parent" {
		playParent()
		return
	}
	if role == "wrapper" || role == "leaves" {
		playWrapper(role)
		return
	}
	if role == "lingers" {
		hold, err := os.Open(os.Getenv(holdVariable))
		if err == nil {
			_, _ = io.ReadAll(hold)
		}
		return
	}
	file := os.NewFile(3, "socket")
	conn, err := net.FileConn(file)
	_ = file.Close()
	if err != nil {
		panic(err)
	}
	say := func(call uint32, kind byte, body string) {
		_, _ = conn.Write(sideproc.AppendFrame(call, kind, []byte(body)))
	}
	hello, ready := fmt.Sprintf(`{"protocol": 1, "pid": %d, "python": "none"}`, os.Getpid()), `{"stage": "probe", "code": 0, "segment": "here:1", "versions": {"mooncake": "test"}}`
	switch role {
	case "mute":
		select {}
	case "exits":
		fmt.Fprintln(os.Stderr, "cannot go on: no reason at all")
		os.Exit(3)
	case "other version":
		hello = `{"protocol": 99}`
	case "no JSON":
		hello = "hello"
	case "endless":
		_, _ = conn.Write([]byte{0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 10})
		select {}
	case "fails":
		ready = `{"stage": "setup", "code": -900, "text": "", "versions": {}}`
	case "chatty":
		for i := range 10_000 {
			fmt.Fprintln(os.Stderr, "line", i, strings.Repeat("x", 2000))
		}
	}
	say(0, sideproc.KindHello, hello)
	if _, err := sideproc.ReadFrame(conn); err != nil {
		os.Exit(4)
	}
	say(0, sideproc.KindReady, ready)
	serve(conn, role)
}

// playWrapper is an interpreter that is none: another process is it. Or it leaves
// one behind that has its log open.
func playWrapper(role string) {
	self, err := os.Executable()
	if err != nil {
		panic(err)
	}
	child := exec.CommandContext(context.Background(), self)
	child.Env = append(os.Environ(), roleVariable+"=stays")
	child.Stdout, child.Stderr = os.Stdout, os.Stderr
	child.ExtraFiles = []*os.File{os.NewFile(3, "socket"), os.NewFile(4, "memory")}
	if role == "leaves" {
		child.Env = append(os.Environ(), roleVariable+"=lingers")
		child.ExtraFiles, child.SysProcAttr = nil, &syscall.SysProcAttr{Setsid: true}
		syscall.CloseOnExec(3)
		syscall.CloseOnExec(4)
	}
	if err := child.Start(); err != nil {
		panic(err)
	}
	if role == "leaves" {
		os.Exit(3)
	}
	_ = child.Wait() // it is killed
}

// playParent is a daemon with a side process, whose number it prints.
func playParent() {
	memory, err := shm.NewSegment("parent", 1<<20)
	if err != nil {
		panic(err)
	}
	self, err := os.Executable()
	if err != nil {
		panic(err)
	}
	e := sideproc.New(sideproc.Config{
		Python: self, Memory: memory, Limits: long, Environ: append(os.Environ(), roleVariable+"=stays"), Log: slog.New(slog.DiscardHandler),
		Cluster: cluster.Config{MasterServerAddress: "127.0.0.1:1", MetadataServer: "P2PHANDSHAKE", LocalHostname: "127.0.0.1"},
	})
	go func() { _ = e.Run(context.Background()) }() // until the test kills us
	for changed := e.Changed(); !e.Health().Ready; changed = e.Changed() {
		<-changed
	}
	fmt.Println(e.PID())
	select {}
}

// serve answers calls from a cluster of its own; some keys make it misbehave.
func serve(conn net.Conn, role string) {
	var info syscall.Stat_t
	if err := syscall.Fstat(4, &info); err != nil {
		panic(err)
	}
	memory, err := syscall.Mmap(4, 0, int(info.Size), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		panic(err)
	}
	cluster := mooncaketest.NewCluster(0)
	cluster.GiveLeases()
	engine := cluster.NewEngine(memory)
	var writing sync.Mutex
	for {
		f, err := sideproc.ReadFrame(conn)
		if err != nil {
			if role == "stays" {
				select {}
			}
			return
		}
		go func() {
			answers, err := answer(engine, memory, f)
			kind, body := sideproc.KindAnswers, []byte{}
			for _, a := range answers {
				body = binary.LittleEndian.AppendUint64(body, uint64(a))
			}
			if err == nil && role == "no pings" && f.Kind() == sideproc.KindPing {
				err = errors.New("what is a ping?")
			}
			switch {
			case errors.Is(err, errRaised):
				kind, body = sideproc.KindFailed, []byte("RuntimeError: raised")
			case err != nil:
				kind, body = sideproc.KindRefused, []byte(err.Error())
			}
			writing.Lock()
			defer writing.Unlock()
			_, _ = conn.Write(sideproc.AppendFrame(f.Call(), kind, body))
		}()
	}
}

// errRaised: Mooncake raised an exception in the midst of a call.
var errRaised = errors.New("raised")

// writeLate is a transfer that goes on after it was answered as failed.
func writeLate(to []byte) {
	for {
		copy(to, "late")
	}
}

// answer makes a call.
func answer(engine mooncake.Engine, memory []byte, f sideproc.Frame) ([]mooncake.Answer, error) {
	ctx, body := context.Background(), f.Body()
	count, size := binary.LittleEndian.Uint32(body), binary.LittleEndian.Uint32(body[4:])
	var keys []string
	if count > 0 {
		keys = strings.Split(string(body[8:8+size]), "\x00")
	}
	for _, key := range keys {
		switch {
		case strings.HasSuffix(key, "@hang"):
			select {}
		case strings.HasSuffix(key, "@die"):
			fmt.Fprintln(os.Stderr, "F1121 00:00:00.000000 1 fatal.cpp:1] dying of", key)
			os.Exit(7)
		case strings.HasSuffix(key, "@short"):
			return nil, nil
		}
	}
	if len(keys) == 1 && (strings.HasSuffix(keys[0], "@given up") || strings.HasSuffix(keys[0], "@raises")) {
		go writeLate(memory[binary.LittleEndian.Uint64(body[8+size:]):][:64])
		if strings.HasSuffix(keys[0], "@raises") {
			return nil, errRaised
		}
		return []mooncake.Answer{mooncake.Answer(mooncake.CodeTransferFailed)}, nil
	}
	switch f.Kind() {
	case sideproc.KindPing:
		return []mooncake.Answer{0}, nil
	case sideproc.KindExist:
		return engine.Exist(ctx, keys)
	case sideproc.KindRemove:
		return engine.Remove(ctx, keys)
	case sideproc.KindRemoveRegex:
		n, err := engine.RemovePrefix(ctx, unescape.ReplaceAllString(strings.TrimPrefix(keys[0], "^"), "$1"))
		return []mooncake.Answer{mooncake.Answer(n)}, err
	}
	objects := make([]mooncake.Object, count)
	columns := body[8+size:]
	for i := range objects {
		objects[i] = mooncake.Object{Key: keys[i], Range: mooncake.Range{
			Offset: binary.LittleEndian.Uint64(columns[8*i:]), Bytes: binary.LittleEndian.Uint64(columns[8*(int(count)+i):]),
		}}
	}
	if f.Kind() == sideproc.KindGet {
		return engine.Get(ctx, objects)
	}
	return engine.Put(ctx, mooncake.Replication{}, objects)
}
