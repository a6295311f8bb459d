package api

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
)

// Tokens are the bearer tokens of those who may call. The zero value lets in everybody.
// It is safe for concurrent use.
type Tokens struct {
	// digests of the tokens: comparing them takes as long whatever was sent.
	digests atomic.Pointer[[][sha256.Size]byte]
}

const (
	maxTokensBytes = 1 << 20
	minTokenLen    = 16
)

// Set takes tokens in place of those before; with none everybody is let in.
func (t *Tokens) Set(tokens []string) {
	digests := make([][sha256.Size]byte, len(tokens))
	for i, token := range tokens {
		digests[i] = sha256.Sum256([]byte(token))
	}
	t.digests.Store(&digests)
}

// Allows tells whether an Authorization header's text has a token that is known.
func (t *Tokens) Allows(authorization string) bool {
	digests := t.digests.Load()
	if digests == nil || len(*digests) == 0 {
		return true
	}
	scheme, token, _ := strings.Cut(authorization, " ")
	got := sha256.Sum256([]byte(strings.TrimSpace(token)))
	known := 0
	for i := range *digests {
		known |= subtle.ConstantTimeCompare(got[:], (*digests)[i][:])
	}
	return known == 1 && strings.EqualFold(scheme, "Bearer")
}

// ErrTokenFile: a token file can't be used.
var ErrTokenFile = errors.New("token file")

// ReadTokens reads a file with one token a line; blank lines and those that begin with
// # are none. Nobody but its owner and its group may be able to read it.
func ReadTokens(name string) ([]string, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrTokenFile, err)
	}
	defer func() { _ = file.Close() }() // it was only read
	info, err := file.Stat()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrTokenFile, err)
	}
	if info.Mode().Perm()&0o007 != 0 {
		return nil, fmt.Errorf("%w: %s has mode %04o, and everybody may read it; chmod 0640 it", ErrTokenFile, name, info.Mode().Perm())
	}
	text, err := io.ReadAll(io.LimitReader(file, maxTokensBytes+1))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrTokenFile, err)
	}
	if len(text) > maxTokensBytes {
		return nil, fmt.Errorf("%w: %s has more than %d bytes", ErrTokenFile, name, maxTokensBytes)
	}
	var tokens []string
	number := 0
	for line := range strings.Lines(string(text)) {
		number++
		line = strings.TrimSpace(line)
		switch {
		case line == "" || line[0] == '#':
			continue
		case len(line) < minTokenLen:
			return nil, fmt.Errorf("%w: %s:%d: a token of %d letters can be guessed; want %d at least", ErrTokenFile, name, number, len(line), minTokenLen)
		case strings.ContainsAny(line, " \t"):
			return nil, fmt.Errorf("%w: %s:%d: a token has no white space in it", ErrTokenFile, name, number)
		}
		tokens = append(tokens, line)
	}
	if len(tokens) == 0 {
		return nil, fmt.Errorf("%w: %s has no token", ErrTokenFile, name)
	}
	return tokens, nil
}

// Protect lets only those in who have a token.
func (t *Tokens) Protect(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !t.Allows(r.Header.Get("Authorization")) {
			_, fault := faultOf(errToken, bodyForm(r))
			w.Header().Set("WWW-Authenticate", "Bearer")
			writeFault(w, errorForm(r), http.StatusUnauthorized, fault)
			return
		}
		next.ServeHTTP(w, r)
	})
}
