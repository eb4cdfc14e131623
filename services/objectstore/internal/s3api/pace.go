package s3api

import (
	"errors"
	"io"
	"net/http"
	"time"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/s3err"
)

// Least rates of bodies, bytes a second, beyond the time of one piece that every body has: who sends a byte now and then
// would hold a request's place for as long as he likes. What nobody has signed must come faster. The time in which the store
// does not read does not count.
const (
	leastRate          = 1 << 10
	leastRateAnonymous = 16 << 10
)

// pace gives the request's body with its deadlines.
func (c *call) pace() *pacedReader {
	return &pacedReader{r: c.r.Body, rc: &c.conn, idle: c.IdleTimeout, rate: c.leastRate(), now: time.Now}
}

func (c *call) leastRate() int64 {
	if c.anonymous {
		return leastRateAnonymous
	}
	return leastRate
}

// pacedReader gives a client the time idle for each piece of its body, and one that grows with what has come for all of
// them; it reports the progress to the body's share of the memory.
type pacedReader struct {
	r     io.Reader
	rc    *http.ResponseController
	idle  time.Duration
	rate  int64 // bytes a second at least
	now   func() time.Time
	set   time.Time
	by    time.Time // the end of all pieces; zero: there is none
	share *share    // nil until there is one

	arrived int64         // bytes
	waited  time.Duration // in reads
}

func (p *pacedReader) Read(b []byte) (int, error) {
	// A socket deadline is wall time by nature.
	now := p.now()
	// The deadline is moved in steps of a quarter: setting it for every read would cost as much as
	// reading small pieces.
	if now.Sub(p.set) > p.idle/4 {
		p.set = now
		until := now.Add(p.idle)
		if !p.by.IsZero() && p.by.Before(until) {
			until = p.by
		}
		if err := p.rc.SetReadDeadline(until); err != nil && !errors.Is(err, http.ErrNotSupported) {
			return 0, err
		}
	}
	if p.share != nil {
		p.share.reading.Store(now.UnixNano())
		// Checked after the deadline was set. Otherwise a share could be revoked, with an expired
		// deadline, between the check and our own deadline, which would undo the cut.
		if p.share.revoked.Load() {
			return 0, errSlowBody
		}
	}
	n, err := p.r.Read(b)
	p.arrived += int64(n)
	p.waited += p.now().Sub(now)
	if p.share != nil {
		p.share.reading.Store(0)
		p.share.arrived.Add(int64(n))
		if err != nil && p.share.revoked.Load() {
			return n, errSlowBody
		}
	}
	if err == nil && p.waited-p.idle > p.earned() {
		return n, errTrickle
	}
	if err != nil && !errors.Is(err, io.EOF) {
		err = s3err.IncompleteBody.With("The body could not be read to its end: %v", err)
	}
	return n, err
}

// earned is the time that the bytes which have come may take.
func (p *pacedReader) earned() time.Duration {
	return time.Duration(float64(p.arrived) / float64(p.rate) * float64(time.Second))
}

var errSlowBody = s3err.RequestTimeout.With("The body came too slowly while other requests waited for the memory that it held.")

var errTrickle = s3err.RequestTimeout.With("The body came too slowly.")
