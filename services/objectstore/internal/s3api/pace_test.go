package s3api

import (
	"errors"
	"io"
	"net/http"
	"testing"
	"time"
)

// trickle gives a piece of a body each interval of a clock of its own.
type trickle struct {
	now      time.Time
	piece    int
	interval time.Duration
	left     int
}

func (r *trickle) Read(p []byte) (int, error) {
	if r.left == 0 {
		return 0, io.EOF
	}
	r.now = r.now.Add(r.interval)
	n := min(len(p), r.piece, r.left)
	r.left -= n
	return n, nil
}

// A body may come slowly, but not for ever: a request that trickles ends, whoever it is of.
func TestBodiesHaveALeastRate(t *testing.T) {
	const idle = 30 * time.Second
	for name, c := range map[string]struct {
		rate      int64
		piece     int
		interval  time.Duration
		left      int
		busy      time.Duration
		cut       bool
		mostTimes int // reads before the cut
	}{
		"a byte before each deadline":   {rate: leastRate, piece: 1, interval: idle - time.Second, left: 1 << 20, cut: true, mostTimes: 2},
		"half the rate":                 {rate: leastRate, piece: leastRate / 2, interval: time.Second, left: 1 << 20, cut: true, mostTimes: 62},
		"just the rate":                 {rate: leastRate, piece: leastRate, interval: time.Second, left: 1 << 20},
		"a small body in the idle time": {rate: leastRate, piece: 1, interval: time.Second, left: 29},
		"pieces at the deadline":        {rate: leastRate, piece: 64 << 10, interval: idle - time.Second, left: 4 << 20},
		"unsigned, below its rate":      {rate: leastRateAnonymous, piece: leastRate, interval: time.Second, left: 1 << 20, cut: true, mostTimes: 33},
		"the store is slow":             {rate: leastRate, piece: 1, interval: time.Millisecond, left: 1000, busy: time.Minute},
	} {
		r := &trickle{now: time.Unix(1, 0), piece: c.piece, interval: c.interval, left: c.left}
		p := &pacedReader{r: r, rc: http.NewResponseController(deadlines{}), idle: idle, rate: c.rate, now: func() time.Time { return r.now }}
		var err error
		reads := 0
		for b := make([]byte, 64<<10); err == nil; reads++ {
			_, err = p.Read(b)
			r.now = r.now.Add(c.busy)
		}
		if c.cut != errors.Is(err, errTrickle) || !c.cut && !errors.Is(err, io.EOF) || c.cut && reads > c.mostTimes {
			t.Errorf("%s: %v after %d reads", name, err, reads)
		}
	}
	for anonymous, rate := range map[bool]int64{false: leastRate, true: leastRateAnonymous} {
		c := call{Server: &Server{}, r: &http.Request{}, anonymous: anonymous}
		if p := c.pace(); p.rate != rate {
			t.Errorf("anonymous %t: %d bytes a second", anonymous, p.rate)
		}
	}
}

// deadlines is a connection that takes them.
type deadlines struct{ http.ResponseWriter }

func (deadlines) SetReadDeadline(time.Time) error { return nil }
