package topology

import (
	"os"
	"path/filepath"
	"testing"
)

// The kernel's own file system says of a plain file that it is no link by another
// error than the one of package fs's maps; bonding puts one among the interfaces.
func TestPlainFileAmongInterfaces(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, netDir)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "bonding_masters"), []byte("bond0\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if found, err := interfacesByAddress(os.DirFS(root)); err != nil || len(found) != 0 {
		t.Errorf("found %v, %v", found, err)
	}
}
