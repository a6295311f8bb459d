//go:build !(cgo && linux && (amd64 || arm64))

package mooncakec

import "fmt"

// load says that there is no way to load a library.
func load(path string) (library, error) {
	return nil, fmt.Errorf("%w: this program was built without cgo, which %s needs; use the side process (store_python)", ErrLibrary, path)
}
