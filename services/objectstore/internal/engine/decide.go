package engine

// note puts what an operation makes of its record, at pos, into the overlay.
func (v *overlay) note(o *op, pos position) {
	switch o.rec.kind {
	case kindPut, kindLost:
		o.entry = entryOf(&o.rec, &o.obj, pos)
		v.set(o.rec.bucket, o.rec.key, o.entry)
		if o.versioning != Unversioned && v.newest != nil {
			key, _ := clientKey(o.rec.key)
			v.newest[name{o.rec.bucket, key}] = o.entry
		}
	case kindDelete:
		v.set(o.rec.bucket, o.rec.key, nil)
	}
}

// skipped reports whether an operation succeeded with nothing to write: a delete of an absent
// key. While lost writes may have created the key, the delete is written all the same, so that
// a record of it cannot bring the key back.
func (e *Engine) skipped(o *op) bool {
	return o.rec.kind == kindDelete && o.prev == nil && !o.tombstone && o.versioning == Unversioned && e.uncertain(nil) == nil
}

func (e *Engine) decide(v *overlay, o *op) (err error) {
	r := &o.rec
	if o.change != nil {
		return e.decideBuckets(o)
	}
	if o.declare {
		o.rec, err = e.declaration()
		return err
	}
	if !o.tombstone {
		// The bucket is checked here and not only by the caller: it may have been deleted while
		// the operation waited. A copied tombstone is kept even after its bucket is gone.
		b, err := e.Bucket(r.bucket)
		if err != nil {
			return err
		}
		if o.byRule {
			o.versioning = b.Versioning()
		}
	}
	current, err := v.find(o)
	if err != nil {
		return err
	}
	if o.upload != "" {
		if err := v.decideUpload(o); err != nil {
			return err
		}
	}
	if r.kind == kindPut && !o.cond.atIsSet && e.batchFull != nil {
		if err := e.checkCondition(o.cond, r.key, current); err != nil {
			return err // freeing space would not change this answer, so the client should not retry
		}
		return e.batchFull
	}
	switch {
	// A copy of reclaiming lost against a newer write of the same key: nothing to do.
	case o.tombstone && o.prev != nil, o.cond.atIsSet && (o.prev == nil || o.prev.pos != o.cond.at):
		return ErrPrecondition
	case o.tombstone || o.cond.atIsSet:
		return nil
	}
	if err := e.checkCondition(o.cond, r.key, current); err != nil {
		return err
	}
	if err := e.checkLock(o, o.prev); err != nil {
		return err
	}
	return v.decideQuota(o)
}

// find finds the entry that an operation replaces, and gives the one that its condition is about.
func (v *overlay) find(o *op) (current *entry, err error) {
	r := &o.rec
	if o.versioning != Enabled { // a new version replaces nothing
		if o.prev, err = v.record(r.bucket, r.key); err != nil {
			return nil, err
		}
	}
	switch {
	case o.versioning == Unversioned:
		return o.prev, nil
	case o.versioning == Enabled && !o.cond.IsSet():
		return nil, nil // nobody asks
	}
	return v.current(r.bucket, r.key)
}
