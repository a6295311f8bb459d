package embedded

import "testing"

// TestClassesOfKinds: a kind has one class as long as it has chunks, kinds that
// find none left share one, and a class without chunks is another's to have.
func TestClassesOfKinds(t *testing.T) {
	table := newClassTable()
	kind := func(i int) chunkKind { return chunkKind{slotBytes: uint32(i+1) << 12} }
	for i := range 100 {
		if got, want := table.enter(kind(i)), uint8(min(i, sharedClass)); got != want {
			t.Fatalf("kind %d has class %d, want %d", i, got, want)
		}
	}
	if got := table.among(func(*chunkKind) bool { return false }); got != 1<<sharedClass {
		t.Fatalf("nothing matches, and the classes are %#x", got)
	}
	one := func(k *chunkKind) bool { return k.slotBytes == kind(7).slotBytes }
	if got, want := table.among(one), uint64(1<<7|1<<sharedClass); got != want {
		t.Fatalf("classes %#x, want %#x", got, want)
	}
	table.leave(kind(7))
	if got := table.among(one); got != 1<<sharedClass {
		t.Fatalf("classes %#x of a kind without chunks", got)
	}
	if got := table.enter(kind(80)); got != sharedClass {
		t.Fatalf("a kind with chunks in the shared class has class %d, too", got)
	}
	table.leave(kind(80))
	for i := sharedClass; i < 100; i++ {
		table.leave(kind(i))
	}
	if got := table.enter(kind(80)); got != 7 {
		t.Fatalf("the class that came free is %d, want 7", got)
	}
	if got := table.among(func(*chunkKind) bool { return true }); got != 1<<sharedClass-1 {
		t.Fatalf("classes %#x", got)
	}
}
