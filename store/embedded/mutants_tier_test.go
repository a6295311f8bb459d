//go:build mutants

package embedded

// tierMutants are mistakes in the disk tier's removals, and between it and memory.
// That a late write and a read under way do not bring back what was removed is shown
// by tests of their own.
var tierMutants = []mutant{
	{"removals are not written down", "../disk/note.go",
		"return t.dir.WriteFile(removalsName, note.encode())", "_ = note\n\t\treturn nil"},
	{"single chunks are removed from the catalog only", "../disk/forget.go",
		"\t\tt.removed.add(marks...)\n", ""},
	{"tags are not removed", "../disk/forget.go",
		"\t\tt.removed.addWide(m)\n", ""},
	{"removals of before the start are forgotten", "../disk/open.go",
		"\tt.removeEarlyLocked()\n", ""},
	{"what was removed is found again", "../disk/scan.go",
		"!t.removed.counts(&h.Chunk, h.birth) || ", ""},
	{"what was removed while it was written is kept", "../disk/write.go",
		"if !t.removed.counts(&d.chunk, d.birth) {\n\t\treturn ErrGone", "if false {\n\t\treturn ErrGone"},
	{"a chunk is born after the next removal", "../disk/write.go",
		"d.birth = t.removed.count\n", "d.birth = t.removed.count + 1\n"},
	{"the floor is not written down", "../disk/removalsfile.go",
		"\tle.PutUint64(b[removalsFloorAt:], n.floor)\n", ""},
	{"a chain ends where memory ends", "removechain.go",
		"links = m.diskLinks(links, sel, &c)", "_ = m.diskLinks(links, sel, &c)"},
}

// slipMutants let something slip from memory to the disk in the midst of a removal.
// Each is found by a test of its own.
var slipMutants = []struct {
	test string
	mutant
}{
	{"TestRemovedWhileItGoesDown", mutant{"what is held is taken", "../disk/forget.go",
		"\tt.held[h] = struct{}{}\n", ""}},
	{"TestChainOverMemoryAndDisk", mutant{"a chain stays on the disk", "removechain.go",
		"\t\tdone.OnDisk += m.lower.tier.ForgetLinks(sel.tagText, c.onDisk)\n", ""}},
	{"TestChainThatIsBeingWritten", mutant{"what is being written of a chain stays", "removechain.go",
		"\t\tdone.OnDisk += m.lower.tier.ForgetLinks(nil, c.inMemory)\n", ""}},
	{"TestRemovedUnderAnotherTag", mutant{"what the disk has under another tag stays", "remove.go",
		"done.OnDisk += m.forgetOnDisk(maps.Keys(doomed))", "_ = maps.Keys(doomed)"}},
}
