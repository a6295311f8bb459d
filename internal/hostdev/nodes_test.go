package hostdev

import "testing"

func TestIsOneNode(t *testing.T) {
	for online, want := range map[string]bool{"0\n": true, "1\n": true, "0-1\n": false, "0,2\n": false, "": true} {
		if isOneNode(online) != want {
			t.Errorf("%q: %v", online, !want)
		}
	}
}
