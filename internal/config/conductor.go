package config

import (
	"errors"
	"io/fs"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ConductorConfig is the configuration of mooncake-conductor.
type ConductorConfig struct {
	Common
	// Listen is where HTTP is answered. Default 127.0.0.1:13333.
	Listen string
	// GRPCListen is where gRPC is answered, empty for nowhere.
	GRPCListen string
	// AllowRemote lets both be addresses that other machines reach, without a password.
	AllowRemote bool
	// TokenFile has the bearer tokens of those who may call, one a line. Empty: everybody
	// may. It is read again with the configuration.
	TokenFile string
	// TLSCertFile and TLSKeyFile make it TLS; TLSClientCAFile asks clients for certificates
	// that these authorities signed.
	TLSCertFile, TLSKeyFile, TLSClientCAFile string
	// IndexBytes bounds the memory of the index. Default: half of the memory.
	IndexBytes Size
	// MaxServices bounds the streams that are followed. Default 4096.
	MaxServices int
	// MaxBodyBytes bounds the body of a call. Default 32MiB.
	MaxBodyBytes Size
	// SnapshotDir is where the index is kept from one start to the next, empty for nowhere;
	// it is written every SnapshotInterval, 5m by default, and at the end.
	SnapshotDir      string
	SnapshotInterval time.Duration
	// Peers are addresses of conductors whose snapshot a start takes that has none of its
	// own, split at commas.
	Peers string
	// Engines are those whose servers are asked for their streams, and whom serve sends
	// requests to; see ParseEngines.
	Engines string
	// EngineKeyFile has the key that engines ask for (vLLM's --api-key). Empty: none.
	EngineKeyFile string
	// ContractFile is a conductor_config.json of Mooncake Conductor. Default:
	// $CONDUCTOR_CONFIG_PATH, else ~/.mooncake/conductor_config.json where there is one.
	ContractFile string
	// Seed of the index's digests; empty: drawn at the first start. Conductors that give
	// each other snapshots need the same.
	Seed string
	Routing

	// Static are the services of ContractFile.
	Static []StaticService
	// Notes are what the log should say of the configuration.
	Notes []string
}

// Routing is how serve sends requests.
type Routing struct {
	// Policy by which an engine is chosen. Default kvcache-centric.
	Policy string
	// Admission says when a request is refused. Default early.
	Admission string
	// Pooled: engines share a store. Default false.
	Pooled bool
	// TTFT and TBT are the objectives of requests that name none; 0: none.
	TTFT, TBT time.Duration
	// TokenizeTimeout is how long a request waits for its token ids. Default 200ms.
	TokenizeTimeout time.Duration
	// FirstByteTimeout is how long an engine may take for the first byte of a stream, or for
	// a prefill. Default 10m.
	FirstByteTimeout time.Duration
	// MaxInFlight requests are at engines at a time, MaxWaiting more wait. Default 4096,
	// 1024.
	MaxInFlight, MaxWaiting int
	// Attempts is how many engines a request is sent to at most. Default 3.
	Attempts int
	// CopyAfter uses in a minute, for each engine that has it, a prefix is copied to one more;
	// 0: none is.
	CopyAfter int
	// SendTokens and SendPriority are the router's of the same names.
	SendTokens, SendPriority bool
}

// SectionConductor is the conductor's section of the file.
const SectionConductor = "conductor"

// DefaultConductorPort is Mooncake Conductor's.
const DefaultConductorPort = "13333"

// SetDefaults fills in what is unset. root is the root file system, from which the
// memory size is read.
func (c *ConductorConfig) SetDefaults(root fs.FS) {
	c.Common.setDefaults()
	if c.Listen == "" {
		c.Listen = "127.0.0.1:" + DefaultConductorPort
	}
	if c.IndexBytes == 0 {
		c.IndexBytes = 2 * DefaultStoreBytes(root)
	}
	if c.MaxServices == 0 {
		c.MaxServices = 4096
	}
	if c.MaxBodyBytes == 0 {
		c.MaxBodyBytes = 32 << 20
	}
	if c.SnapshotInterval == 0 {
		c.SnapshotInterval = 5 * time.Minute
	}
	c.Routing.setDefaults()
}

func (r *Routing) setDefaults() {
	if r.Policy == "" {
		r.Policy = "kvcache-centric"
	}
	if r.Admission == "" {
		r.Admission = "early"
	}
	if r.TokenizeTimeout == 0 {
		r.TokenizeTimeout = 200 * time.Millisecond
	}
	if r.FirstByteTimeout == 0 {
		r.FirstByteTimeout = 10 * time.Minute
	}
	if r.MaxInFlight == 0 {
		r.MaxInFlight = 4096
	}
	if r.MaxWaiting == 0 {
		r.MaxWaiting = 1024
	}
	if r.Attempts == 0 {
		r.Attempts = 3
	}
}

// Validate reports everything that is wrong, one line each.
//
// REQUIRES: SetDefaults.
func (c *ConductorConfig) Validate() error {
	return errors.Join(append(c.Common.faults(), c.faults()...)...)
}

// Bounds.
const (
	minIndexBytes  = 16 << 20
	maxServices    = 1 << 20
	minBodyBytes   = 64 << 10
	maxBodyBytes   = 1 << 30
	maxConductors  = 64
	minSnapshotGap = 10 * time.Second
	maxSnapshotGap = 24 * time.Hour
)

func (c *ConductorConfig) faults() (faults []error) {
	protected := c.TokenFile != "" || c.TLSClientCAFile != ""
	faults = append(faults, listenFaults("listen", c.Listen, c.AllowRemote || protected)...)
	if c.GRPCListen != "" {
		faults = append(faults, listenFaults("grpc_listen", c.GRPCListen, c.AllowRemote || protected)...)
		if c.GRPCListen == c.Listen {
			faults = append(faults, fault("grpc_listen", "%q is where HTTP is answered; give it another port", c.GRPCListen))
		}
	}
	switch {
	case (c.TLSCertFile == "") != (c.TLSKeyFile == ""):
		faults = append(faults, fault("tls_cert_file", "a certificate needs its key, and a key its certificate: say tls_cert_file and tls_key_file"))
	case c.TLSClientCAFile != "" && c.TLSCertFile == "":
		faults = append(faults, fault("tls_client_ca_file", "clients show certificates over TLS only: say tls_cert_file and tls_key_file"))
	}
	for key, path := range map[string]string{
		"token_file": c.TokenFile, "tls_cert_file": c.TLSCertFile, "tls_key_file": c.TLSKeyFile, "tls_client_ca_file": c.TLSClientCAFile,
		"snapshot_dir": c.SnapshotDir, "engine_key_file": c.EngineKeyFile,
	} {
		if path != "" && !strings.HasPrefix(path, "/") {
			faults = append(faults, fault(key, "%q is no absolute path", path))
		}
	}
	if c.IndexBytes < minIndexBytes {
		faults = append(faults, fault("index_bytes", "%s; want at least %s", c.IndexBytes, Size(minIndexBytes)))
	}
	if c.MaxServices < 1 || c.MaxServices > maxServices {
		faults = append(faults, fault("max_services", "%d; want 1 to %d", c.MaxServices, maxServices))
	}
	if c.MaxBodyBytes < minBodyBytes || c.MaxBodyBytes > maxBodyBytes {
		faults = append(faults, fault("max_body_bytes", "%s; want %s to %s", c.MaxBodyBytes, Size(minBodyBytes), Size(maxBodyBytes)))
	}
	if c.SnapshotInterval < minSnapshotGap || c.SnapshotInterval > maxSnapshotGap {
		faults = append(faults, fault("snapshot_interval", "%s; want %s to %s", c.SnapshotInterval, minSnapshotGap, maxSnapshotGap))
	}
	if _, err := c.PeerAddresses(); err != nil {
		faults = append(faults, err)
	}
	if _, err := ParseEngines(c.Engines); err != nil {
		faults = append(faults, err)
	}
	if _, _, err := c.SeedNumber(); err != nil {
		faults = append(faults, err)
	}
	return append(faults, c.Routing.faults()...)
}

func (r *Routing) faults() (faults []error) {
	for key, d := range map[string]time.Duration{"ttft": r.TTFT, "tbt": r.TBT} {
		if d < 0 || d > time.Hour {
			faults = append(faults, fault(key, "%s; want 0s (none) to 1h", d))
		}
	}
	if r.TokenizeTimeout < time.Millisecond || r.TokenizeTimeout > time.Minute {
		faults = append(faults, fault("tokenize_timeout", "%s; want 1ms to 1m", r.TokenizeTimeout))
	}
	if r.FirstByteTimeout < time.Second || r.FirstByteTimeout > 24*time.Hour {
		faults = append(faults, fault("first_byte_timeout", "%s; want 1s to 24h", r.FirstByteTimeout))
	}
	for key, n := range map[string]int{"max_in_flight": r.MaxInFlight, "max_waiting": r.MaxWaiting} {
		if n < 1 || n > 1<<20 {
			faults = append(faults, fault(key, "%d; want 1 to %d", n, 1<<20))
		}
	}
	if r.CopyAfter < 0 || r.CopyAfter > 1<<20 {
		faults = append(faults, fault("copy_after", "%d; want 0 (never) to %d", r.CopyAfter, 1<<20))
	}
	if r.Attempts < 1 || r.Attempts > 16 {
		faults = append(faults, fault("attempts", "%d; want 1 to 16", r.Attempts))
	}
	return faults
}

// listenFaults checks an address. open: it may be one that others reach.
func listenFaults(key, address string, open bool) []error {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return []error{fault(key, "%q; want an address and a port, 127.0.0.1:%s", address, DefaultConductorPort)}
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return []error{fault(key, "%q: port %q; want a number up to 65535", address, port)}
	}
	if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) && !open {
		return []error{fault(key, "%q can be reached from other machines, and asks for no password; say token_file or tls_client_ca_file, use 127.0.0.1, or say allow_remote", address)}
	}
	return nil
}

