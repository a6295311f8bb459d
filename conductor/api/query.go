package api

import (
	"encoding/binary"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/mooncake-sidecar/sidecar/conductor/contract"
	"github.com/mooncake-sidecar/sidecar/conductor/kvevents"
	"github.com/mooncake-sidecar/sidecar/conductor/prefixindex"
)

// question is a query as it is being read.
type question struct {
	contract.Query
	byHash              bool
	sc                  *scratch
	blockSize           number
	hasTokens, hasModel bool
}

// field reads one field of a query.
func (q *question) field(name string, v value) error {
	known, ok := canonical(name, v, "model", "token_ids", "block_size", "tenant_id", "instance_id", "lora_name", "cache_salt",
		"additional_salt", "seq_hashes", "block_hash", "lora_id")
	if !ok {
		return unknownField(name, v)
	}
	return inField(known, q.read(known, v))
}

func (q *question) read(name string, v value) (err error) {
	switch name {
	case "model":
		q.hasModel = true
		return optionalText(v, &q.Model)
	case "lora_name":
		return optionalText(v, &q.LoRA)
	case "tenant_id":
		return optionalText(v, &q.Tenant)
	case "instance_id":
		return optionalText(v, &q.Instance)
	case "cache_salt":
		return optionalText(v, &q.CacheSalt)
	case "additional_salt":
		if q.HasAdditionalSalt = !v.null(); !q.HasAdditionalSalt {
			q.AdditionalSalt = ""
			return nil
		}
		return optionalText(v, &q.AdditionalSalt)
	case "block_size":
		return q.blockSize.read(v)
	case "token_ids":
		if q.byHash {
			return v.skip()
		}
		if q.hasTokens = !v.null(); !q.hasTokens {
			q.Tokens = nil
			return nil
		}
		q.sc.tokens = q.sc.tokens[:0]
		if err := q.sc.need(v.elements() * tokenBytes); err != nil {
			return err
		}
		// What a list is read into is kept; what is a part of the body is not.
		q.Tokens, err = v.tokens(q.sc.tokens)
		if !v.strict() {
			q.sc.tokens = q.Tokens
		}
		return err
	case "seq_hashes", "block_hash":
		if !q.byHash {
			return v.skip()
		}
		if q.hasTokens = !v.null(); !q.hasTokens {
			q.Hashes = nil
			return nil
		}
		if q.Hashes, err = q.sc.roomOfHashes(v.elements()); err != nil {
			return err
		}
		q.Hashes, err = v.hashes(q.Hashes)
		q.sc.hashes = q.Hashes
		return err
	}
	return v.skip() // lora_id: nobody reads it
}

// canonical returns the name of a field as the contract writes it, where it is one of
// the known ones.
func canonical(name string, v value, known ...string) (string, bool) {
	for _, k := range known {
		if k == name {
			return k, true
		}
	}
	if v.strict() {
		return "", false
	}
	for _, k := range known {
		if strings.EqualFold(k, name) {
			return k, true
		}
	}
	return "", false
}

// complete checks a query that was read, and fills in what was left out.
func (q *question) complete() (err error) {
	if q.BlockTokens, err = q.blockSize.blockSize(); err != nil {
		return err
	}
	switch {
	case !q.hasModel || q.Model == "":
		return missing("model", "the name that the engine was registered with")
	case !q.hasTokens && q.byHash:
		return missing("seq_hashes", "the hashes of the prompt's blocks")
	case !q.hasTokens:
		return missing("token_ids", "the prompt's token ids")
	}
	if q.Tenant == "" {
		q.Tenant = prefixindex.DefaultTenant
	}
	return nil
}

func missing(field, what string) error {
	return &contract.FieldError{Field: field, Reason: reasonMissing, Text: "missing: " + what}
}

// parseQuery reads one query of a body.
func parseQuery(body []byte, as form, byHash bool, sc *scratch) (*question, error) {
	q := &question{sc: sc, byHash: byHash}
	var err error
	if as == formMsgpack {
		err = readMsgpack(body, q.field)
	} else {
		err = readJSON(body, q.field)
	}
	if err != nil {
		return nil, err
	}
	err = q.complete()
	return q, err
}

