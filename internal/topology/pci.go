package topology

import (
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"
)

const (
	pciDir = "sys/bus/pci/devices"
	// maxBridges bounds the path of a device; PCI has no more than 256 buses a
	// domain, and real trees a handful.
	maxBridges = 64
)

// Address is where a PCI function is, in sysfs's form: 0000:3b:00.0. Empty for
// what is not on PCI.
type Address string

// ParseAddress reads an address as sysfs writes it, and as drivers do: with a
// domain of four to eight digits or none, in capitals or small letters.
func ParseAddress(text string) (Address, error) {
	bad := func() (Address, error) {
		return "", fmt.Errorf("%w: PCI address %.40q; want one like 0000:3b:00.0", ErrText, text)
	}
	rest, function, hasFunction := strings.Cut(text, ".")
	parts := strings.Split(rest, ":")
	if len(parts) == 2 {
		parts = append([]string{"0"}, parts...)
	}
	if !hasFunction || len(parts) != 3 {
		return bad()
	}
	var n [4]uint64
	for i, p := range []struct {
		text string
		bits int
	}{{parts[0], 32}, {parts[1], 8}, {parts[2], 5}, {function, 3}} {
		value, err := strconv.ParseUint(p.text, 16, p.bits)
		if err != nil {
			return bad()
		}
		n[i] = value
	}
	return Address(fmt.Sprintf("%04x:%02x:%02x.%x", n[0], n[1], n[2], n[3])), nil
}

// Location is where a device is in the PCI tree and among the nodes.
type Location struct {
	// Address is empty for what is not on PCI; all else is unknown then.
	Address Address `json:"pci,omitempty"`
	// HostBridge names the root of its PCI tree: pci0000:3a. Empty when not known.
	HostBridge string `json:"host_bridge,omitempty"`
	// Bridges lead from the root to the device: root port, then each switch's
	// upstream and downstream port.
	Bridges []Address `json:"bridges,omitempty"`
	// Node is next to the device, Unknown when nothing says which.
	Node int `json:"numa_node"`
	// NodeFrom says whence Node is known, empty when it is not.
	NodeFrom NodeSource `json:"numa_node_from,omitempty"`
	// CPUs are those next to the device by the kernel's word, nil when it has none.
	CPUs Set `json:"cpus,omitempty"`
}

// NodeSource says whence a device's node is known.
type NodeSource string

// The sources, from the best.
const (
	FromDevice NodeSource = "numa_node"     // the firmware told the kernel
	FromCPUs   NodeSource = "local_cpulist" // all of the device's CPUs are on that node
	FromDriver NodeSource = "driver"        // NVML told
	FromBridge NodeSource = "host_bridge"   // what else is under its host bridge is there
	FromOnly   NodeSource = "only_node"     // the machine has no other
)

// locate reads the location of a PCI function. What sysfs does not know of the
// address is unknown in the answer.
func locate(root fs.FS, address Address) (Location, error) {
	at := Location{Address: address, Node: Unknown}
	if address == "" {
		return at, nil
	}
	dir := pciDir + "/" + string(address)
	target, err := readLink(root, dir)
	if err != nil {
		return Location{}, err
	}
	at.HostBridge, at.Bridges = parsePath(target)
	if at.Node, err = readInt(root, dir+"/numa_node"); err != nil {
		return Location{}, err
	}
	if at.Node != Unknown {
		at.NodeFrom = FromDevice
	}
	if at.CPUs, _, err = readSet(root, dir+"/local_cpulist"); err != nil {
		return Location{}, err
	}
	return at, nil
}

// parsePath reads the way to a device in /sys/devices: the host bridge's
// directory, then one directory a bridge, then its own. Virtual machines put
// other things above (a Hyper-V bus); they are passed over.
func parsePath(target string) (hostBridge string, bridges []Address) {
	parts := strings.Split(target, "/")
	for i, part := range parts {
		if digits, is := strings.CutPrefix(part, "pci"); is && strings.Contains(digits, ":") {
			// The last one counts: a bridge with a domain of its own (VMD) has its tree
			// below a device of another.
			hostBridge, bridges = part, nil
			continue
		}
		if hostBridge == "" || i == len(parts)-1 {
			continue
		}
		if address, err := ParseAddress(part); err == nil && len(bridges) < maxBridges {
			bridges = append(bridges, address)
		}
	}
	return hostBridge, bridges
}

// addressOf returns the PCI function that a class device (a network interface, an
// RDMA device) belongs to, empty when it belongs to none. Devices of virtio and
// their like have a bus of their own between the two.
func addressOf(root fs.FS, classDevice string) (Address, error) {
	// What is in /sys/class are links itself, and a link below is relative to the
	// real directory.
	if directory, err := readLink(root, classDevice); err != nil {
		return "", err
	} else if directory != "" {
		classDevice = directory
	}
	target, err := readLink(root, classDevice+"/device")
	if err != nil || target == "" {
		return "", err
	}
	for ; target != "."; target = path.Dir(target) {
		if address, err := ParseAddress(path.Base(target)); err == nil {
			return address, nil
		}
	}
	return "", nil
}
