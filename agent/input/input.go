// Package input is what inputs give to the batcher: scrapes of samples, through a
// bounded channel that drops the newest scrape when it is full.
package input

import (
	"lightmetrics.dev/lightmetrics/pkg/frame"
)

// Series is one label set with its type. Inputs keep and share it from scrape to
// scrape, so that a known series costs no allocation. Not changed once it was pushed.
type Series struct {
	// Labels, __name__ among them; in any order.
	Labels []frame.Label
	Type   frame.MetricType
	Unit   string
	// Help says what the metric means, at most 2 KiB of UTF-8; empty when unknown.
	Help string
	// Start of the accumulation, Unix nanoseconds; 0 when unknown.
	Start int64
}

// Sample is a value of a series.
type Sample struct {
	Series *Series
	Time   int64 // Unix nanoseconds
	Value  float64
}

// Scrape is what one input saw at one time.
type Scrape struct {
	// Source for logs and counters, such as "host" or a job.
	Source  string
	Samples []Sample
}

// Channel carries scrapes to the batcher.
type Channel struct {
	c    chan Scrape
	drop func(samples int)
}

// NewChannel holds up to size scrapes; drop is told how many samples a refused scrape had.
func NewChannel(size int, drop func(samples int)) *Channel {
	return &Channel{c: make(chan Scrape, size), drop: drop}
}

// Push never blocks: an input that waits would scrape late. It reports whether the
// scrape was taken.
func (c *Channel) Push(s Scrape) bool {
	if len(s.Samples) == 0 {
		return true
	}
	select {
	case c.c <- s:
		return true
	default:
		c.drop(len(s.Samples))
		return false
	}
}

// C is the receiving end.
func (c *Channel) C() <-chan Scrape { return c.c }
