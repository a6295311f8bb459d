package disk

// names numbers values that many entries share, and counts who has them, so that
// numbers are used again.
type names[T comparable] struct {
	ids   map[T]uint16
	items []name[T]
	spare []uint16
}

type name[T comparable] struct {
	value T
	uses  int
}

func newNames[T comparable]() names[T] { return names[T]{ids: map[T]uint16{}} }

// maxNames bounds the numbers.
const maxNames = 1 << 12

// take returns the value's number, which is used once more. False: there are too
// many values.
func (n *names[T]) take(value T) (uint16, bool) {
	id, known := n.ids[value]
	if !known {
		switch {
		case len(n.spare) > 0:
			id, n.spare = n.spare[len(n.spare)-1], n.spare[:len(n.spare)-1]
			n.items[id] = name[T]{value: value}
		case len(n.items) < maxNames:
			id = uint16(len(n.items))
			n.items = append(n.items, name[T]{value: value})
		default:
			return 0, false
		}
		n.ids[value] = id
	}
	n.items[id].uses++
	return id, true
}

// has tells whether take would find a number for a value now.
func (n *names[T]) has(value T) bool {
	_, known := n.ids[value]
	return known || len(n.spare) > 0 || len(n.items) < maxNames
}

// drop gives one use back.
func (n *names[T]) drop(id uint16) {
	item := &n.items[id]
	item.uses--
	if item.uses == 0 {
		delete(n.ids, item.value)
		n.spare = append(n.spare, id)
	}
}

func (n *names[T]) value(id uint16) T { return n.items[id].value }
