package native

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/mooncake-sidecar/sidecar/store/mooncake"
)

// TestHowRefused: what a client would read wrongly is not said.
func TestHowRefused(t *testing.T) {
	for i, how := range []mooncake.Replication{
		{Replicas: -1}, {Replicas: maxReplicas + 1}, {PreferredSegments: []string{""}}, {PreferredSegments: []string{"a\x00b"}},
		{PreferredSegments: []string{strings.Repeat("s", maxSegmentBytes+1)}}, {PreferredSegments: strings.Split(strings.Repeat("a:1,", maxSegments)+"b", ",")},
	} {
		if CheckHow(&how) == nil {
			t.Errorf("%d was not refused: %s", i, fmt.Sprintf("%.80v", how))
		}
	}
}

func TestExpression(t *testing.T) {
	const meta = `a.b*c+?(d)[e]{f}|^$\/@-:x`
	if re := regexp.MustCompile(Expression(meta)); !re.MatchString(meta+"tail") || re.MatchString("x"+meta) || re.MatchString("aXb*c+?(d)[e]{f}|^$\\/@-:x") {
		t.Error(Expression(meta))
	}
}

// TestMayGoOn: which answers of transfers leave open that bytes are moved yet.
func TestMayGoOn(t *testing.T) {
	for _, c := range []struct {
		put     bool
		answers []mooncake.Answer
		want    mooncake.Code
	}{
		{false, []mooncake.Answer{64, -704, -707}, 0},
		{false, []mooncake.Answer{64, -800}, mooncake.CodeTransferFailed},
		{true, []mooncake.Answer{0, -200}, 0},
		{true, []mooncake.Answer{0, -704}, mooncake.CodeNotFound},
		{true, []mooncake.Answer{-800}, mooncake.CodeTransferFailed},
		{true, nil, 0},
	} {
		if got := MayGoOn(c.put, c.answers); got != c.want {
			t.Errorf("put %v: %v leave %v, want %v", c.put, c.answers, got, c.want)
		}
	}
}

// TestNotice: who waits is told of each change, and starts are counted.
func TestNotice(t *testing.T) {
	n := NewNotice[int]("not begun")
	if _, err := n.Session("put"); err == nil || !strings.Contains(err.Error(), "not begun") {
		t.Errorf("a session: %v", err)
	}
	told := func(do func()) {
		t.Helper()
		changed := n.Changed()
		do()
		select {
		case <-changed:
		default:
			t.Error("nobody was told")
		}
	}
	one := 1
	told(func() { n.Set(&one, mooncake.Health{Ready: true, Versions: map[string]string{"a": "b"}}) })
	health, session := n.Health()
	health.Versions["a"] = "c"
	if again, _ := n.Health(); session != &one || !again.Ready || again.Starts != 1 || again.Versions["a"] != "b" {
		t.Errorf("%+v, %v", again, session)
	}
	told(n.Tell)
	told(func() { n.Set(nil, mooncake.Health{Reason: "it ended"}) })
	if health, session := n.Health(); session != nil || health.Starts != 1 || health.Reason != "it ended" {
		t.Errorf("%+v, %v", health, session)
	}
}
