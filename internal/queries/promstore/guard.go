package promstore

// Guard bounds a query while it reads. An error of a method ends the reading and becomes the
// error of the query.
type Guard interface {
	// Check is called every few samples, by the goroutines that read them.
	Check() error
	// Points is called before so many points of a series are made, by the same goroutine.
	Points(n int64, histograms bool) error
	// Reserve is called before the query holds so many bytes more. From any goroutine.
	Reserve(bytes int64) error
}

// WithGuard bounds the query by g. Call it before the first read.
func (q *Queryable) WithGuard(g Guard) *Queryable {
	q.guard = g
	return q
}

// Check returns an error when the query must end. To be called between samples.
func (q *Queryable) Check() error {
	if q.guard == nil {
		return nil
	}
	return q.guard.Check()
}

// Reserve takes memory for what the query holds until it ends.
func (q *Queryable) Reserve(bytes int64) error {
	if q.guard == nil {
		return nil
	}
	return q.guard.Reserve(bytes)
}

// lookback is how long after its last sample a series may still have points: the engine's
// default; what a query wants instead is not known here.
const lookback = 5 * 60 * 1000

// reading is what a selector wants of its series, milliseconds.
type reading struct {
	q          *Queryable
	mint, maxt int64
	step       int64 // 0 is one time
	span       int64 // of a range selector
	all        bool  // every sample of the range is a point
}

// points is the most that the engine makes of a series: one for each step at which it has
// samples, as far as its place in memory and in the blocks tells.
func (r *reading) points(m *merged) int64 {
	from, to := m.times()
	from, to = max(from, r.mint), min(to, r.maxt)
	if r.step <= 0 || to < from {
		return 1
	}
	// After its last sample a series has points for the range of the selector or the lookback, and none
	// outside of the query, whose first step reads the range before it.
	return min(to-from+max(r.span, lookback), r.maxt-r.mint-r.span)/r.step + 1
}

// checkSamples is how many samples are read between two checks: a power of two.
const checkSamples = 16

// seriesBytes estimates the memory of a series that a selector found, without its labels.
const seriesBytes = 256
