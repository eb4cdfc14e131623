package live

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
)

// TestMatchers: all kinds of matchers against each series one by one.
func TestMatchers(t *testing.T) {
	const seed = 3
	rnd := rand.New(rand.NewPCG(seed, 1))
	s, err := New(Config{History: time.Hour, MaxBytes: 1 << 20, MaxSeries: 100})
	if err != nil {
		t.Fatal(err)
	}
	var all []labels.Labels
	for i := range 60 {
		b := labels.NewBuilder(labels.FromStrings("__name__", fmt.Sprint("m", i%3), "i", fmt.Sprint(i)))
		if i%2 == 0 {
			b.Set("a", fmt.Sprint("v", i%5))
		}
		ls := b.Labels()
		all = append(all, ls)
		s.series[uint32(i)] = &storedSeries{labels: ls}
		s.index.add(uint32(i), ls)
	}
	s.nextID = 60
	patterns := []string{"", "v1", "v1|v3", "v1|", ".*", ".+", "v[0-3]", "(v1)?", "x", "|x", "V1|v2", "(?i)V1|v2", "v.*|"}
	for range 2000 {
		var ms []*labels.Matcher
		for range 1 + rnd.IntN(2) {
			ms = append(ms, labels.MustNewMatcher(labels.MatchType(rnd.IntN(4)), []string{"a", "a", "__name__", "none"}[rnd.IntN(4)], patterns[rnd.IntN(len(patterns))]))
		}
		var want []string
		for _, ls := range all {
			if !slices.ContainsFunc(ms, func(m *labels.Matcher) bool { return !m.Matches(ls.Get(m.Name)) }) {
				want = append(want, ls.String())
			}
		}
		p := &Snapshot{store: s, nextID: s.nextID}
		found, err := p.find(t.Context(), ms)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, f := range found {
			got = append(got, f.labels.String())
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%v:\n got %v\nwant %v", ms, got, want)
		}
	}
}

// ends is a context that ends after some questions; each is asked without the store's lock.
type ends struct {
	context.Context
	t    *testing.T
	s    *Store
	left int
}

func (c *ends) Err() error {
	if !c.s.mu.TryLock() {
		c.t.Fatal("an expression is tried under the store's lock: nothing is inserted meanwhile")
	}
	c.s.mu.Unlock()
	if c.left--; c.left < 0 {
		return context.Canceled
	}
	return nil
}

// TestScansEnd: a regular expression that is tried on many values ends with its query, and
// holds nobody up.
func TestScansEnd(t *testing.T) {
	s, err := New(Config{History: time.Hour, MaxBytes: 1 << 20, MaxSeries: 100})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 1000 {
		ls := labels.FromStrings("a", fmt.Sprint(i))
		s.series[uint32(i)] = &storedSeries{labels: ls}
		s.index.add(uint32(i), ls)
	}
	p := &Snapshot{store: s, nextID: 1000}
	ctx := &ends{t.Context(), t, s, 10}
	if _, err := p.scan(ctx, []*labels.Matcher{labels.MustNewMatcher(labels.MatchRegexp, "a", "(1|2)+3.*")}); err != context.Canceled || ctx.left != -1 {
		t.Errorf("%v, %d questions left", err, ctx.left)
	}
}
