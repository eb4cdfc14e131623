package work

// The decisions of a table, separate from how a back end makes reading and writing one step. cur is the row as it
// is, nil when absent; live says that its hold has not run out. The results have no new Increment and no times:
// the back end sets them.

// DecideCreate returns the row that Create writes.
func DecideCreate(cur *Row, log Log, r Row, c *Claim) (Row, error) {
	// The log remembers the fence of completed jobs, so that a stale owner can't create the next one.
	fence := max(r.Fence, log.Fence)
	switch {
	case r.Number <= log.Last:
		return Row{}, failed("create", r.Key, ErrCompleted)
	case cur != nil:
		return Row{}, failed("create", r.Key, ErrExists)
	case c != nil && c.Fence < fence:
		return Row{}, failed("create", r.Key, ErrFenced)
	}
	n := Row{Key: r.Key, Topic: r.Topic, Body: r.Body, State: r.State, Fence: fence}
	if c != nil {
		n.Active, n.Live, n.Owner, n.Fence, n.Attempts = true, true, c.Owner, c.Fence, 1
	}
	return n, nil
}

// DecideClaim returns the row that Claim writes.
func DecideClaim(cur *Row, live bool, r Row, c Claim) (Row, error) {
	switch {
	case !unmoved(cur, r):
		return Row{}, failed("claim", r.Key, ErrMoved)
	case c.Fence < cur.Fence:
		return Row{}, failed("claim", r.Key, ErrFenced)
	// A greater fence takes over at once: the holder's grant is known to be superseded.
	case cur.Active && live && c.Fence <= cur.Fence:
		return Row{}, failed("claim", r.Key, ErrLive)
	}
	n := *cur
	n.Active, n.Live, n.Owner, n.Fence = true, true, c.Owner, c.Fence
	// Counted here and not when a job fails, since a job may kill its worker.
	n.Attempts++
	return n, nil
}

// DecideCheckpoint returns the row that Checkpoint writes.
func DecideCheckpoint(cur *Row, r Row, state []byte) (Row, error) {
	if !unmoved(cur, r) || !cur.Active {
		return Row{}, failed("checkpoint", r.Key, ErrMoved)
	}
	n := *cur
	// Progress resets the attempts: only a job that never gets further is buried.
	n.State, n.Live, n.Attempts = state, true, 0
	return n, nil
}

// DecideRelease returns the row that Release writes.
func DecideRelease(cur *Row, r Row, handOver bool) (Row, error) {
	if !unmoved(cur, r) || !cur.Active {
		return Row{}, failed("release", r.Key, ErrMoved)
	}
	n := *cur
	n.Active, n.Live = false, false
	if handOver {
		// Handing over is no failure: the time was up, not the work.
		n.Attempts = 0
	}
	return n, nil
}

// DecideTouch returns the row that Touch writes.
func DecideTouch(cur *Row, live bool, r Row) (Row, error) {
	switch {
	case !unmoved(cur, r):
		return Row{}, failed("touch", r.Key, ErrMoved)
	case cur.Active && live:
		return Row{}, failed("touch", r.Key, ErrLive)
	}
	n := *cur
	n.Live = false
	return n, nil
}

// DecideDone returns the log that Done writes as it removes the row.
func DecideDone(cur *Row, log Log, r Row) (Log, error) {
	if !unmoved(cur, r) {
		return Log{}, failed("done", r.Key, ErrMoved)
	}
	log.Name = r.Log
	// Jobs may end out of order when an operator cancels one.
	log.Last = max(log.Last, r.Number)
	log.Fence = max(log.Fence, cur.Fence)
	log.Result = nil
	// Logs outlive their rows and are listed in pages, so what they keep is small.
	if len(cur.State) <= MaxResult {
		log.Result = cur.State
	}
	return log, nil
}

// unmoved reports that the row is still as it was read. The owner is compared too, as increments can repeat after
// a log was forgotten.
func unmoved(cur *Row, r Row) bool {
	return cur != nil && cur.Increment == r.Increment && cur.Owner == r.Owner
}

func failed(op string, k Key, err error) error { return &Error{Op: op, Key: k.String(), Err: err} }
