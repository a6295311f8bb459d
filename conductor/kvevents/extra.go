package kvevents

// SplitExtraKeys appends the entries of BlockStored.ExtraKeys to dst, one a hash, each
// a view. ok is false when they are no list.
func SplitExtraKeys(keys []byte, dst [][]byte) (entries [][]byte, ok bool) {
	c := cursor{data: keys}
	for range c.array() {
		from := c.at
		if c.skip(); c.err != nil {
			break
		}
		dst = append(dst, keys[from:c.at])
	}
	return dst, c.err == nil
}

// WalkExtraKeys calls visit for each value of an entry, in its order. value is as it
// came; text is what it says if it is a text, else nil.
func WalkExtraKeys(entry []byte, visit func(value, text []byte)) {
	c := cursor{data: entry}
	if c.null() {
		return
	}
	if code := c.peek(); code&0xf0 != 0x90 && code != codeArray16 && code != codeArray32 {
		visit(entry, nil) // no list: then it is the one value
		return
	}
	for range c.array() {
		from := c.at
		code := c.peek()
		if c.skip(); c.err != nil {
			return
		}
		value := entry[from:c.at]
		if code&0xe0 != 0xa0 && (code < codeStr8 || code > codeStr32) {
			visit(value, nil)
			continue
		}
		text := cursor{data: value}
		visit(value, text.bytes())
	}
}
