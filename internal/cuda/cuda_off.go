//go:build !(cgo && linux && (amd64 || arm64))

package cuda

import "fmt"

// Driver is the driver; this build has none.
type Driver struct{}

// Open says that there is no driver.
func Open(path string) (*Driver, error) {
	return nil, fmt.Errorf("%w: built without cgo, which %s needs", ErrNoDriver, path)
}
