package api

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"

	"github.com/mooncake-sidecar/sidecar/conductor/contract"
	"github.com/mooncake-sidecar/sidecar/conductor/prefixindex"
)

// registration is a call of /register or /unregister as it is being read.
type registration struct {
	contract.Service
	kind            string
	blockSize, rank number
	group           number
	// engine is the address of a server that is asked for its streams.
	engine string
	// strategy and projection of a hash profile say what we do in any case.
	strategy, projection string
}

// field reads one field of /register.
func (g *registration) field(name string, v value) error {
	known, ok := canonical(name, v, "endpoint", "replay_endpoint", "type", "modelname", "lora_name", "tenant_id", "instance_id", "block_size",
		"dp_rank", "additionalsalt", "topic", "hash_profile", "cache_group", "engine")
	if !ok {
		return unknownField(name, v)
	}
	return inField(known, g.read(known, v))
}

func (g *registration) read(name string, v value) error {
	switch name {
	case "block_size":
		return g.blockSize.read(v)
	case "dp_rank":
		return g.rank.read(v)
	case "cache_group":
		return g.group.read(v)
	case "hash_profile":
		if v.null() {
			return nil
		}
		return v.object(g.profileField)
	}
	return optionalText(v, map[string]*string{
		"endpoint": &g.Endpoint, "replay_endpoint": &g.ReplayEndpoint, "type": &g.kind, "modelname": &g.Model, "lora_name": &g.LoRA,
		"tenant_id": &g.Tenant, "instance_id": &g.Instance, "additionalsalt": &g.AdditionalSalt, "topic": &g.Topic, "engine": &g.engine,
	}[name])
}

func (g *registration) profileField(name string, v value) error {
	into := map[string]*string{
		"strategy": &g.strategy, "algorithm": &g.Hash.Algorithm, "python_hash_seed": &g.Hash.Seed, "index_projection": &g.projection,
	}
	known, ok := canonical(name, v, "strategy", "algorithm", "python_hash_seed", "index_projection")
	if !ok {
		return unknownField("hash_profile."+name, v)
	}
	return inField("hash_profile."+known, optionalText(v, into[known]))
}

// complete checks a registration, and fills in what was left out.
func (g *registration) complete() (err error) {
	switch {
	case g.Endpoint == "":
		return missing("endpoint", "where the engine publishes its KV events, tcp://10.0.0.1:5557")
	case g.Model == "":
		return missing("modelname", "the name of the model in requests")
	}
	if err := g.completeKey(); err != nil {
		return err
	}
	if g.BlockTokens, err = g.blockSize.blockSize(); err != nil {
		return err
	}
	if err := checkEndpoint("endpoint", g.Endpoint); err != nil {
		return err
	}
	if g.ReplayEndpoint != "" {
		if err := checkEndpoint("replay_endpoint", g.ReplayEndpoint); err != nil {
			return err
		}
	}
	var ok bool
	if g.Type, ok = contract.ParseType(g.kind); g.kind == "" {
		g.Type = contract.TypeVLLM
	} else if !ok {
		return &contract.FieldError{Field: "type", Reason: reasonValue, Text: fmt.Sprintf("%q; want %s, %s or %s", shorten(g.kind), contract.TypeVLLM, contract.TypeSGLang, contract.TypeMooncake)}
	}
	if g.group.n != 0 {
		return &contract.FieldError{Field: "cache_group", Reason: "unsupported", Text: "groups are told apart by the events; want 0 or none"}
	}
	return g.checkProfile()
}

// maxRank is more than any engine has.
const maxRank = 1<<16 - 1

// completeKey checks what names a service.
func (g *registration) completeKey() error {
	switch {
	case g.Instance == "":
		return missing("instance_id", "the name of the engine in answers")
	case strings.ContainsAny(g.Instance+g.Tenant, "|\n\r\x00"):
		return &contract.FieldError{Field: "instance_id", Reason: reasonValue, Text: "neither instance_id nor tenant_id may have a | or a line break in it"}
	case g.rank.n < 0 || g.rank.n > maxRank:
		return &contract.FieldError{Field: "dp_rank", Reason: reasonRange, Text: fmt.Sprintf("%d; want 0 to %d", g.rank.n, maxRank)}
	}
	g.Rank = int(g.rank.n)
	if g.Tenant == "" {
		g.Tenant = prefixindex.DefaultTenant
	}
	return nil
}

// checkEndpoint says what is wrong with an endpoint that is to be connected to.
func checkEndpoint(field, endpoint string) error {
	wrong := func(why string) error {
		return &contract.FieldError{Field: field, Reason: reasonValue, Text: fmt.Sprintf("%q %s", shorten(endpoint), why)}
	}
	if path, ok := strings.CutPrefix(endpoint, "ipc://"); ok && path != "" {
		return nil
	}
	address, ok := strings.CutPrefix(endpoint, "tcp://")
	host, port, err := net.SplitHostPort(address)
	if !ok || err != nil {
		return wrong("is no endpoint; want tcp://host:port or ipc:///path")
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return wrong("has no port; want a number from 1 to 65535")
	}
	if ip := net.ParseIP(host); host == "*" || host == "" || ip != nil && ip.IsUnspecified() {
		return wrong("is where the engine listens; want an address at which it can be reached from here")
	}
	return nil
}