// SeedNumber returns the seed; ok is false when none was given.
func (c *ConductorConfig) SeedNumber() (seed uint64, ok bool, err error) {
	if c.Seed == "" {
		return 0, false, nil
	}
	if seed, err = strconv.ParseUint(c.Seed, 0, 64); err != nil {
		return 0, false, fault("seed", "%q; want a number of 64 bits", c.Seed)
	}
	return seed, true, nil
}

// PeerAddresses returns Peers.
func (c *ConductorConfig) PeerAddresses() (addresses []string, err error) {
	for _, text := range split(c.Peers) {
		if !isWebAddress(text) {
			return nil, fault("peers", "%q; want addresses like http://10.0.0.2:%s, split at commas", text, DefaultConductorPort)
		}
		addresses = append(addresses, strings.TrimSuffix(text, "/"))
	}
	if len(addresses) > maxConductors {
		return nil, fault("peers", "%d; at most %d", len(addresses), maxConductors)
	}
	return addresses, nil
}

// split splits a list at commas and white space.
func split(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' || r == '\n' || r == '\t' })
}

func isWebAddress(text string) bool {
	at, err := url.Parse(text)
	return err == nil && (at.Scheme == "http" || at.Scheme == "https") && at.Host != "" && at.RawQuery == "" && at.Fragment == "" && at.User == nil
}

