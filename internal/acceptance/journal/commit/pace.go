package commit

import "time"

// pace is how fast entries come and segments are written. It decides whether a segment waits for further entries: every
// segment is a request to write and one to read for each follower, and every wait is in the answers.
type pace struct {
	since   time.Time
	entries int           // that came since then
	rate    float64       // entries a second, over the last whole second
	write   time.Duration // of a segment, the recent ones counting more
}

const (
	// rateOver is the time over which the rate is counted, at least.
	rateOver = time.Second
	// fastWrites: a store that writes a segment in less than this part of the linger is near and not paid by the
	// request, and answers would take many times as long for nothing.
	fastWrites = 5
)

// came notes entries.
func (p *pace) came(now time.Time, n int) {
	if p.since.IsZero() {
		p.since = now
	}
	if d := now.Sub(p.since); d >= rateOver {
		p.since, p.entries, p.rate = now, 0, float64(p.entries)/d.Seconds()
	}
	p.entries += n
}

// wrote notes how long a segment took.
func (p *pace) wrote(took time.Duration) {
	if p.write == 0 {
		p.write = took
	}
	p.write = (3*p.write + took) / 4
}

// lets reports whether a wait of that length is worth it: another entry is to be expected meanwhile, so that a lone sender
// never waits, and the store is slow.
func (p *pace) lets(linger time.Duration) bool {
	return p.rate*linger.Seconds() >= 1 && p.write*fastWrites >= linger
}
