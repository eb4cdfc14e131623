package engine

// Cond is what must hold for the key at the moment when a write is decided.
type Cond struct {
	Absent bool   // no object (If-None-Match: *)
	Match  string // its ETag, or "*" for any (If-Match); empty: no condition
	Seq    uint64 // this very write; 0: no condition
	// HasSize: its size is Size. HasModified: it was last modified in the second Modified of Unix time.
	HasSize, HasModified bool
	Size, Modified       int64
	at                   position
	atIsSet              bool // the record is at this place (reclaiming space)
	// BypassGovernance is no condition: a governance retention does not protect what the write replaces or deletes.
	BypassGovernance bool
}

// IsSet reports whether there is a condition.
func (c Cond) IsSet() bool {
	c.BypassGovernance = false
	return c != Cond{}
}

// Check decides the condition against an object; nil is absent.
func (c Cond) Check(b *Brief) error {
	switch {
	case c.Absent && b != nil:
		return ErrPrecondition
	case b == nil && (c.Match != "" || c.Seq != 0 || c.atIsSet || c.HasSize || c.HasModified):
		return ErrNotFound
	case c.Match != "" && c.Match != "*" && (b.ETag == "" || b.ETag != c.Match):
		return ErrPrecondition
	case c.HasSize && b.Size != c.Size, c.HasModified && b.Modified.Unix() != c.Modified:
		return ErrPrecondition
	case c.Seq != 0 && b.Seq != c.Seq:
		return ErrPrecondition
	}
	return nil
}

// checkCondition decides a condition of a key whose entry is x; nil is absent. Where a lost
// write may have been the last one of the key, the condition cannot be decided and the error is
// ErrUncertain. The exception is Absent on a known key: whatever was lost, the key was created
// before, so the answer is ErrPrecondition.
func (e *Engine) checkCondition(c Cond, key string, x *entry) error {
	if c.IsSet() && !(c.Absent && x != nil) {
		if err := e.uncertain(x); err != nil {
			return err
		}
	}
	if x == nil {
		return c.Check(nil)
	}
	brief := x.brief(key)
	return c.Check(&brief)
}
