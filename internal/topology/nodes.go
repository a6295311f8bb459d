package topology

import (
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
)

// Unknown stands for a number that is not known.
const Unknown = -1

const nodeDir = "sys/devices/system/node"

// maxDistance bounds a distance; the kernel's are bytes.
const maxDistance = 255

// Node is one NUMA node that is online.
type Node struct {
	ID int `json:"id"`
	// CPUs of the node that are online; none for a node of memory alone.
	CPUs Set `json:"cpus"`
	// MemoryBytes is all memory of the node, 0 for a node of CPUs alone; FreeBytes
	// is what nothing uses, caches not counted as free. CacheBytes are pages of files,
	// which the kernel gives up for others; shared memory is not among them.
	MemoryBytes uint64 `json:"memory_bytes"`
	FreeBytes   uint64 `json:"free_bytes"`
	CacheBytes  uint64 `json:"cache_bytes"`
	// Distances to the nodes, in the order of the slice that Nodes returned; 10 is
	// the node itself. Nil when the kernel does not say.
	Distances []int `json:"distances,omitempty"`
}

// Nodes reads the NUMA nodes that are online, in the order of their numbers. root
// is the root file system. None when the kernel has no NUMA, or sysfs is not
// there.
func Nodes(root fs.FS) ([]Node, error) {
	ids, err := onlineNodes(root)
	if err != nil {
		return nil, err
	}
	nodes := make([]Node, 0, len(ids))
	for _, id := range ids {
		node, err := readNode(root, id, len(ids))
		if err != nil {
			return nil, err
		}
		nodes = append(nodes, node)
	}
	return nodes, nil
}

// onlineNodes returns the numbers of the nodes. Where the kernel does not say
// which are online, those are that have a directory.
func onlineNodes(root fs.FS) (Set, error) {
	names, err := list(root, nodeDir)
	if err != nil {
		return nil, err
	}
	online, there, err := readSet(root, nodeDir+"/online")
	if err != nil {
		return nil, err
	}
	var ids Set
	for _, name := range names {
		digits, is := strings.CutPrefix(name, "node")
		if !is {
			continue
		}
		if id, err := parseNumber(digits); err == nil && (!there || online.Has(id)) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids) // names are sorted as texts
	return ids, nil
}

func readNode(root fs.FS, id, nodes int) (Node, error) {
	dir := nodeDir + "/node" + strconv.Itoa(id)
	cpus, _, err := readSet(root, dir+"/cpulist")
	if err != nil {
		return Node{}, err
	}
	node := Node{ID: id, CPUs: cpus}
	if text, there, err := readText(root, dir+"/meminfo"); err != nil {
		return Node{}, err
	} else if there {
		if err := node.parseMemory(text); err != nil {
			return Node{}, fmt.Errorf("/%s/meminfo: %w", dir, err)
		}
	}
	if text, there, err := readText(root, dir+"/distance"); err != nil {
		return Node{}, err
	} else if there {
		if node.Distances, err = parseDistances(text, nodes); err != nil {
			return Node{}, fmt.Errorf("/%s/distance: %w", dir, err)
		}
	}
	return node, nil
}

// parseMemory reads lines like "Node 0 MemTotal: 24684096 kB".
func (n *Node) parseMemory(text string) error {
	var fileBytes, sharedBytes uint64
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) < 4 || words[0] != "Node" {
			continue
		}
		into := &n.MemoryBytes
		switch words[2] {
		case "MemTotal:":
		case "MemFree:":
			into = &n.FreeBytes
		case "FilePages:":
			into = &fileBytes
		case "Shmem:":
			into = &sharedBytes
		default:
			continue
		}
		kibibytes, err := strconv.ParseUint(words[3], 10, 50)
		if err != nil {
			return fmt.Errorf("%w: %.80q", ErrText, line)
		}
		*into = kibibytes << 10
	}
	n.CacheBytes = fileBytes - min(sharedBytes, fileBytes)
	return nil
}

// parseDistances reads one row of the matrix. It has a column for each node that
// is online; a row of another length says of none which one it is meant for.
func parseDistances(text string, nodes int) ([]int, error) {
	words := strings.Fields(text)
	if len(words) != nodes {
		return nil, nil
	}
	row := make([]int, len(words))
	for i, word := range words {
		n, err := parseNumber(word)
		if err != nil || n > maxDistance {
			return nil, fmt.Errorf("%w: distance %.40q; want 0 to %d", ErrText, word, maxDistance)
		}
		row[i] = n
	}
	return row, nil
}

// NodeOf returns the one node that has all of the CPUs, Unknown when they are
// none, or on several.
func NodeOf(nodes []Node, cpus Set) int {
	if len(cpus) == 0 {
		return Unknown
	}
	for i := range nodes {
		if cpus.Within(nodes[i].CPUs) {
			return nodes[i].ID
		}
	}
	return Unknown
}