// Engine is an engine's server.
type Engine struct {
	// Name is the instance in answers: host and port where none was given.
	Name string
	URL  string
	// Role is both, prefill or decode; empty is both.
	Role string
	// Ranks is how many data-parallel ranks it serves; 0 is 1.
	Ranks int
	// Store is the runtime directory of its mooncake-lookupd, if that is on this machine:
	// contexts and copies are pinned there.
	Store string
}

// maxEngines bounds the engines that are named.
const maxEngines = 4096

// ParseEngines reads a list of engines, split at commas: [NAME=]URL[;ROLE][;ranks=N]
// [;store=DIRECTORY].
//
//	http://10.0.0.1:8000, decode-1=http://10.0.0.2:8000;decode;ranks=2
func ParseEngines(text string) (engines []Engine, err error) {
	for _, entry := range split(text) {
		parts := strings.Split(entry, ";")
		e := Engine{URL: strings.TrimSuffix(parts[0], "/")}
		if name, address, ok := strings.Cut(parts[0], "="); ok && !strings.Contains(name, "/") {
			e.Name, e.URL = name, strings.TrimSuffix(address, "/")
		}
		if !isWebAddress(e.URL) {
			return nil, fault("engines", "%q; want [NAME=]http://HOST:PORT[;prefill|;decode][;ranks=N][;store=DIRECTORY], split at commas", entry)
		}
		if e.Name == "" {
			_, e.Name, _ = strings.Cut(e.URL, "://")
		}
		for _, option := range parts[1:] {
			ranks, isRanks := strings.CutPrefix(option, "ranks=")
			dir, isStore := strings.CutPrefix(option, "store=")
			switch n, err := strconv.Atoi(ranks); {
			case slices.Contains([]string{"both", "prefill", "decode"}, option):
				e.Role = option
			case isRanks && err == nil && n >= 1 && n <= 1024:
				e.Ranks = n
			case isStore && strings.HasPrefix(dir, "/"):
				e.Store = dir
			default:
				return nil, fault("engines", "%q: %q; want prefill, decode, both, ranks=N, or store= with an absolute path", entry, option)
			}
		}
		if slices.ContainsFunc(engines, func(other Engine) bool { return other.Name == e.Name }) {
			return nil, fault("engines", "%q is there twice", e.Name)
		}
		engines = append(engines, e)
	}
	if len(engines) > maxEngines {
		return nil, fault("engines", "%d; at most %d", len(engines), maxEngines)
	}
	return engines, nil
}

