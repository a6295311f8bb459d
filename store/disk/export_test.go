package disk

// PruneFrom has lists of removals of that length looked through for what voids
// nothing any more.
func (o *Options) PruneFrom(lines int) { o.leastPrune = lines }
