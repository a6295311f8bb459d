package router

import (
	"encoding/json"
	"math"
	"net/http"
	"strconv"
	"time"
)

// apiError is an error as OpenAI's API has it.
type apiError struct {
	Message string `json:"message"`
	Type    string `json:"type"`
	Code    int    `json:"code"`
	Param   string `json:"param,omitempty"`
	Reason  string `json:"reason,omitempty"`
}

// The types of errors, in the words of vLLM.
const (
	badRequest  = "BadRequestError"
	notFound    = "NotFoundError"
	tooMany     = "TooManyRequests"
	unavailable = "ServiceUnavailableError"
	badGateway  = "BadGatewayError"
)

// fail answers with an error.
func fail(w http.ResponseWriter, status int, kind, reason, message string) {
	writeJSON(w, status, map[string]apiError{"error": {Message: message, Type: kind, Code: status, Reason: reason}})
}

// failLater answers with one that will not be one later.
func failLater(w http.ResponseWriter, status int, kind, reason, message string, later time.Duration) {
	w.Header().Set("Retry-After", strconv.Itoa(int(min(max(math.Ceil(later.Seconds()), 1), 600))))
	fail(w, status, kind, reason, message)
}

// answerTimeout is how long a client may take to read an answer of our own.
const answerTimeout = time.Minute

func writeJSON(w http.ResponseWriter, status int, value any) {
	body, err := json.Marshal(value)
	if err != nil {
		status, body = http.StatusInternalServerError, []byte(`{"error":{"message":"the answer has no JSON"}}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)+1))
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(answerTimeout)) // who can't has none
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n')) // whoever has gone does not read it
}
