package send_test

import (
	"fmt"
	"testing"
	"time"
)

// TestTheLinearizerIsBack: after an outage of the identity linearizer, in which each collector of each region says RETRY at once, senders
// are at work again within eight times the delay that collectors say, however long it was. They asked seldom meanwhile.
func TestTheLinearizerIsBack(t *testing.T) {
	for name, c := range map[string]struct{ collectors, fallback int }{"two in one list": {2, 0}, "six in one list": {6, 0}, "two lists": {6, 4}} {
		for _, away := range []time.Duration{time.Minute, time.Hour} {
			t.Run(fmt.Sprint(name, ", ", away), func(t *testing.T) {
				inWorld(t, func(t *testing.T, w *world) {
					var regions []*region
					for i := range c.collectors {
						r := w.region(fmt.Sprintf("192.0.2.%d:4750", i+1))
						regions = append(regions, r)
						w.cfg.Collectors = append(w.cfg.Collectors, r.address)
					}
					w.cfg.Collectors, w.cfg.Fallback = w.cfg.Collectors[c.fallback:], w.cfg.Collectors[:c.fallback]
					w.run()
					w.feed(time.Minute, 5*time.Second)
					asked := func() (n int) {
						for _, r := range regions {
							n += len(r.got())
						}
						return n
					}
					before := asked()
					for _, r := range regions {
						r.answers(retries)
					}
					stop := w.feedUntilStopped(5 * time.Second)
					time.Sleep(away)
					if n := asked() - before; n > int(away/(3*time.Second))+20 {
						t.Errorf("asked %d times in %s", n, away)
					}
					for _, r := range regions {
						r.answers(nil)
					}
					began := time.Now()
					for w.queue.Stats().Pending > 1 {
						time.Sleep(10 * time.Millisecond)
					}
					if took := time.Since(began); took > linearizerWaits*time.Second+time.Second {
						t.Errorf("at work again after %s", took)
					}
					stop()
					w.checkAll()
				})
			})
		}
	}
}

// linearizerWaits is the sender's.
const linearizerWaits = 8
