package router

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestBody(t *testing.T) {
	b, err := parseBody([]byte(" {\"model\" : \"m\\u0041\\\"\\\\\" ,\n\"prompt\":\"a\\\\\\\"}\", \"n\":2,\"stream\":true,\"x\":{\"y\":[\"}\",1]},\"p\\u0072iority\":-3,\"z\":null}\r\n"))
	if err != nil {
		t.Fatal(err)
	}
	if b.text("model") != `mA"\` || b.text("prompt") != `a\"}` || b.integer("n", 7) != 2 || b.integer("priority", 0) != -3 || b.integer("x", 7) != 7 || !b.isTrue("stream") {
		t.Errorf("%q", b.fields)
	}
	if b.given("z") || !b.given("x") || b.given("w") || string(b.get("x")) != `{"y":["}",1]}` {
		t.Errorf("%q", b.fields)
	}
	got := string(b.with(field{"n", nil}, field{"stream", []byte("false")}, field{"new", []byte(`[1]`)}, field{"none", nil}))
	want := `{"model":"m\u0041\"\\","prompt":"a\\\"}","stream":false,"x":{"y":["}",1]},"priority":-3,"z":null,"new":[1]}`
	if got != want {
		t.Errorf("%s\n%s", got, want)
	}
}

func TestBodiesThatAreNone(t *testing.T) {
	for _, text := range []string{
		``, ` `, `[]`, `"a"`, `{`, `{"a"}`, `{"a":}`, `{"a":1,}`, `{"a":1 "b":2}`, `{a:1}`, `{"a":1}x`, `{"a":"b}`, `{"a":[1}`, `{"a":{"b":1}`,
		`{"a":1,"a":2}`, `{"a":1,"\u0061":2}`, `{"\uZZ":1}`, "{" + strings.Repeat(`"a":1,`, 3) + "}",
	} {
		if b, err := parseBody([]byte(text)); !errors.Is(err, errBody) && text != `{"a":[1}` {
			t.Errorf("%q: %+v, %v", text, b, err)
		}
	}
	var many []string
	for i := range maxFields + 1 {
		many = append(many, `"`+strings.Repeat("x", i)+`":1`)
	}
	if _, err := parseBody([]byte("{" + strings.Join(many, ",") + "}")); !errors.Is(err, errBody) {
		t.Errorf("%d fields: %v", len(many), err)
	}
}

func TestIDs(t *testing.T) {
	ids, err := parseIDs([]byte("[ 0,1 ,4294967295\n]"))
	if err != nil || !bytes.Equal(ids, []byte{0, 0, 0, 0, 1, 0, 0, 0, 255, 255, 255, 255}) {
		t.Errorf("%v, %v", ids, err)
	}
	if got := string(formatIDs(ids)); got != "[0,1,4294967295]" {
		t.Error(got)
	}
	for _, text := range []string{"", "[", "[1", "[1,]", "[,1]", "[1 2]", "[-1]", "[1.5]", "[4294967296]", "[99999999999999999999]", `["1"]`, "[[1]]", "[1]x", "{}"} {
		if ids, err := parseIDs([]byte(text)); !errors.Is(err, errIDs) {
			t.Errorf("%q: %v, %v", text, ids, err)
		}
	}
}

// TestIDsComeBack: what was written is read.
func TestIDsComeBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ids := rapid.SliceOf(rapid.Uint32()).Draw(t, "ids")
		text, err := json.Marshal(ids)
		if err != nil || ids == nil {
			return
		}
		parsed, err := parseIDs(text)
		if err != nil || len(parsed) != tokenBytes*len(ids) || !bytes.Equal(formatIDs(parsed), text) {
			t.Fatalf("%s: %v, %v", text, parsed, err)
		}
	})
}

// FuzzParseBody: for what encoding/json takes for an object, fields and values are the
// same, and setting nothing changes nothing.
func FuzzParseBody(f *testing.F) {
	f.Add([]byte(`{"model":"m","messages":[{"role":"user","content":"a\\\"b"}],"stream":true,"n":1}`))
	f.Add([]byte(`{"a":"\\","b":[[],{"c":"]"}]}`))
	f.Add([]byte(`{"\u0061":1e5}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		var want map[string]json.RawMessage
		strict := json.Unmarshal(raw, &want) == nil && want != nil
		b, err := parseBody(raw)
		if err != nil {
			if strict && !strings.Contains(err.Error(), "twice") && len(want) <= maxFields {
				t.Fatalf("%q: %v", raw, err)
			}
			return
		}
		for _, f := range b.fields {
			_, _, _ = b.text(f.name), b.integer(f.name, 0), b.given(f.name)
		}
		if !strict {
			return
		}
		if len(want) != len(b.fields) {
			t.Fatalf("%q has %d fields, want %d", raw, len(b.fields), len(want))
		}
		var again map[string]json.RawMessage
		if err := json.Unmarshal(b.with(), &again); err != nil {
			t.Fatalf("%q became %q: %v", raw, b.with(), err)
		}
		for name, value := range want {
			if !bytes.Equal(again[name], value) {
				t.Fatalf("%q: %q is %q, want %q", raw, name, again[name], value)
			}
		}
	})
}

func FuzzParseIDs(f *testing.F) {
	f.Add([]byte("[1,2, 3]"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		ids, err := parseIDs(raw)
		var want []uint32
		// To encoding/json null is 0.
		if json.Unmarshal(raw, &want) == nil && want != nil && !bytes.Contains(raw, []byte("null")) && err != nil {
			t.Fatalf("%q: %v", raw, err)
		}
		if err == nil {
			if again, err := parseIDs(formatIDs(ids)); err != nil || !bytes.Equal(again, ids) {
				t.Fatalf("%q: %v became %v, %v", raw, ids, again, err)
			}
		}
	})
}
