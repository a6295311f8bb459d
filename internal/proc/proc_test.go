package proc

import (
	"errors"
	"os"
	"os/exec"
	"testing"
)

func TestAlive(t *testing.T) {
	start, err := StartTime(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if !Alive(uint32(os.Getpid()), start) {
		t.Error("this process is not alive")
	}
	if Alive(uint32(os.Getpid()), start+1) {
		t.Error("another process with this pid counts as alive")
	}
	cmd := exec.Command("cat")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid := uint32(cmd.Process.Pid)
	started, err := StartTime(int(pid))
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = stdin.Close()
	_ = cmd.Wait()
	if Alive(pid, started) {
		t.Error("a killed process counts as alive")
	}
}

func TestParseStat(t *testing.T) {
	tail := " 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 1 18 4242 20 21"
	if got, err := parseStat(1, []byte("1 (a) b (c) S"+tail)); err != nil || got != 4242 {
		t.Errorf("parseStat = %d, %v", got, err)
	}
	if _, err := parseStat(1, []byte("1 (cat) Z"+tail)); !errors.Is(err, ErrGone) {
		t.Errorf("a zombie: %v", err)
	}
	// The first thread has ended, another still runs and may write.
	threads := " 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 2 18 4242 20 21"
	if got, err := parseStat(1, []byte("1 (cat) Z"+threads)); err != nil || got != 4242 {
		t.Errorf("a zombie with a thread that runs: %d, %v", got, err)
	}
	for _, malformed := range []string{"", "1", "1 (cat", "1 (cat) S 1 2"} {
		if _, err := parseStat(1, []byte(malformed)); err == nil {
			t.Errorf("parseStat(%q) did not fail", malformed)
		}
	}
}
