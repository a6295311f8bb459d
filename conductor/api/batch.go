package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/mooncake-sidecar/sidecar/conductor/contract"
)

const (
	// maxBatch bounds the queries of a batch, and maxBatchBytes its answer: one of few
	// bytes may ask much of many instances.
	maxBatch      = 1024
	maxBatchBytes = 64 << 20
)

// batch answers /query_batch: {"queries": [...]}, each as in /query, or with seq_hashes
// as in /query_by_hash. The answers come in the same order. One that is refused is a
// fault in its place and does not touch the others; a body that is not well-formed is
// refused as a whole.
func (s *Server) batch(w http.ResponseWriter, r *http.Request) error {
	sc := s.rooms.take()
	defer s.rooms.give(sc)
	body, err := s.rooms.read(w, r, sc)
	if err != nil {
		return err
	}
	packed, count, seenQueries := bodyForm(r) == formMsgpack, 0, false
	sc.out = sc.out[:0]
	visit := func(name string, v value) error {
		known, ok := canonical(name, v, "queries")
		if !ok {
			return unknownField(name, v)
		}
		if seenQueries {
			return &contract.FieldError{Field: known, Reason: reasonValue, Text: "is there twice"}
		}
		seenQueries = true
		return inField(known, v.array(func(i int, v value) error {
			if i >= maxBatch {
				return &rangeError{fmt.Sprintf("more than %d queries", maxBatch)}
			}
			count++
			return s.one(v, sc, packed)
		}))
	}
	kind := "application/json"
	if packed {
		kind, err = msgpackType, readMsgpack(body, visit)
	} else {
		err = readJSON(body, visit)
	}
	switch {
	case err != nil:
		return err
	case !seenQueries:
		return missing("queries", "a list of queries")
	}
	var head []byte
	if packed {
		head = appendText(appendHead(nil, kindMap, 1), "results")
		head = append(head, 0xdc, byte(count>>8), byte(count))
	} else {
		head = []byte(`{"results":[`)
		sc.out = append(sc.out, ']', '}', '\n')
	}
	w.Header().Set("Content-Type", kind)
	w.WriteHeader(http.StatusOK)
	_, _ = w.Write(head) // a peer that left needs no answer
	_, _ = w.Write(sc.out)
	return nil
}

// one reads a query of a batch and appends its answer.
func (s *Server) one(v value, sc *scratch, packed bool) error {
	q, err := readOne(v, sc)
	if isSyntax(err) || errors.Is(err, errBusy) {
		return err
	}
	if !packed && len(sc.out) > 0 {
		sc.out = append(sc.out, ',')
	}
	if err != nil {
		return appendFault(sc, err, packed)
	}
	if err := s.find(q, sc); err != nil {
		return err
	}
	if packed {
		sc.out = appendMsgpackAnswer(sc.out, sc.matches)
	} else {
		sc.out = appendJSONAnswer(sc.out, &q.Query, sc.matches)
	}
	if len(sc.out) > maxBatchBytes {
		return &rangeError{fmt.Sprintf("the answer has more than %d MiB: ask for less at a time, or of one instance", maxBatchBytes>>20)}
	}
	return nil
}

// readOne reads a query whole, also where one of its fields is wrong: there may be more
// behind it.
func readOne(v value, sc *scratch) (*question, error) {
	byTokens, byHashes := &question{sc: sc}, &question{sc: sc, byHash: true}
	var first error
	err := v.object(func(name string, v value) error {
		q := byTokens
		if known, _ := canonical(name, v, "seq_hashes", "block_hash"); known != "" {
			q = byHashes
		}
		begin := v.mark()
		err := q.field(name, v)
		if err == nil || isSyntax(err) || errors.Is(err, errBusy) {
			return err
		}
		if first == nil {
			first = err
		}
		v.reset(begin) // it may have been read in part
		return v.skip()
	})
	if err == nil {
		err = first
	}
	if err != nil {
		return nil, inField("queries", err)
	}
	if byHashes.hasTokens {
		byTokens.Hashes, byTokens.hasTokens, byTokens.byHash = byHashes.Hashes, true, true
		byTokens.Tokens = nil
	}
	err = byTokens.complete()
	return byTokens, err
}

func appendFault(sc *scratch, err error, packed bool) error {
	_, fault := faultOf(err, formJSON)
	var text []byte
	if packed {
		text, err = msgpack.Marshal(&fault)
	} else {
		text, err = json.Marshal(&fault)
	}
	if err != nil {
		return fmt.Errorf("encode a fault: %w", err)
	}
	sc.out = append(sc.out, text...)
	return nil
}
