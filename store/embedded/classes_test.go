package embedded

import "testing"

func TestClassesAreStableAndOverflowIsShared(t *testing.T) {
	table := newClassTable()
	kind := func(i int) chunkKind { return chunkKind{slotBytes: uint32(i%4+1) << 12, namespace: uint16(i / 4)} }
	for i := range sharedClass {
		if got := table.class(kind(i)); int(got) != i {
			t.Fatalf("kind %d has class %d", i, got)
		}
	}
	if got := table.among(func(*chunkKind) bool { return false }); got != 1<<sharedClass {
		t.Fatalf("nothing matches, and the classes are %#x", got)
	}
	for i := range 100 {
		want := uint8(min(i, sharedClass))
		if got := table.class(kind(i)); got != want {
			t.Fatalf("kind %d has class %d, want %d", i, got, want)
		}
	}
	got := table.among(func(k *chunkKind) bool { return k.namespace == 1 })
	if want := uint64(0xf0) | 1<<sharedClass; got != want {
		t.Fatalf("classes of namespace 1: %#x, want %#x", got, want)
	}
}

func TestClassesBeforeOverflow(t *testing.T) {
	table := newClassTable()
	table.class(chunkKind{slotBytes: 4096})
	table.class(chunkKind{slotBytes: 4096, soft: true})
	table.class(chunkKind{slotBytes: 8192})
	if got := table.among(func(k *chunkKind) bool { return k.slotBytes == 4096 && !k.soft }); got != 1 {
		t.Fatalf("classes %#x, want 1", got)
	}
}