// Fields lists the settings of mooncake-conductor.
func (c *ConductorConfig) Fields() []Field {
	of := func(key, def, help string) Field { return named(SectionConductor, key, def, help) }
	return append(append(c.Common.fields(),
		of("listen", "127.0.0.1:"+DefaultConductorPort+", all addresses with a conductor_config.json", "`address` at which HTTP is answered").text(&c.Listen),
		of("grpc_listen", "none", "`address` at which gRPC is answered").text(&c.GRPCListen),
		of("allow_remote", "false", "let them be addresses that other machines reach though nobody is asked for a password").bool(&c.AllowRemote),
		of("token_file", "none", "`file` with the bearer tokens of those who may call, one a line; read again on SIGHUP").text(&c.TokenFile),
		of("tls_cert_file", "none", "`file` with the certificate, PEM; it makes HTTP and gRPC TLS").text(&c.TLSCertFile),
		of("tls_key_file", "none", "`file` with its key, PEM").text(&c.TLSKeyFile),
		of("tls_client_ca_file", "none", "`file` with the authorities that clients' certificates must be of, PEM").text(&c.TLSClientCAFile),
		of("index_bytes", "half of the memory", "`size` that the index may reach; beyond it what is new is dropped, and answers say so").size(&c.IndexBytes),
		of("max_services", "4096", "`streams` that are followed at most").number(&c.MaxServices),
		of("max_body_bytes", "32MiB", "`size` of a call's body at most").size(&c.MaxBodyBytes),
		of("snapshot_dir", "none", "`directory` in which the index is kept from one start to the next").text(&c.SnapshotDir),
		of("snapshot_interval", "5m", "`time` between two snapshots").duration(&c.SnapshotInterval),
		of("peers", "none", "`addresses` of conductors whose snapshot is taken by a start that has none, split at commas").text(&c.Peers),
		of("engines", "none", "`list` of engines whose streams are found by asking them, and whom serve sends requests to: [NAME=]URL[;prefill|;decode][;ranks=N][;store=DIRECTORY of its lookupd's sockets], split at commas").text(&c.Engines),
		of("engine_key_file", "none", "`file` with the key that engines ask for").text(&c.EngineKeyFile),
		of("contract_file", "$CONDUCTOR_CONFIG_PATH, else ~/.mooncake/conductor_config.json where there is one", "`file`, a conductor_config.json of Mooncake Conductor: services and port").text(&c.ContractFile),
		of("seed", "$CONDUCTOR_SEED, else drawn at the first start", "`number` of the index's digests; conductors that take each other's snapshots need the same").text(&c.Seed),
	), c.Routing.fields()...)
}

func (r *Routing) fields() []Field {
	of := func(key, def, help string) Field { return named(SectionConductor, key, def, help) }
	return []Field{
		of("policy", "kvcache-centric", "serve: `policy` by which an engine is chosen: round-robin, random, load-balancing, cache-aware, kvcache-centric").text(&r.Policy),
		of("admission", "early", "serve: `rule` by which requests are refused: all (none is), baseline, early, prediction, full").text(&r.Admission),
		of("pooled", "false", "serve: engines load from a store that they share").bool(&r.Pooled),
		of("ttft", "none", "serve: `time` to the first token that requests want which say nothing").duration(&r.TTFT),
		of("tbt", "none", "serve: `time` between tokens that requests want which say nothing").duration(&r.TBT),
		of("tokenize_timeout", "200ms", "serve: `time` a request waits for its token ids").duration(&r.TokenizeTimeout),
		of("first_byte_timeout", "10m", "serve: `time` an engine may take for the first byte of a stream, or for a prefill").duration(&r.FirstByteTimeout),
		of("max_in_flight", "4096", "serve: `requests` at engines at a time").number(&r.MaxInFlight),
		of("max_waiting", "1024", "serve: `requests` that wait beside them").number(&r.MaxWaiting),
		of("attempts", "3", "serve: `engines` that a request is sent to at most").number(&r.Attempts),
		of("copy_after", "0", "serve: `uses` of a prefix in a minute, for each engine that has it, after which one more gets a copy; 0 is never").number(&r.CopyAfter),
		of("send_tokens", "false", "serve: send a completion's token ids in place of its prompt").bool(&r.SendTokens),
		of("send_priority", "false", "serve: send the scheduler's priority to engines; they need --scheduling-policy priority").bool(&r.SendPriority),
	}
}
