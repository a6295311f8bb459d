package mooncaketest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/mooncake-sidecar/sidecar/store"
	"github.com/mooncake-sidecar/sidecar/store/mooncake"
)

// Cluster is a Mooncake Store cluster in this process's memory, which engines
// share as those of several nodes do.
type Cluster struct {
	mu       sync.Mutex
	objects  map[string]*object
	capacity uint64 // bytes; 0: no bound
	used     uint64
	leases   bool
}

type object struct {
	bytes []byte
	how   mooncake.Replication
	// leased: it was asked for or got, so that it is not removed.
	leased bool
}

// NewCluster returns an empty cluster with room for that many bytes; 0: for all.
func NewCluster(capacity uint64) *Cluster {
	return &Cluster{objects: map[string]*object{}, capacity: capacity}
}

// Bytes returns a copy of an object, nil when there is none.
func (c *Cluster) Bytes(key string) []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	o := c.objects[key]
	if o == nil {
		return nil
	}
	return append([]byte{}, o.bytes...)
}

// How returns how an object was to be kept.
func (c *Cluster) How(key string) mooncake.Replication {
	c.mu.Lock()
	defer c.mu.Unlock()
	if o := c.objects[key]; o != nil {
		return o.how
	}
	return mooncake.Replication{}
}

// Keys returns the keys of all objects.
func (c *Cluster) Keys() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	keys := make([]string, 0, len(c.objects))
	for key := range c.objects {
		keys = append(keys, key)
	}
	return keys
}

// Set stores an object as another node would.
func (c *Cluster) Set(key string, bytes []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.objects[key] = &object{bytes: append([]byte{}, bytes...)}
}

// Forget loses all objects, as a master does that begins anew.
func (c *Cluster) Forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.objects)
	c.used = 0
}

// Leased tells whether somebody asked for an object since leases are given.
func (c *Cluster) Leased(key string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	o := c.objects[key]
	return o != nil && o.leased
}

// GiveLeases makes the cluster lease what is asked for or got, until EndLeases.
func (c *Cluster) GiveLeases() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leases = true
}

// EndLeases ends all leases, and gives no more.
func (c *Cluster) EndLeases() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leases = false
	for _, o := range c.objects {
		o.leased = false
	}
}

// Fault is what goes wrong in a call. The zero Fault is none.
type Fault struct {
	// Err ends the call before anything is done.
	Err error
	// Code, if not 0, is the answer to every key that Key does not spare.
	Code mooncake.Code
	// Key chooses the keys that Code is the answer for; nil: all.
	Key func(key string) bool
	// Torn: a get with a Code writes half of the bytes first; a put with one stores
	// the object all the same.
	Torn bool
	// Wait, if not nil, is called before anything is done, outside any lock.
	Wait func(ctx context.Context)
}

// Engine is one node's way to a Cluster.
type Engine struct {
	cluster *Cluster
	memory  []byte

	mu     sync.Mutex
	fault  func(op string, keys []string) Fault
	calls  map[string]int
	active []mooncake.Range // ranges of transfers under way
	gets   []mooncake.Range // those of gets
}

var _ mooncake.Engine = (*Engine)(nil)

// NewEngine returns an engine with memory registered.
func (c *Cluster) NewEngine(memory []byte) *Engine {
	return &Engine{cluster: c, memory: memory, calls: map[string]int{}}
}

// SetFault makes every call ask what goes wrong in it. op is exist, put, get,
// remove or remove-prefix. Nil: nothing does.
func (e *Engine) SetFault(fault func(op string, keys []string) Fault) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.fault = fault
}

// Calls returns how many calls of op there were.
func (e *Engine) Calls(op string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.calls[op]
}

