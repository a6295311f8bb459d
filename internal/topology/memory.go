package topology

import "io/fs"

// LeftOut is a node whose memory is not for a cache in shared memory, and why.
type LeftOut struct {
	Node int
	Why  string
}

// MemoryNodes reads the nodes between which the memory of a cache can be divided.
// Left out are those that the process may not use, those without memory, and those
// without cores: their memory is a GPU's, or behind a slower link.
func MemoryNodes(root fs.FS) (nodes []Node, left []LeftOut, err error) {
	all, err := Nodes(root)
	if err != nil {
		return nil, nil, err
	}
	allowed, err := Allowed(root)
	if err != nil {
		return nil, nil, err
	}
	for i := range all {
		n := &all[i]
		switch {
		case n.MemoryBytes == 0:
			left = append(left, LeftOut{n.ID, "it has no memory"})
		case allowed.Nodes != nil && !allowed.Nodes.Has(n.ID):
			left = append(left, LeftOut{n.ID, "this process may not use its memory (cpuset)"})
		case len(n.CPUs) == 0:
			left = append(left, LeftOut{n.ID, "it has no cores: its memory is a GPU's, or behind a slower link"})
		default:
			nodes = append(nodes, *n)
		}
	}
	return nodes, left, nil
}

// RoomBytes is what of the node's memory can be had: what is free, and the pages
// of files.
func (n *Node) RoomBytes() uint64 { return min(n.FreeBytes+n.CacheBytes, n.MemoryBytes) }
