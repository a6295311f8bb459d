// Package sdnotify speaks to the service manager that started this process:
// systemd, or what stands in for it. Without one every call does nothing.
//
// Messages are datagrams to NOTIFY_SOCKET (sd_notify(3)). They are sent by the
// loops that move data, so a manager that does not read must not hold them up:
// a message that can't be sent at once is dropped, and that is logged once.
//
// Descriptors come both ways: sockets that the manager listens at for us, and
// what we gave it to keep over our own death (the descriptor store). Both arrive
// as LISTEN_FDS with names.
package sdnotify
