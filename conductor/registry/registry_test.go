package registry

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/mooncake-sidecar/sidecar/conductor/contract"
	"github.com/mooncake-sidecar/sidecar/conductor/prefixindex"
)

func valid() contract.Service {
	return contract.Service{Endpoint: "tcp://10.0.0.1:5557", ReplayEndpoint: "tcp://10.0.0.1:6557", Type: "vllm", Model: "m", Instance: "a", BlockTokens: 16}
}

func TestPrepare(t *testing.T) {
	s := valid()
	if err := Prepare(&s); err != nil || s.Tenant != "default" || s.Type != contract.TypeVLLM {
		t.Errorf("%+v, %v", s, err)
	}
	for name, c := range map[string]struct {
		change func(*contract.Service)
		field  string
	}{
		"ipc":            {func(s *contract.Service) { s.Endpoint, s.ReplayEndpoint = "ipc:///run/e", "" }, ""},
		"IPv6":           {func(s *contract.Service) { s.Endpoint = "tcp://[fd00::1]:5557" }, ""},
		"block size":     {func(s *contract.Service) { s.BlockTokens = 0 }, ""},
		"a shared store": {func(s *contract.Service) { s.Type, s.Rank = "mooncake", prefixindex.Shared }, ""},

		"no endpoint":      {func(s *contract.Service) { s.Endpoint = "" }, "endpoint"},
		"every address":    {func(s *contract.Service) { s.Endpoint = "tcp://*:5557" }, "endpoint"},
		"every address 4":  {func(s *contract.Service) { s.Endpoint = "tcp://0.0.0.0:5557" }, "endpoint"},
		"every address 6":  {func(s *contract.Service) { s.Endpoint = "tcp://[::]:5557" }, "endpoint"},
		"no port":          {func(s *contract.Service) { s.Endpoint = "tcp://10.0.0.1" }, "endpoint"},
		"port 0":           {func(s *contract.Service) { s.Endpoint = "tcp://10.0.0.1:0" }, "endpoint"},
		"a large port":     {func(s *contract.Service) { s.ReplayEndpoint = "tcp://10.0.0.1:65536" }, "replay_endpoint"},
		"inproc":           {func(s *contract.Service) { s.Endpoint = "inproc://e" }, "endpoint"},
		"http":             {func(s *contract.Service) { s.Endpoint = "http://10.0.0.1:80" }, "endpoint"},
		"a relative path":  {func(s *contract.Service) { s.Endpoint = "ipc://e" }, "endpoint"},
		"a long endpoint":  {func(s *contract.Service) { s.Endpoint = "ipc:///" + strings.Repeat("e", 1000) }, "endpoint"},
		"no UTF-8":         {func(s *contract.Service) { s.Endpoint = "tcp://\xff:1" }, "endpoint"},
		"no type":          {func(s *contract.Service) { s.Type = "" }, "type"},
		"no model":         {func(s *contract.Service) { s.Model = "" }, "modelname"},
		"no instance":      {func(s *contract.Service) { s.Instance = "" }, "instance_id"},
		"a long tenant":    {func(s *contract.Service) { s.Tenant = strings.Repeat("t", 1000) }, "tenant_id"},
		"a long seed":      {func(s *contract.Service) { s.Hash.Seed = strings.Repeat("0", 70_000) }, "python_hash_seed"},
		"a long algorithm": {func(s *contract.Service) { s.Hash.Algorithm = strings.Repeat("0", 70_000) }, "algorithm"},
		"no text":          {func(s *contract.Service) { s.AdditionalSalt = "\xff" }, "additionalsalt"},
		"a negative size":  {func(s *contract.Service) { s.BlockTokens = -1 }, "block_size"},
		"a negative rank":  {func(s *contract.Service) { s.Rank = -2 }, "dp_rank"},
		"an engine shared": {func(s *contract.Service) { s.Rank = prefixindex.Shared }, "dp_rank"},
		"a large rank":     {func(s *contract.Service) { s.Rank = 1 << 20 }, "dp_rank"},
	} {
		s := valid()
		c.change(&s)
		err := Prepare(&s)
		var fault *contract.FieldError
		if c.field == "" && err != nil || c.field != "" && (!errors.As(err, &fault) || fault.Field != c.field || !errors.Is(err, contract.ErrInvalid)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAddAndRemove(t *testing.T) {
	r := New(2)
	s := valid()
	if _, made, err := r.Add(s); err != nil || made.Existed {
		t.Fatal(made, err)
	}
	s.Tenant = "default" // as it is kept
	if _, made, err := r.Add(s); err != nil || !made.Existed {
		t.Error(made, err)
	}
	for field, change := range map[string]func(*contract.Service){
		"endpoint": func(s *contract.Service) { s.Endpoint = "ipc:///e" }, "modelname": func(s *contract.Service) { s.Model = "n" },
		"block_size": func(s *contract.Service) { s.BlockTokens = 32 }, "hash profile": func(s *contract.Service) { s.Hash.Seed = "1" },
	} {
		other := s
		change(&other)
		if _, _, err := r.Add(other); !errors.Is(err, contract.ErrConflict) || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
	second, third := s, s
	second.Rank, third.Rank = 1, 2
	if _, _, err := r.Add(second); err != nil {
		t.Error(err)
	}
	if _, _, err := r.Add(third); !errors.Is(err, contract.ErrLimit) {
		t.Error(err)
	}
	if err := r.Remove(s.Key()); err != nil {
		t.Error(err)
	}
	if err := r.Remove(s.Key()); !errors.Is(err, contract.ErrNotFound) {
		t.Error(err)
	}
	if _, _, err := r.Add(third); err != nil {
		t.Error(err)
	}
	if r.Warnings(s.Key()) != nil {
		t.Error("somebody who is not there is warned of")
	}
}

// Ports that meet are told of, once one looks at either.
func TestWarnings(t *testing.T) {
	at := func(instance string, rank, events, replay int) contract.Service {
		s := valid()
		s.Instance, s.Rank, s.Endpoint, s.ReplayEndpoint = instance, rank, fmt.Sprint("tcp://h:", events), fmt.Sprint("tcp://h:", replay)
		return s
	}
	for _, c := range []struct {
		name     string
		services []contract.Service
		warned   []int // of them
	}{
		{"apart", []contract.Service{at("a", 0, 5557, 5657), at("a", 1, 5558, 5658)}, nil},
		{"the usual pair with two ranks", []contract.Service{at("a", 0, 5557, 5558), at("a", 1, 5558, 5559)}, []int{0, 1}},
		{"one port", []contract.Service{at("a", 0, 5557, 5657), at("a", 1, 5557, 5657)}, []int{0, 1}},
		{"one replay port", []contract.Service{at("a", 0, 5557, 5657), at("b", 0, 5558, 5657)}, []int{0, 1}},
		{"its own", []contract.Service{at("a", 0, 5557, 5557)}, []int{0}},
	} {
		r := New(10)
		for _, s := range c.services {
			if _, _, err := r.Add(s); err != nil {
				t.Fatal(err)
			}
		}
		var warned []int
		for i := range c.services {
			s := c.services[i]
			s.Tenant = "default"
			if warnings := r.Warnings(s.Key()); len(warnings) > 0 {
				warned = append(warned, i)
			}
		}
		if !slices.Equal(warned, c.warned) {
			t.Errorf("%s: warned of %v", c.name, warned)
		}
	}
}

// Who is near is known at once, however many there are, and those that are gone are not: what
// is warned of is what comparing each with each finds.
func TestNear(t *testing.T) {
	r := New(1000)
	random := rand.New(rand.NewPCG(1, 2))
	var all []contract.Service
	port := func(from int) string { return fmt.Sprint("tcp://h:", from+random.IntN(3)) }
	for range 2000 {
		if len(all) == 0 || random.IntN(3) > 0 {
			s := valid()
			s.Instance, s.Tenant, s.Rank, s.Topic = string(rune('a'+random.IntN(3))), string(rune('s'+random.IntN(2))), random.IntN(3), string(rune('x'+random.IntN(2)))
			s.Endpoint, s.ReplayEndpoint = port(5557), port(5558)
			if s.Type = contract.TypeVLLM; random.IntN(4) == 0 {
				s.Type = contract.TypeMooncake
			}
			if random.IntN(4) == 0 {
				s.ReplayEndpoint = ""
			}
			if _, _, err := r.Add(s); err == nil && !slices.Contains(all, s) {
				all = append(all, s)
			}
		} else {
			i := random.IntN(len(all))
			if err := r.Remove(all[i].Key()); err != nil {
				t.Fatal(err)
			}
			all = slices.Delete(all, i, i+1)
		}
		for i := range all {
			s, want := &all[i], map[string]bool{}
			for j := range all {
				other := &all[j]
				if i == j {
					continue
				}
				want["is the endpoint of"] = want["is the endpoint of"] || other.Type != contract.TypeMooncake && other.Endpoint == s.Endpoint && other.Topic == s.Topic && (other.Instance != s.Instance || other.Rank != s.Rank)
				want["is the replay endpoint of"] = want["is the replay endpoint of"] || other.ReplayEndpoint == s.Endpoint ||
					s.ReplayEndpoint != "" && s.ReplayEndpoint != s.Endpoint && other.ReplayEndpoint == s.ReplayEndpoint && other.Endpoint != s.Endpoint
				want["are asked for at"] = want["are asked for at"] || s.ReplayEndpoint != "" && s.ReplayEndpoint != s.Endpoint && other.Endpoint == s.ReplayEndpoint
			}
			want["publisher's own"] = s.ReplayEndpoint == s.Endpoint
			text := strings.Join(r.Warnings(s.Key()), "; ")
			for part, is := range want {
				if strings.Contains(text, part) != is || strings.Contains(text, s.Key().String()) {
					t.Fatalf("%+v of %+v: %q, want %v", s, all, text, want)
				}
			}
		}
	}
	for i := range all {
		if err := r.Remove(all[i].Key()); err != nil {
			t.Fatal(err)
		}
	}
	if len(r.crowds) != 0 {
		t.Errorf("%v", r.crowds)
	}
}

// Many services at one endpoint are told of in a few words.
func TestManyAtOneEndpoint(t *testing.T) {
	r := New(1000)
	for i := range 1000 {
		s := valid()
		s.Rank = i
		if _, _, err := r.Add(s); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 1000 {
		warnings := r.Warnings(contract.ServiceKey{Instance: "a", Tenant: "default", Rank: i})
		if len(warnings) != 1 || !strings.Contains(warnings[0], "(and of 998 more)") {
			t.Fatalf("%q", warnings)
		}
	}
	if allocs := testing.AllocsPerRun(10, func() { r.Warnings(contract.ServiceKey{Instance: "a", Tenant: "default", Rank: 500}) }); allocs > 50 {
		t.Errorf("%v allocations for one of 1,000", allocs)
	}
}

// recordedSources is what the API server of vLLM 0.32 answers, of two ranks.
const recordedSources = `{"0":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:6557","buffer_steps":10000,"hwm":100000,"max_queue_size":100000,"topic":""},
"1":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://10.1.2.3:41234","replay_endpoint":null,"buffer_steps":10000,"hwm":100000,"max_queue_size":100000,"topic":"kv"}}`

func TestSources(t *testing.T) {
	answer := recordedSources
	status := http.StatusOK
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/kv_event_sources":
			w.WriteHeader(status)
			fmt.Fprint(w, answer)
		case "/v1/models":
			fmt.Fprint(w, `{"object":"list","data":[{"id":"org/model"},{"id":"adapter"}]}`)
		default:
			http.NotFound(w, r)
		}
	}))
	defer server.Close()
	at, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	sources := func(like contract.Service) ([]contract.Service, error) {
		return Sources(t.Context(), server.Client(), server.URL, &like)
	}
	got, err := sources(contract.Service{Instance: "a"})
	want := []contract.Service{
		{Endpoint: "tcp://" + at.Hostname() + ":5557", ReplayEndpoint: "tcp://" + at.Hostname() + ":6557", Type: contract.TypeVLLM, Model: "org/model", Tenant: "default", Instance: "a"},
		{Endpoint: "tcp://10.1.2.3:41234", Type: contract.TypeVLLM, Model: "org/model", Tenant: "default", Instance: "a", Rank: 1, Topic: "kv"},
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err = sources(contract.Service{Instance: "a", Model: "mine", Type: contract.TypeSGLang}); err != nil || got[0].Model != "mine" || got[1].Type != contract.TypeSGLang {
		t.Errorf("%+v, %v", got, err)
	}
	for _, answer = range []string{`{}`, `{"0":{"enable_kv_cache_events":false,"publisher":"null","endpoint":"tcp://*:5557"}}`} {
		if _, err := sources(contract.Service{Instance: "a"}); !errors.Is(err, ErrNoEvents) {
			t.Errorf("%s: %v", answer, err)
		}
	}
	for _, answer = range []string{`[]`, `{"x":{"endpoint":"tcp://h:1"}}`, `{"0":{"endpoint":"tcp://h"}}`, `{"0":`, `{"0":{"endpoint":"` + strings.Repeat("e", maxSourcesBytes) + `"}}`} {
		if got, err := sources(contract.Service{Instance: "a"}); err == nil {
			t.Errorf("%.40s: %+v", answer, got)
		}
	}
	answer, status = recordedSources, http.StatusUnauthorized
	if _, err := sources(contract.Service{Instance: "a"}); err == nil || !strings.Contains(err.Error(), "401") {
		t.Error(err)
	}
	for _, base := range []string{"", "engine:8000", "tcp://h:1", "http://"} {
		if _, err := Sources(t.Context(), server.Client(), base, &contract.Service{}); !errors.Is(err, contract.ErrInvalid) {
			t.Errorf("%q: %v", base, err)
		}
	}
}

func FuzzSources(f *testing.F) {
	f.Add([]byte(recordedSources))
	f.Fuzz(func(t *testing.T, answer []byte) {
		server := func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(answer) }
		client := &http.Client{Transport: inProcess(server)}
		like := contract.Service{Instance: "a", Model: "m"}
		got, err := Sources(t.Context(), client, "http://h:8000", &like)
		for i := range got {
			if again := got[i]; err != nil || Prepare(&again) != nil || again != got[i] {
				t.Errorf("%+v", got[i])
			}
		}
	})
}

// inProcess has a handler answer without a socket.
type inProcess http.HandlerFunc

func (h inProcess) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	h(w, r)
	return w.Result(), nil
}
