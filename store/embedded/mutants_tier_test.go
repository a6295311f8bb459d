//go:build mutants

package embedded

// tierMutants are mistakes in the disk tier's removals, and between it and memory.
// That a late write and a read under way do not bring back what was removed, and
// that nothing slips down in the midst of a removal, is shown by tests of their own.
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
		"links, onDisk, below := m.diskLinks(links, sel)", "_, onDisk, below := m.diskLinks(links, sel)"},
}