// parseBinaryQuery reads a query whose body is its tokens or hashes, little-endian, and
// whose other fields are in its address.
func parseBinaryQuery(body []byte, params url.Values, byHash bool, sc *scratch) (*question, error) {
	q := &question{sc: sc, byHash: byHash, hasModel: true, hasTokens: true}
	width := tokenBytes
	if byHash {
		width = 8
	}
	if len(body)%width != 0 {
		return nil, &contract.FieldError{Field: "body", Reason: reasonRange, Text: strconv.Itoa(len(body)) + " bytes; want " + strconv.Itoa(width) + " for each element, little-endian"}
	}
	for name, values := range params {
		if len(values) != 1 {
			return nil, &contract.FieldError{Field: shorten(name), Reason: reasonValue, Text: "more than one value"}
		}
		if err := q.param(name, values[0]); err != nil {
			return nil, err
		}
	}
	if !byHash {
		q.Tokens = body
		err := q.complete()
		return q, err
	}
	var err error
	if q.Hashes, err = sc.roomOfHashes(len(body) / width); err != nil {
		return nil, err
	}
	for ; len(body) > 0; body = body[width:] {
		q.Hashes = append(q.Hashes, kvevents.Hash(binary.LittleEndian.Uint64(body)))
	}
	sc.hashes = q.Hashes
	err = q.complete()
	return q, err
}

// roomOfHashes returns an empty list, not nil, with room for n, which are charged.
func (sc *scratch) roomOfHashes(n int) ([]kvevents.Hash, error) {
	sc.hashes = sc.hashes[:0]
	if err := sc.need(n * hashBytes); err != nil {
		return nil, err
	}
	return slices.Grow(sc.hashes, max(n, 1)), nil
}

// param reads one field of an address.
func (q *question) param(name, text string) error {
	into := map[string]*string{
		"model": &q.Model, "lora_name": &q.LoRA, "tenant_id": &q.Tenant, "instance_id": &q.Instance, "cache_salt": &q.CacheSalt, "additional_salt": &q.AdditionalSalt,
	}
	switch dst := into[name]; {
	case name == "block_size":
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return &contract.FieldError{Field: name, Reason: reasonType, Text: "want a whole number, got " + shorten(text)}
		}
		q.blockSize = number{n, true}
	case dst == nil:
		return &contract.FieldError{Field: shorten(name), Reason: reasonUnknown, Text: "no such field"}
	case len(text) > maxTextBytes:
		return &contract.FieldError{Field: name, Reason: reasonRange, Text: "too long"}
	default:
		*dst = text
		q.HasAdditionalSalt = q.HasAdditionalSalt || name == "additional_salt"
	}
	return nil
}

// answerBytes is about what an answer has of one match.
const answerBytes = 256

// find asks the index, and charges for what it found and for the answer that is to be
// made of it.
func (s *Server) find(q *question, sc *scratch) error {
	sc.matches = s.cfg.Index.Query(&q.Query, sc.matches[:0])
	return sc.need(len(sc.matches) * answerBytes)
}

// query answers /query and /query_by_hash.
func (s *Server) query(byHash bool) func(http.ResponseWriter, *http.Request) error {
	return func(w http.ResponseWriter, r *http.Request) error {
		sc := s.rooms.take()
		defer s.rooms.give(sc)
		body, err := s.rooms.read(w, r, sc)
		if err != nil {
			return err
		}
		as := bodyForm(r)
		var q *question
		if as == formBinary {
			q, err = parseBinaryQuery(body, r.URL.Query(), byHash, sc)
		} else {
			q, err = parseQuery(body, as, byHash, sc)
		}
		if err != nil {
			return err
		}
		if err := s.find(q, sc); err != nil {
			return err
		}
		if as == formMsgpack || strings.Contains(r.Header.Get("Accept"), "msgpack") {
			sc.out = appendMsgpackAnswer(sc.out[:0], sc.matches)
			writeBody(w, http.StatusOK, msgpackType, sc.out)
			return nil
		}
		sc.out = append(appendJSONAnswer(sc.out[:0], &q.Query, sc.matches), '\n')
		writeBody(w, http.StatusOK, "application/json", sc.out)
		return nil
	}
}
