package sdnotify

import (
	"os"

	"github.com/coreos/go-systemd/v22/activation"
)

// Inherited is the descriptors that the service manager passed to this process.
// It is not safe for concurrent use.
type Inherited struct{ files []*os.File }

// Inherit takes the descriptors over, once: the environment names them no more.
func Inherit() *Inherited { return &Inherited{files: activation.Files(true)} }

// Take hands over what goes by that name, in the order in which it came.
func (i *Inherited) Take(match func(name string) bool) []*os.File {
	var taken, rest []*os.File
	for _, file := range i.files {
		if match(file.Name()) {
			taken = append(taken, file)
		} else {
			rest = append(rest, file)
		}
	}
	i.files = rest
	return taken
}

// Close closes what nobody took and returns the names.
func (i *Inherited) Close() []string {
	var names []string
	for _, file := range i.files {
		names = append(names, file.Name())
		_ = file.Close() // nobody used it
	}
	i.files = nil
	return names
}
