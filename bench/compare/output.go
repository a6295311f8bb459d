package compare

import "fmt"

// decided is the lead of a token, in log-probability, from which on it must agree.
// Sums in another order move log-probabilities by a millionth.
const decided = 1e-3

// wrong says in what an output differs from the reference, "" when it does not. Up
// to a token that was nearly tied, everything counts; behind it, nothing does.
func wrong(reference, got []Token) string {
	if len(got) != len(reference) {
		return fmt.Sprintf("%d tokens, not %d", len(got), len(reference))
	}
	for i := range reference {
		want, have := reference[i], got[i]
		if want.ID != have.ID {
			if want.Margin < decided {
				return ""
			}
			return fmt.Sprintf("token %d is %s, not %s, which leads by %.2g", i, have.ID, want.ID, want.Margin)
		}
		if moved := want.LogProb - have.LogProb; moved > decided || moved < -decided {
			return fmt.Sprintf("the log-probability of token %d moved by %.2g", i, moved)
		}
	}
	return ""
}
