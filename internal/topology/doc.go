// Package topology reads how a machine hangs together: its NUMA nodes, PCI tree,
// GPUs and network adapters, how far each is from the others, and which of them
// belong to a worker.
//
// It is pure: what it reads is a root file system that the caller hands in (sysfs
// and procfs below it), and GPUs come from the caller too, for the driver alone
// knows their UUIDs. Sysfs is written by the kernel, but what a container shows
// below /sys need not be: every parser has limits.
//
// Nothing here is needed to run. A machine without NUMA, without PCI or without
// sysfs gives fewer facts, and no error: an error means a file that is there and
// says what it must not.
//
// A number that is not known is -1 (Unknown), as in sysfs itself.
package topology