func (g *registration) checkProfile() error {
	wrong := func(field, got, want string) error {
		return &contract.FieldError{Field: "hash_profile." + field, Reason: "unsupported", Text: fmt.Sprintf("%q; want %s", shorten(got), want)}
	}
	switch g.Hash.Algorithm {
	case "", "sha256", "sha256_cbor", "xxhash", "xxhash_cbor":
	default:
		return wrong("algorithm", g.Hash.Algorithm, "sha256, sha256_cbor, xxhash or xxhash_cbor")
	}
	switch {
	case g.strategy != "" && g.strategy != "vllm_v1":
		return wrong("strategy", g.strategy, "vllm_v1")
	case g.projection != "" && g.projection != "low64_be":
		return wrong("index_projection", g.projection, "low64_be")
	}
	if seed := g.Hash.Seed; seed != "" && seed != "random" {
		if _, err := strconv.ParseUint(seed, 10, 32); err != nil || strings.Trim(seed, "0123456789") != "" {
			return wrong("python_hash_seed", seed, "random, or a number of 32 bits as a text")
		}
	}
	return nil
}

// readBody reads a call's body, field by field.
func (s *Server) readBody(w http.ResponseWriter, r *http.Request, visit func(name string, v value) error) error {
	sc := s.rooms.take()
	defer s.rooms.give(sc)
	body, err := s.rooms.read(w, r, sc)
	switch {
	case err != nil:
		return err
	case bodyForm(r) == formMsgpack:
		return readMsgpack(body, visit)
	}
	return readJSON(body, visit)
}

// registered is the answer of /register.
type registered struct {
	Status   string `json:"status" msgpack:"status"`
	Instance string `json:"instance_id" msgpack:"instance_id"`
	// Existed: nothing had to be done.
	Existed bool `json:"existed,omitempty" msgpack:"existed,omitempty"`
	// Keys of the streams of an engine that was asked.
	Keys     []string `json:"registered,omitempty" msgpack:"registered,omitempty"`
	Warnings []string `json:"warnings,omitempty" msgpack:"warnings,omitempty"`
}

// register answers /register.
func (s *Server) register(w http.ResponseWriter, r *http.Request) error {
	var g registration
	if err := s.readBody(w, r, g.field); err != nil {
		return err
	}
	if g.engine != "" && g.Endpoint == "" {
		return s.registerEngine(w, r, &g)
	}
	if err := g.complete(); err != nil {
		return err
	}
	made, err := s.cfg.Index.Register(r.Context(), g.Service)
	if err != nil {
		return err
	}
	return s.reply(w, r, &registered{Status: "registered successfully", Instance: g.Instance, Existed: made.Existed, Warnings: made.Warnings})
}

// registerEngine registers all streams of an engine, which its server is asked for.
func (s *Server) registerEngine(w http.ResponseWriter, r *http.Request, g *registration) (err error) {
	if s.cfg.Discover == nil {
		return fmt.Errorf("engine: %w", errNotOffered)
	}
	if g.Instance == "" {
		g.Instance = g.engine
	}
	if err := g.completeKey(); err != nil {
		return err
	}
	if g.BlockTokens, err = g.blockSize.blockSize(); err != nil {
		return err
	}
	if err := g.checkProfile(); err != nil {
		return err
	}
	services, err := s.cfg.Discover(r.Context(), g.engine, g.Service)
	if err != nil {
		return &contract.FieldError{Field: "engine", Reason: reasonValue, Text: err.Error()}
	}
	reply := &registered{Status: "registered successfully", Instance: g.Instance, Existed: true}
	for i := range services {
		made, err := s.cfg.Index.Register(r.Context(), services[i])
		if err != nil {
			return fmt.Errorf("%s: %w", services[i].Key(), err)
		}
		reply.Existed = reply.Existed && made.Existed
		reply.Keys = append(reply.Keys, services[i].Key().String())
		reply.Warnings = append(reply.Warnings, made.Warnings...)
	}
	return s.reply(w, r, reply)
}

// unregister answers /unregister: of the service's fields its key counts.
func (s *Server) unregister(w http.ResponseWriter, r *http.Request) error {
	var g registration
	if err := s.readBody(w, r, g.field); err != nil {
		return err
	}
	if err := g.completeKey(); err != nil {
		return err
	}
	key := g.Key()
	if err := s.cfg.Index.Unregister(r.Context(), key); err != nil {
		if errors.Is(err, contract.ErrNotFound) {
			return fmt.Errorf("%w: %s", contract.ErrNotFound, key)
		}
		return err
	}
	return s.reply(w, r, &struct {
		Status  string   `json:"status" msgpack:"status"`
		Removed []string `json:"removed_instances" msgpack:"removed_instances"`
	}{"unregistered successfully", []string{key.String()}})
}
