//go:build !amd64

package hostdev

func everyCopier() map[string]*copier { return map[string]*copier{"portable": newCopier()} }
