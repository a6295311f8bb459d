package topology

import (
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
)

const (
	rdmaDir = "sys/class/infiniband"
	netDir  = "sys/class/net"
	// maxPorts bounds the ports of an RDMA device; adapters have one or two.
	maxPorts = 64
)

// NIC is a network adapter: an RDMA device, or a network interface on PCI that
// has none.
type NIC struct {
	// RDMA is the device's name for verbs (mlx5_0), empty for none.
	RDMA string `json:"rdma,omitempty"`
	// Interfaces are the network interfaces of the same PCI function.
	Interfaces []string `json:"interfaces,omitempty"`
	Location
	// LinkLayer is InfiniBand or Ethernet (RoCE), empty without RDMA.
	LinkLayer string `json:"link_layer,omitempty"`
	// Active: a port of the RDMA device is up.
	Active bool `json:"active"`
	// RateGbps is that of the port: in billions of bits a second.
	RateGbps float64 `json:"rate_gbps,omitempty"`
}

// Label names the adapter in tables.
func (n *NIC) Label() string {
	if n.RDMA != "" {
		return n.RDMA
	}
	return strings.Join(n.Interfaces, "/")
}

// nicsOf reads the network adapters: RDMA devices first, each kind in the order
// of their names, numbers by value.
func nicsOf(root fs.FS) ([]NIC, error) {
	interfaces, err := interfacesByAddress(root)
	if err != nil {
		return nil, err
	}
	names, err := list(root, rdmaDir)
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(names, compareNames)
	nics := make([]NIC, 0, len(names)+len(interfaces))
	for _, name := range names {
		nic, err := readRDMA(root, name)
		if err != nil {
			return nil, err
		}
		if nic.Address != "" {
			nic.Interfaces = interfaces[nic.Address]
			delete(interfaces, nic.Address)
		}
		nics = append(nics, nic)
	}
	rest := make([]NIC, 0, len(interfaces))
	for address, names := range interfaces {
		at, err := locate(root, address)
		if err != nil {
			return nil, err
		}
		rest = append(rest, NIC{Interfaces: names, Location: at})
	}
	slices.SortFunc(rest, func(a, b NIC) int { return compareNames(a.Interfaces[0], b.Interfaces[0]) })
	return append(nics, rest...), nil
}

// interfacesByAddress lists the network interfaces that are on PCI.
func interfacesByAddress(root fs.FS) (map[Address][]string, error) {
	names, err := list(root, netDir)
	if err != nil {
		return nil, err
	}
	byAddress := map[Address][]string{}
	for _, name := range names {
		address, err := addressOf(root, netDir+"/"+name)
		if err != nil {
			return nil, err
		}
		if address != "" {
			byAddress[address] = append(byAddress[address], name)
		}
	}
	return byAddress, nil
}

// readRDMA reads an RDMA device. One in software (rxe, siw) is on no PCI.
func readRDMA(root fs.FS, name string) (NIC, error) {
	dir := rdmaDir + "/" + name
	address, err := addressOf(root, dir)
	if err != nil {
		return NIC{}, err
	}
	nic := NIC{RDMA: name}
	if nic.Location, err = locate(root, address); err != nil {
		return NIC{}, err
	}
	ports, err := list(root, dir+"/ports")
	if err != nil {
		return NIC{}, err
	}
	for _, port := range ports[:min(len(ports), maxPorts)] {
		if err := nic.addPort(root, dir+"/ports/"+port); err != nil {
			return NIC{}, err
		}
	}
	return nic, nil
}

// addPort takes a port's link into account: the fastest that is up counts, else
// the first.
func (n *NIC) addPort(root fs.FS, dir string) error {
	state, _, err := readText(root, dir+"/state") // "4: ACTIVE"
	if err != nil {
		return err
	}
	layer, _, err := readText(root, dir+"/link_layer")
	if err != nil {
		return err
	}
	rateText, _, err := readText(root, dir+"/rate")
	if err != nil {
		return err
	}
	rate, err := parseRate(rateText)
	if err != nil {
		return fmt.Errorf("/%s/rate: %w", dir, err)
	}
	active := strings.HasPrefix(state, "4:")
	first := n.LinkLayer == ""
	if first || active && (!n.Active || rate > n.RateGbps) {
		n.LinkLayer, n.RateGbps = printable(layer), rate
	}
	n.Active = n.Active || active
	return nil
}

// parseRate reads "400 Gb/sec (4X NDR)"; 0 for an empty text.
func parseRate(text string) (gbps float64, err error) {
	words := strings.Fields(text)
	if len(words) == 0 {
		return 0, nil
	}
	gbps, err = strconv.ParseFloat(words[0], 64)
	if err != nil || !(gbps >= 0 && gbps < 1e6) || len(words) < 2 || words[1] != "Gb/sec" {
		return 0, fmt.Errorf("%w: rate %.40q; want one like 400 Gb/sec (4X NDR)", ErrText, text)
	}
	return gbps, nil
}

// compareNames orders names so that mlx5_2 is before mlx5_10.
func compareNames(a, b string) int {
	stemA, numberA := splitNumber(a)
	stemB, numberB := splitNumber(b)
	if stemA == stemB && numberA != numberB {
		return numberA - numberB
	}
	return strings.Compare(a, b)
}

// splitNumber parts a name from the number at its end.
func splitNumber(name string) (stem string, number int) {
	stem = strings.TrimRight(name, "0123456789")
	n, err := strconv.ParseUint(name[len(stem):], 10, 31)
	if err != nil {
		return name, 0
	}
	return stem, int(n)
}

// printable keeps a short text from outside to one word of ASCII.
func printable(text string) string {
	text = text[:min(len(text), 32)]
	return strings.Map(func(r rune) rune {
		if r <= ' ' || r > '~' {
			return -1
		}
		return r
	}, text)
}
