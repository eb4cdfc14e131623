package promstore

// Parallel does tasks at the same time and takes their results in order, so that these do not depend on who was faster:
// platform/inorder.Pool, which says what its methods do.
type Parallel interface {
	Workers() int
	Slots() int
	Do(n int, work func(worker, slot, k int), take func(slot, k int) error) error
}

// WithParallel lets selections of about so many samples, and larger ones, be read with p. Call it before the first read.
func (q *Queryable) WithParallel(p Parallel, samples int64) *Queryable {
	q.parallel, q.parallelSamples = p, samples
	return q
}

// ParallelFor is what reads about so many samples.
func (q *Queryable) ParallelFor(samples int64) Parallel {
	if q.parallel == nil || samples < q.parallelSamples {
		return alone{}
	}
	return q.parallel
}

// alone does one task after the other.
type alone struct{}

func (alone) Workers() int { return 1 }
func (alone) Slots() int   { return 1 }

func (alone) Do(n int, work func(worker, slot, k int), take func(slot, k int) error) error {
	for k := range n {
		work(0, 0, k)
		if err := take(0, k); err != nil {
			return err
		}
	}
	return nil
}
