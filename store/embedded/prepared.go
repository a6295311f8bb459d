package embedded

// PreparedBytes returns how far the segment in mem is allocated by now: what is
// beyond must not be touched. mem is a mapping of a running master's segment, so
// that the answer grows; done: it will not any more.
func PreparedBytes(mem []byte) (n uint64, done bool) {
	layout, err := ReadLayout(mem, uint64(len(mem)))
	if err != nil {
		return 0, true // none of ours
	}
	s := segment{Layout: layout, mem: mem}
	slabs := s.prepared()
	return s.DataOffset + uint64(slabs)*s.SlabBytes, slabs == s.Slabs
}
