// Package disk is the disk tier of the embedded store: chunks that memory has no
// room for are written to a local directory, and read back when they are asked
// for. It knows nothing of the store's records and slots; package embedded gives
// it bytes to keep and takes bytes from it.
//
// # File
//
// One large file is a ring of regions, each a log of records:
//
//	superblock | probe page | region 0 | region 1 | ...
//	region: header page | record | record | ... | unused
//	record: header (640 bytes) and the shards' bytes, up to a whole page
//
// A record is a whole chunk, all shards of it, because a part of a chunk is of no
// use to anybody: one read brings it back and one checksum each shard proves it.
// Regions are filled one after the other by one writer. When all are full the
// eviction policy names a region, and all that is in it goes.
//
// A log of regions was chosen over slots of fixed sizes: writes are large and
// sequential whatever the chunks' sizes are, so that the drive has nothing to
// move behind our back and lives longer; chunks of several models share it
// without stranded space; and a restart reads one page a record along each
// region. What it costs is that eviction is by region. Chunks that were demoted
// together were used last at about the same time, so little is lost; and what
// was promoted is in memory, from where it is written anew.
//
// The file is read and written past the page cache (internal/diskio): cached
// chunks would be in memory twice, and reading ahead is of no use. Each lane of
// I/O has one aligned buffer; between it and the store's memory bytes are copied,
// and summed on the way.
//
// # Trust in what is read
//
// A record names its namespace by digest, its group, its hash, the number of the
// region's use that it was written in, and has a checksum over that; it has the
// CRC-32C of each shard, computed by the worker that stored it. A record that is
// torn, stale, another's, or has wrong bytes is a miss. A write that a kill cut
// short can only stand at the end of the region that was written to last, which
// is read in full at the next start.
//
// # Removal
//
// What was removed must not come back, whatever state the disk, the file and the
// catalog are in. So no record is touched: removals are a list of what they name
// (everything, a namespace, a salt tag, single chunks), each with a number, and
// every record bears the number of the latest removal before it was handed over,
// its birth. A record is void if a later removal names it. That is asked when a
// record is found at the start, when a chunk is written, looked up and read, and
// it needs neither the record nor an entry in the catalog. A removal is
// acknowledged when the list is on the disk, in a small file that is replaced
// whole; before, the caller is told that a restart may undo it. A record is written
// after the removals that it is younger than: one that is ahead of the list says
// that a removal was lost, and all that is older is given up.
//
// A removal that goes by what the catalog knows, as of a chain, finds all there
// is: a region that leaves the catalog before it is written over is void as a
// whole (removals.void), and so is what a failed write may have left; and the file is
// synced before the removal is acknowledged if a region was begun anew since it was
// synced last, as the power could take the header that voids what it had. It is synced
// whenever a region was begun, so that few removals have to wait for that. The list is
// short: what is older than all records is forgotten, and at a quarter of a million
// lines the oldest chunks are given up with the oldest half of it.
//
// # A slow or failing disk
//
// Every call has a deadline. The first that passes, or a few errors in a row,
// open the breaker: lookups answer absent at once, waiting reads are failed, and
// nothing is written, until a probe that writes and reads a page of its own has
// come through. A call that hangs holds a lane, its buffer and a goroutine until
// the kernel lets go, and nothing else: memory of the store is never the target
// of I/O, so that it is free again at the deadline. A full disk stops the growth
// of the file, not the tier: regions that are there are filled again, and now and
// then it is asked for more. The end of the tier waits for the calls under way, and
// no call is begun after it.
package disk