// begin counts a call and finds out what goes wrong in it.
func (e *Engine) begin(ctx context.Context, op string, keys []string) (Fault, error) {
	e.mu.Lock()
	e.calls[op]++
	ask := e.fault
	e.mu.Unlock()
	var f Fault
	if ask != nil {
		f = ask(op, keys)
	}
	// A context that is done ends a call before it is begun, and no transfer later.
	if err := ctx.Err(); err != nil {
		return f, fmt.Errorf("%s: %w: %w", op, mooncake.ErrNoTurn, err)
	}
	if f.Wait != nil {
		f.Wait(ctx)
	}
	if err := ctx.Err(); err != nil && op != "put" && op != "get" {
		return f, fmt.Errorf("%s: %w", op, err)
	}
	return f, f.Err
}

// codeFor returns the code that a fault has for a key, 0 for none.
func (f *Fault) codeFor(key string) mooncake.Code {
	if f.Key != nil && !f.Key(key) {
		return 0
	}
	return f.Code
}

// Exist implements mooncake.Engine.
func (e *Engine) Exist(ctx context.Context, keys []string) ([]mooncake.Answer, error) {
	if err := mooncake.CheckKeys(keys); err != nil {
		return nil, err
	}
	f, err := e.begin(ctx, "exist", keys)
	if err != nil {
		return nil, err
	}
	e.cluster.mu.Lock()
	defer e.cluster.mu.Unlock()
	answers := make([]mooncake.Answer, len(keys))
	for i, key := range keys {
		if code := f.codeFor(key); code != 0 {
			answers[i] = mooncake.Answer(code)
		} else if o := e.cluster.objects[key]; o != nil {
			answers[i] = 1
			o.leased = o.leased || e.cluster.leases
		}
	}
	return answers, nil
}

// transferring claims the ranges of a transfer. A get whose range another transfer
// has is a mistake of the caller's.
func (e *Engine) transferring(objects []mooncake.Object, get bool) (done func(), err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	busy := e.gets
	if get {
		busy = e.active
	}
	for i := range objects {
		r := objects[i].Range
		for _, b := range busy {
			if r.Offset < b.Offset+b.Bytes && b.Offset < r.Offset+r.Bytes {
				return nil, fmt.Errorf("BUG: range %+v is in another transfer, %+v", r, b)
			}
		}
	}
	from := make([]mooncake.Range, 0, len(objects))
	for i := range objects {
		from = append(from, objects[i].Range)
	}
	e.active = append(e.active, from...)
	if get {
		e.gets = append(e.gets, from...)
	}
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		for _, r := range from {
			e.active = without(e.active, r)
			if get {
				e.gets = without(e.gets, r)
			}
		}
	}, nil
}

func without(list []mooncake.Range, r mooncake.Range) []mooncake.Range {
	for i := range list {
		if list[i] == r {
			return append(list[:i:i], list[i+1:]...)
		}
	}
	return list
}

func keysOf(objects []mooncake.Object) []string {
	keys := make([]string, len(objects))
	for i := range objects {
		keys[i] = objects[i].Key
	}
	return keys
}

// beginTransfer is begin for put and get. done, which is never nil, ends it.
func (e *Engine) beginTransfer(ctx context.Context, op string, objects []mooncake.Object) (f Fault, done func(), err error) {
	if err = mooncake.CheckObjects(uint64(len(e.memory)), objects); err != nil {
		return f, func() {}, err
	}
	if done, err = e.transferring(objects, op == "get"); err != nil {
		return f, func() {}, err
	}
	f, err = e.begin(ctx, op, keysOf(objects))
	return f, done, err
}

// Put implements mooncake.Engine.
func (e *Engine) Put(ctx context.Context, how mooncake.Replication, objects []mooncake.Object) ([]mooncake.Answer, error) {
	f, done, err := e.beginTransfer(ctx, "put", objects)
	defer done()
	if err != nil {
		return nil, err
	}
	c := e.cluster
	c.mu.Lock()
	defer c.mu.Unlock()
	answers := make([]mooncake.Answer, len(objects))
	for i, o := range objects {
		code := f.codeFor(o.Key)
		if code != 0 && !f.Torn {
			answers[i] = mooncake.Answer(code)
			continue
		}
		answers[i] = mooncake.Answer(code)
		if c.objects[o.Key] != nil {
			continue // what was there stays
		}
		if c.capacity > 0 && c.used+o.Range.Bytes > c.capacity {
			answers[i] = mooncake.Answer(mooncake.CodeNoSpace)
			continue
		}
		c.used += o.Range.Bytes
		c.objects[o.Key] = &object{bytes: append([]byte{}, e.memory[o.Range.Offset:][:o.Range.Bytes]...), how: how}
	}
	return answers, nil
}

