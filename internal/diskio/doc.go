// Package diskio is the disk tier's directory on a real file system: a data file
// that is read and written past the page cache, and small files that are replaced
// whole.
//
// The page cache would keep a second copy of what is in the store's memory, or
// about to be, and push out what the machine needs. So the data file is opened
// with O_DIRECT. A file system that has no such thing (some network and overlay
// file systems) is used through the page cache, which is told after each call to
// forget what was moved.
package diskio
