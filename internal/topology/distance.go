package topology

// Class is how far two devices are from each other, by the names of nvidia-smi
// topo -m. Classes compare: a smaller one is nearer.
type Class int

// The classes.
const (
	Self Class = iota // X: the device itself
	PIX               // at most one PCIe switch, or the device's own root port, is between
	PXB               // several PCIe bridges, but no host bridge
	PHB               // the PCIe host bridge
	NODE              // several host bridges of one NUMA node
	SYS               // the link between NUMA nodes, or not known
)

// String returns the name in tables.
func (c Class) String() string {
	return [...]string{"X", "PIX", "PXB", "PHB", "NODE", "SYS"}[c]
}

// MarshalText writes the name, for JSON.
func (c Class) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// Between returns the class of two locations. What is not known makes it far: a
// device without PCI or without a path is as far as its node says.
func Between(a, b *Location) Class {
	if a.Address != "" && a.Address == b.Address {
		return Self
	}
	if a.HostBridge != "" && a.HostBridge == b.HostBridge {
		shared := 0
		for shared < min(len(a.Bridges), len(b.Bridges)) && a.Bridges[shared] == b.Bridges[shared] {
			shared++
		}
		switch {
		case shared == 0:
			return PHB
		case max(len(a.Bridges), len(b.Bridges))-shared <= 1: // two ports of one switch
			return PIX
		}
		return PXB
	}
	if a.Node != Unknown && a.Node == b.Node {
		return NODE
	}
	return SYS
}