// Get implements mooncake.Engine.
func (e *Engine) Get(ctx context.Context, objects []mooncake.Object) ([]mooncake.Answer, error) {
	f, done, err := e.beginTransfer(ctx, "get", objects)
	defer done()
	if err != nil {
		return nil, err
	}
	c := e.cluster
	c.mu.Lock()
	defer c.mu.Unlock()
	answers := make([]mooncake.Answer, len(objects))
	for i, o := range objects {
		stored, code := c.objects[o.Key], f.codeFor(o.Key)
		if stored != nil {
			stored.leased = stored.leased || c.leases
		}
		to := e.memory[o.Range.Offset:][:o.Range.Bytes]
		switch {
		case code != 0 && f.Torn && stored != nil:
			copy(to, stored.bytes[:len(stored.bytes)/2])
			answers[i] = mooncake.Answer(code)
		case code != 0:
			answers[i] = mooncake.Answer(code)
		case stored == nil:
			answers[i] = mooncake.Answer(mooncake.CodeNotFound)
		case len(stored.bytes) > len(to):
			answers[i] = mooncake.Answer(mooncake.CodeInvalidParams)
		default:
			copy(to, stored.bytes)
			answers[i] = mooncake.Answer(len(stored.bytes))
		}
	}
	return answers, nil
}

// Remove implements mooncake.Engine.
func (e *Engine) Remove(ctx context.Context, keys []string) ([]mooncake.Answer, error) {
	if err := mooncake.CheckKeys(keys); err != nil {
		return nil, err
	}
	f, err := e.begin(ctx, "remove", keys)
	if err != nil {
		return nil, err
	}
	e.cluster.mu.Lock()
	defer e.cluster.mu.Unlock()
	answers := make([]mooncake.Answer, len(keys))
	for i, key := range keys {
		if code := f.codeFor(key); code != 0 {
			answers[i] = mooncake.Answer(code)
		} else {
			answers[i] = mooncake.Answer(e.cluster.removeLocked(key))
		}
	}
	return answers, nil
}

func (c *Cluster) removeLocked(key string) mooncake.Code {
	o := c.objects[key]
	switch {
	case o == nil:
		return mooncake.CodeNotFound
	case o.leased:
		return mooncake.CodeHasLease
	}
	c.used -= min(c.used, uint64(len(o.bytes)))
	delete(c.objects, key)
	return 0
}

// RemovePrefix implements mooncake.Engine.
func (e *Engine) RemovePrefix(ctx context.Context, prefix string) (int, error) {
	if err := mooncake.CheckPrefix(prefix); err != nil {
		return 0, err
	}
	f, err := e.begin(ctx, "remove-prefix", []string{prefix})
	if err != nil {
		return 0, err
	}
	if f.Code != 0 {
		return 0, &mooncake.Error{Op: "remove", Code: f.Code}
	}
	e.cluster.mu.Lock()
	defer e.cluster.mu.Unlock()
	n := 0
	for key := range e.cluster.objects {
		if strings.HasPrefix(key, prefix) && e.cluster.removeLocked(key) == 0 {
			n++
		}
	}
	return n, nil
}

// Health implements mooncake.Engine.
func (e *Engine) Health() mooncake.Health { return mooncake.Health{Ready: true} }

// ErrDown is what an engine that does not reach its cluster answers.
var ErrDown = fmt.Errorf("%w: %w", errors.New("down on request"), store.ErrUnavailable)
