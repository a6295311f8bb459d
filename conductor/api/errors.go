package api

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/mooncake-sidecar/sidecar/conductor/contract"
)

// form is how a body is encoded.
type form uint8

const (
	formText    form = iota // errors of the JSON calls: a line of text
	formJSON                // the same for those that accept JSON by name
	formMsgpack             // all of a msgpack call
	formBinary              // a query whose body is its tokens
)

const msgpackType = "application/msgpack"

// errorForm returns how errors of a call are written.
func errorForm(r *http.Request) form {
	switch accept := r.Header.Get("Accept"); {
	case bodyForm(r) == formMsgpack, strings.Contains(accept, "msgpack"):
		return formMsgpack
	case strings.Contains(accept, "application/json"):
		return formJSON
	}
	return formText
}

// bodyForm returns how a request's body is encoded. What is neither msgpack nor binary
// is taken for JSON, whatever it is called.
func bodyForm(r *http.Request) form {
	switch kind := r.Header.Get("Content-Type"); {
	case kind == "", strings.HasPrefix(kind, "application/json"):
		return formJSON
	case strings.Contains(kind, "msgpack"):
		return formMsgpack
	case strings.HasPrefix(kind, "application/octet-stream"):
		return formBinary
	}
	return formJSON
}

// Fault is what a refused call is told.
type Fault struct {
	Error string `json:"error" msgpack:"error"`
	// Reason is a word that programs read.
	Reason string `json:"reason" msgpack:"reason"`
	Field  string `json:"field,omitempty" msgpack:"field,omitempty"`
	Index  *int   `json:"index,omitempty" msgpack:"index,omitempty"`
}

var (
	// errBusy: the bodies under way take all the memory that they may.
	errBusy = errors.New("too much is being asked at a time; try again")
	// errToken: who asks is not known.
	errToken = errors.New("a bearer token is wanted, and this is none that is known")
	// errNotOffered: this conductor has not what was asked for.
	errNotOffered = errors.New("not offered by this conductor")
)

// faultOf says what an error is to a caller.
func faultOf(err error, body form) (status int, fault Fault) {
	var field *contract.FieldError
	var element *elementError
	var large *http.MaxBytesError
	var wrongType *typeError
	fault.Error = err.Error()
	if errors.As(err, &element) {
		fault.Index = &element.index
	}
	switch {
	case errors.As(err, &field):
		fault.Reason, fault.Field = field.Reason, field.Field
		return http.StatusBadRequest, fault
	case isSyntax(err) && body == formMsgpack:
		fault.Error, fault.Reason = "Invalid msgpack: "+fault.Error, "invalid_msgpack"
		return http.StatusBadRequest, fault
	case isSyntax(err):
		fault.Error, fault.Reason = "Invalid JSON: "+fault.Error, "invalid_json"
		return http.StatusBadRequest, fault
	case errors.As(err, &wrongType): // the body itself
		fault.Reason = reasonType
		return http.StatusBadRequest, fault
	case errors.Is(err, contract.ErrNotFound):
		fault.Reason = "not_found"
		return http.StatusNotFound, fault
	case errors.Is(err, contract.ErrConflict):
		fault.Reason = "invalid_registration"
		if body == formMsgpack {
			return http.StatusBadRequest, fault
		}
		return http.StatusConflict, fault
	case errors.Is(err, contract.ErrInvalid):
		fault.Reason = reasonValue
		return http.StatusBadRequest, fault
	case errors.Is(err, contract.ErrLimit):
		fault.Reason = "limit"
		return http.StatusTooManyRequests, fault
	case errors.As(err, &large):
		fault.Reason = "too_large"
		return http.StatusRequestEntityTooLarge, fault
	case errors.Is(err, errBusy):
		fault.Reason = "busy"
		return http.StatusServiceUnavailable, fault
	case errors.Is(err, errToken):
		fault.Reason = "unauthorized"
		return http.StatusUnauthorized, fault
	case errors.Is(err, errNotOffered):
		fault.Reason = "not_offered"
		return http.StatusNotFound, fault
	}
	fault.Reason = "failed"
	return http.StatusInternalServerError, fault
}

// fail answers a call that was refused.
func (s *Server) fail(w http.ResponseWriter, r *http.Request, err error) {
	status, fault := faultOf(err, bodyForm(r))
	if status >= http.StatusInternalServerError && !errors.Is(err, errBusy) {
		s.cfg.Log.Warn("a call failed", "path", r.URL.Path, "error", err)
	}
	switch status {
	case http.StatusServiceUnavailable, http.StatusTooManyRequests:
		w.Header().Set("Retry-After", "1")
	case http.StatusUnauthorized:
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	writeFault(w, errorForm(r), status, fault)
}

func writeFault(w http.ResponseWriter, as form, status int, fault Fault) {
	switch as {
	case formMsgpack:
		if packed, err := msgpack.Marshal(&fault); err == nil {
			writeBody(w, status, msgpackType, packed)
			return
		}
	case formJSON:
		if text, err := json.Marshal(&fault); err == nil {
			writeBody(w, status, "application/json", append(text, '\n'))
			return
		}
	case formText, formBinary:
	}
	w.Header().Set("X-Content-Type-Options", "nosniff")
	writeBody(w, status, "text/plain; charset=utf-8", []byte(fault.Error+"\n"))
}

func writeBody(w http.ResponseWriter, status int, kind string, body []byte) {
	w.Header().Set("Content-Type", kind)
	w.WriteHeader(status)
	_, _ = w.Write(body) // a peer that left needs no answer
}
