package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mooncake-sidecar/sidecar/conductor/contract"
)

func TestBinaryQuery(t *testing.T) {
	index := &fakeIndex{}
	h := serve(index, nil)
	w := ask(t, h, "/query?model=a%2Fb&block_size=16&tenant_id=t&lora_name=l&instance_id=i&cache_salt=s&additional_salt=", string(tokensOf(1, 1<<31)), "Content-Type", "application/octet-stream")
	q := index.last()
	if w.Code != http.StatusOK || q.Model != "a/b" || q.BlockTokens != 16 || q.Tenant != "t" || q.LoRA != "l" || q.Instance != "i" || q.CacheSalt != "s" ||
		!q.HasAdditionalSalt || q.AdditionalSalt != "" || string(q.Tokens) != string(tokensOf(1, 1<<31)) {
		t.Errorf("%d %s: %+v", w.Code, w.Body, q)
	}
	w = ask(t, h, "/query_by_hash?model=m", "\x01\x00\x00\x00\x00\x00\x00\xff", "Content-Type", "application/octet-stream", "Accept", msgpackType)
	if q := index.last(); w.Code != http.StatusOK || len(q.Hashes) != 1 || q.Hashes[0] != 0xff00000000000001 || w.Header().Get("Content-Type") != msgpackType {
		t.Errorf("%d %s: %+v", w.Code, w.Body, q)
	}
	for target, field := range map[string]string{
		"/query?block_size=1": "model", "/query?model=m&model=n": "model", "/query?model=m&block_size=x": "block_size", "/query?model=m&tokens=1": "tokens",
		"/query_by_hash?model=m": "body", "/query?model=" + strings.Repeat("m", 2000): "model",
	} {
		if w := ask(t, h, target, "1234", "Content-Type", "application/octet-stream"); w.Code != http.StatusBadRequest || !strings.HasPrefix(w.Body.String(), field+": ") {
			t.Errorf("%s: %d %s", target, w.Code, w.Body)
		}
	}
	if w := ask(t, h, "/query?model=m", "12345", "Content-Type", "application/octet-stream"); w.Code != http.StatusBadRequest {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

func TestBatch(t *testing.T) {
	index := &fakeIndex{matches: map[string][]contract.RankMatch{"default": {match("a", 0, [3]int{16}, [3]int{16, 16, 16})}}}
	h := serve(index, nil)
	w := ask(t, h, "/query_batch", `{"queries":[`+query+`, {"model":"m","token_ids":["x",1],"block_size":16}, {"block_size":16,"model":"m","seq_hashes":["1","2"]}, 7, {"token_ids":[1]}]}`)
	var got struct {
		Results []map[string]json.RawMessage `json:"results"`
	}
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || w.Code != http.StatusOK || len(got.Results) != 5 {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	single := ask(t, h, "/query", query).Body.String()
	if one := string(got.Results[0]["default"]); `{"default":`+one+"}\n" != single {
		t.Errorf("in a batch %s, alone %s", one, single)
	}
	if got.Results[2]["default"] == nil || !reflect.DeepEqual(index.asked[1].Hashes, hashesOf(1, 2)) || len(index.asked) != 3 {
		t.Errorf("%s", w.Body)
	}
	for i, field := range map[int]string{1: `"token_ids"`, 3: `"queries"`, 4: `"model"`} {
		if string(got.Results[i]["field"]) != field || got.Results[i]["reason"] == nil {
			t.Errorf("%d: %s", i, got.Results[i])
		}
	}
	packed := ask(t, h, "/query_batch", pack(t, map[string]any{"queries": []any{
		map[string]any{"model": "m", "token_ids": []int{1}}, map[string]any{"model": "m", "seq_hashes": []any{1, []int{2}}, "block_size": 16}, map[string]any{"mode": "m"},
	}}), "Content-Type", msgpackType)
	results, ok := unpack(t, packed.Body.Bytes())["results"].([]any)
	if !ok || len(results) != 3 {
		t.Fatalf("%d %x", packed.Code, packed.Body)
	}
	for i, key := range []string{"instances", "error", "error"} {
		if one, ok := results[i].(map[string]any); !ok || one[key] == nil {
			t.Errorf("%d: %v", i, results[i])
		}
	}
	many := `{"queries":[` + strings.Repeat(`{},`, maxBatch) + `{}]}`
	for body, status := range map[string]int{`{"queries":[{]}`: 400, `{}`: 400, `{"queries":[],"queries":[]}`: 400, many: 400, `{"queries":[]}`: 200} {
		if w := ask(t, h, "/query_batch", body); w.Code != status {
			t.Errorf("%.60s: %d %s", body, w.Code, w.Body)
		}
	}
}

func TestServicesAndViews(t *testing.T) {
	index := &fakeIndex{
		view:  contract.View{Contexts: []contract.ModelContext{{Model: "m", LoRA: "l", BlockTokens: 16, AdditionalSalt: "s", Tenant: "t", Instance: "i"}}, Hashes: []contract.HashPair{{Engine: 1<<64 - 1, Index: 2}, {Engine: 3, Index: 4}}},
		stats: contract.Stats{Blocks: 5, Bytes: 6, Queries: 7}, unready: []string{"reading a snapshot"}, snapshot: "all of it",
	}
	h := serve(index, nil)
	if w := ask(t, h, "/services", ""); w.Body.String() != `{"count":0,"services":[]}`+"\n" {
		t.Errorf("%s", w.Body)
	}
	ask(t, h, "/register", documented)
	index.services[0].State, index.services[0].Since, index.services[0].Heard = contract.Incomplete, 12, time.UnixMilli(34)
	var list struct {
		Count    int
		Services []map[string]any
	}
	if err := json.Unmarshal(ask(t, h, "/services", "").Body.Bytes(), &list); err != nil || list.Count != 1 {
		t.Fatal(err, list)
	}
	for key, want := range map[string]any{
		"Endpoint": "tcp://1.1.1.1:5557", "ReplayEndpoint": "tcp://1.1.1.1:5558", "Type": "vLLM", "ModelName": "deepseek", "LoraName": "sql-adapter", "TenantID": "default",
		"InstanceID": "vllm-prefill-node1", "BlockSize": 128.0, "DPRank": 0.0, "AdditionalSalt": "w8a8", "state": "incomplete", "complete_since": 12.0, "heard_ms": 34.0,
	} {
		if list.Services[0][key] != want {
			t.Errorf("%s is %v, want %v", key, list.Services[0][key], want)
		}
	}
	if w := ask(t, h, "/global_view", ""); w.Body.String() != `{"context_count":1,"model_contexts":[{"model_name":"m","lora_name":"l","block_size":16,"additional_salt":"s","tenant_id":"t","instance_id":"i"}],"hashmap":[{"18446744073709551615":2},{"3":4}]}`+"\n" {
		t.Errorf("%s", w.Body)
	}
	if w := ask(t, h, "/global_view?limit=1", ""); !strings.Contains(w.Body.String(), `"hashmap":[{"18446744073709551615":2}],"truncated":true`) {
		t.Errorf("%s", w.Body)
	}
	if w := ask(t, h, "/stats", ""); w.Body.String() != `{"ready":false,"reasons":["reading a snapshot"],"services":1,"states":{"incomplete":1},"blocks":5,"bytes":6,"max_bytes":0,"queries":7,"tokens_asked":0,"tokens_matched":0}`+"\n" {
		t.Errorf("%s", w.Body)
	}
	if w := ask(t, h, "/services", "", "Accept", msgpackType); unpack(t, w.Body.Bytes())["count"] == nil {
		t.Errorf("%x", w.Body)
	}
	if w := ask(t, h, "/snapshot", ""); w.Body.String() != "all of it" {
		t.Errorf("%s", w.Body)
	}
}

// A snapshot that fails is not taken for a whole one.
func TestBrokenSnapshot(t *testing.T) {
	index := &fakeIndex{snapshotErr: errTest}
	server := httptest.NewServer(serve(index, nil))
	defer server.Close()
	index.snapshot = strings.Repeat("x", 1<<16)
	response, err := server.Client().Get(server.URL + "/snapshot")
	if err == nil {
		_, err = io.ReadAll(response.Body)
		_ = response.Body.Close()
	}
	if err == nil {
		t.Error("a part of a snapshot was read as a whole one")
	}
	index.snapshot = ""
	if w := ask(t, serve(index, nil), "/snapshot", ""); w.Code != http.StatusInternalServerError {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// slowSnapshot waits in the middle of one.
type slowSnapshot struct {
	fakeIndex
	begun, goOn chan struct{}
}

func (x *slowSnapshot) Snapshot(_ context.Context, to io.Writer) error {
	x.begun <- struct{}{}
	<-x.goOn
	_, err := io.WriteString(to, "all of it")
	return err
}

func TestOneSnapshotAtATime(t *testing.T) {
	index := &slowSnapshot{begun: make(chan struct{}, 1), goOn: make(chan struct{})}
	h := serve(index, nil)
	first := make(chan *httptest.ResponseRecorder)
	go func() { first <- ask(t, h, "/snapshot", "") }()
	<-index.begun
	second := make(chan *httptest.ResponseRecorder, 1)
	go func() { second <- ask(t, h, "/snapshot", "") }()
	select {
	case w := <-second:
		if w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") == "" {
			t.Errorf("%d %s", w.Code, w.Body)
		}
	case <-index.begun:
		t.Error("two at a time")
	}
	close(index.goOn)
	if w := <-first; w.Code != http.StatusOK || w.Body.String() != "all of it" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if w := ask(t, h, "/snapshot", ""); w.Code != http.StatusOK {
		t.Errorf("after it: %d %s", w.Code, w.Body)
	}
}

func TestBodyLimits(t *testing.T) {
	h := serve(&fakeIndex{}, func(c *Config) { c.MaxBodyBytes, c.MaxBusyBytes = 100, 150 })
	long := `{"model":"` + strings.Repeat("m", 200) + `"}`
	if w := ask(t, h, "/query", long); w.Code != http.StatusRequestEntityTooLarge {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	server := httptest.NewServer(h)
	defer server.Close()
	post := func(body io.Reader) int {
		t.Helper()
		response, err := server.Client().Post(server.URL+"/query", "application/json", body)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		return response.StatusCode
	}
	// Without a length in front of it.
	if status := post(io.MultiReader(strings.NewReader(long))); status != http.StatusRequestEntityTooLarge {
		t.Errorf("%d", status)
	}
	if status := post(io.MultiReader(strings.NewReader(`{"model":"m","token_ids":[1]}`))); status != http.StatusOK {
		t.Errorf("%d", status)
	}
	// A body that takes its time counts as long as it does; then there is room again.
	var slow []net.Conn
	for range 4 {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := fmt.Fprintf(conn, "POST /query HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"); err != nil {
			t.Fatal(err)
		}
		slow = append(slow, conn)
	}
	body := `{"model":"m","token_ids":[1]}` + strings.Repeat(" ", 60)
	await(t, func() bool { return post(strings.NewReader(body)) == http.StatusServiceUnavailable })
	for _, conn := range slow {
		_ = conn.Close()
	}
	await(t, func() bool { return post(strings.NewReader(body)) == http.StatusOK })
}

// await asks until something is so.
func await(t *testing.T, so func() bool) {
	t.Helper()
	for range 2000 {
		if so() {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatal("it did not come to be")
}

func TestTokens(t *testing.T) {
	var tokens Tokens
	h := tokens.Protect(serve(&fakeIndex{}, nil))
	if w := ask(t, h, "/services", ""); w.Code != http.StatusOK {
		t.Errorf("without tokens: %d", w.Code)
	}
	tokens.Set([]string{"0123456789abcdef", "fedcba9876543210"})
	for header, status := range map[string]int{
		"": 401, "Bearer": 401, "Bearer ": 401, "Bearer x": 401, "Basic 0123456789abcdef": 401, "0123456789abcdef": 401, "Bearer 0123456789abcdef": 200, "bearer  fedcba9876543210": 200,
	} {
		if w := ask(t, h, "/services", "", "Authorization", header); w.Code != status || status == 401 && w.Header().Get("WWW-Authenticate") != "Bearer" {
			t.Errorf("%q: %d", header, w.Code)
		}
	}
	tokens.Set([]string{"another token of mine"})
	if w := ask(t, h, "/services", "", "Authorization", "Bearer 0123456789abcdef"); w.Code != http.StatusUnauthorized {
		t.Errorf("a token that was taken back: %d", w.Code)
	}
}

func TestReadTokens(t *testing.T) {
	write := func(text string, mode os.FileMode) string {
		name := filepath.Join(t.TempDir(), "tokens")
		if err := os.WriteFile(name, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return name
	}
	got, err := ReadTokens(write("# ours\n\n 0123456789abcdef \nfedcba9876543210", 0o600))
	if err != nil || !reflect.DeepEqual(got, []string{"0123456789abcdef", "fedcba9876543210"}) {
		t.Errorf("%q, %v", got, err)
	}
	for name, file := range map[string]string{
		"open to all": write("0123456789abcdef", 0o604), "short": write("0123456789abcde", 0o600), "none": write("# none\n", 0o600), "two words": write("0123456789 abcdef", 0o600),
		"missing": filepath.Join(t.TempDir(), "none"), "large": write(strings.Repeat("x", maxTokensBytes+1), 0o600),
	} {
		if _, err := ReadTokens(file); !errors.Is(err, ErrTokenFile) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// What is being answered is seen by who counts, whatever comes of it.
func TestAnswered(t *testing.T) {
	var mu sync.Mutex
	counted := map[string]int{}
	var log bytes.Buffer
	h := serve(&fakeIndex{registerErr: errTest}, func(c *Config) {
		c.Answered = func(call string, status int, took time.Duration) {
			mu.Lock()
			defer mu.Unlock()
			counted[fmt.Sprint(call, " ", status, " ", took >= 0)]++
		}
		c.Log = slog.New(slog.NewTextHandler(&log, nil))
	})
	ask(t, h, "/query", query)
	ask(t, h, "/query", "{")
	ask(t, h, "/register", documented)
	ask(t, h, "/register", "")
	want := map[string]int{"/query 200 true": 1, "/query 400 true": 1, "/register 500 true": 1, "/register 405 true": 1}
	if !reflect.DeepEqual(counted, want) {
		t.Errorf("counted %v", counted)
	}
	if strings.Count(log.String(), "a call failed") != 1 {
		t.Errorf("logged %s", &log)
	}
}

func TestRegisterEngine(t *testing.T) {
	index := &fakeIndex{}
	var wished contract.Service
	h := serve(index, func(c *Config) {
		c.Discover = func(_ context.Context, engine string, wish contract.Service) ([]contract.Service, error) {
			if wished = wish; engine != "http://e:8000" {
				return nil, errTest
			}
			one := contract.Service{Endpoint: "tcp://e:1", Model: "m", Instance: wish.Instance, Tenant: wish.Tenant}
			two := one
			two.Rank = 1
			return []contract.Service{one, two}, nil
		}
	})
	w := ask(t, h, "/register", `{"engine":"http://e:8000","tenant_id":"t","additionalsalt":"s"}`)
	if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), `"registered":["http://e:8000|t|0","http://e:8000|t|1"]`) || len(index.services) != 2 || wished.AdditionalSalt != "s" {
		t.Errorf("%d %s, wished %+v", w.Code, w.Body, wished)
	}
	if w := ask(t, h, "/register", `{"engine":"http://other:8000"}`); w.Code != http.StatusBadRequest || w.Body.String() != "engine: on purpose\n" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}
