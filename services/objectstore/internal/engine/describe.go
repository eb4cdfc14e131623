package engine

// sumsSince is the first version of segments whose footers have the checksums' kinds in their entries. An index that was
// built from the footers of earlier ones does not know them.
const sumsSince = 4

// describe gives what a listing shows of an entry. For one of an early segment that has no checksum by the index, the record
// itself says which it has: it is read, which costs less than making the footer again, and a footer may know the keys of
// records that its segment has lost since.
func (e *Engine) describe(x *entry, bucket, key string) Brief {
	b := x.brief(key)
	b.Damaged = x.flags&flagLost != 0 || e.damages.of(x) != nil
	if x.sum == 0 && !b.Damaged && !x.isMarker() && e.ofEarlySegment(x) {
		// What cannot be read has no checksum here: a listing is of names, and a read of the object reports it.
		if o, err := e.readHead(x, bucket, key); err == nil {
			b.Checksum = Checksum{Algorithm: o.Checksum.Algorithm, Type: o.Checksum.Type}
		}
	}
	return b
}

func (e *Engine) ofEarlySegment(x *entry) bool {
	e.mu.RLock()
	defer e.mu.RUnlock()
	s := e.segments[x.pos.seg]
	return s != nil && s.version != 0 && s.version < sumsSince
}
