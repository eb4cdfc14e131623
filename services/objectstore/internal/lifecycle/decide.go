package lifecycle

import (
	"strings"
	"time"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/engine"
)

// Version is what a decision needs to know of a version of an object.
type Version struct {
	Key      string
	Size     int64
	Modified time.Time
	Latest   bool // the newest of its key
	Marker   bool // a delete marker
	Alone    bool // the only one of its key
	// Since is when a newer version came; Newer is how many versions that are not the newest are newer than this one. Of
	// versions that are not the newest.
	Since time.Time
	Newer int
	// Tags gives the tags; it is asked only by rules that have some. ok is false where they cannot be known.
	Tags func() (tags []engine.Pair, ok bool)
}

// Action is what a rule does.
type Action int

// The actions.
const (
	Keep   Action = iota
	Expire        // delete the current version, as its bucket's versioning has it
	Remove        // remove this version, or this delete marker, for good
)

// Decision is an action and the rule that asks for it.
type Decision struct {
	Action Action
	Rule   string
	// At is when the action is due.
	At time.Time
}

// Decide gives what the rules do with a version at the time now: the action that is due, Keep when none is.
func (c *Config) Decide(v Version, now time.Time) Decision {
	if d := c.next(v); d.Action != Keep && !now.Before(d.At) {
		return d
	}
	return Decision{}
}

// Expiry gives when a current version will expire, and by which rule; Keep when no rule ends it.
func (c *Config) Expiry(v Version) Decision {
	v.Latest, v.Marker = true, false
	return c.next(v)
}

// next gives the action that is due first. Of two at the same time the first rule counts.
func (c *Config) next(v Version) (first Decision) {
	v.Tags = once(v.Tags)
	for i := range c.Rules {
		r := &c.Rules[i]
		if r.Status != "Enabled" {
			continue
		}
		action, at := r.of(v)
		if action == Keep || first.Action != Keep && !at.Before(first.At) || !r.selection().selects(v) {
			continue
		}
		first = Decision{action, r.ID, at}
	}
	return first
}

// once asks for the tags once, whatever number of rules wants them: they have to be read.
func once(tags func() ([]engine.Pair, bool)) func() ([]engine.Pair, bool) {
	var list []engine.Pair
	asked, ok := false, false
	return func() ([]engine.Pair, bool) {
		if !asked {
			asked = true
			list, ok = tags()
		}
		return list, ok
	}
}

// of gives what a rule does with a version that it selects, and when.
func (r *Rule) of(v Version) (Action, time.Time) {
	x := r.Expiration
	switch {
	case !v.Latest && r.Noncurrent != nil:
		if r.Noncurrent.Newer != nil && v.Newer < *r.Noncurrent.Newer {
			return Keep, time.Time{}
		}
		return Remove, due(v.Since, *r.Noncurrent.Days)
	case !v.Latest || x == nil || v.Marker && !v.Alone:
		return Keep, time.Time{}
	}
	action := Expire
	if v.Marker {
		action = Remove // one that hides nothing
	}
	switch {
	case x.Days != nil:
		return action, due(v.Modified, *x.Days)
	case x.Date != nil:
		return action, x.Date.UTC()
	case v.Marker && x.Marker != nil && *x.Marker:
		return action, v.Modified
	}
	return Keep, time.Time{}
}

// AbortAt gives when an upload is aborted, and by which rule; ok is false when it never is.
func (c *Config) AbortAt(key string, begun time.Time) (at time.Time, rule string, ok bool) {
	for i := range c.Rules {
		r := &c.Rules[i]
		if r.Status != "Enabled" || r.Abort == nil || !strings.HasPrefix(key, r.selection().prefix) {
			continue
		}
		if t := due(begun, r.Abort.Days); !ok || t.Before(at) {
			at, rule, ok = t, r.ID, true
		}
	}
	return at, rule, ok
}

// due is days after a time, rounded up to midnight UTC, as AWS counts.
func due(t time.Time, days int) time.Time {
	t = t.UTC().AddDate(0, 0, days)
	if m := midnight(t); m.Before(t) {
		return m.AddDate(0, 0, 1)
	}
	return t
}

// midnight is the beginning of a time's day in UTC.
func midnight(t time.Time) time.Time { return t.UTC().Truncate(24 * time.Hour) }

// selection is what a rule selects by.
type selection struct {
	prefix       string
	tags         []Tag
	above, below *int64
}

func (r *Rule) selection() (s selection) {
	text := func(p *string) string {
		if p == nil {
			return ""
		}
		return *p
	}
	if r.Prefix != nil {
		s.prefix = *r.Prefix
	}
	if f := r.Filter; f != nil {
		s.prefix, s.above, s.below = text(f.Prefix), f.GreaterThan, f.LessThan
		if f.Tag != nil {
			s.tags = []Tag{*f.Tag}
		}
		if f.And != nil {
			s = selection{text(f.And.Prefix), f.And.Tags, f.And.GreaterThan, f.And.LessThan}
		}
	}
	return s
}

// selects decides the tags last: they have to be read.
func (s selection) selects(v Version) bool {
	if !strings.HasPrefix(v.Key, s.prefix) {
		return false
	}
	if len(s.tags) == 0 && s.above == nil && s.below == nil {
		return true
	}
	if v.Marker || s.above != nil && v.Size <= *s.above || s.below != nil && v.Size >= *s.below {
		return false // a delete marker has no size and no tags
	}
	if len(s.tags) == 0 {
		return true
	}
	have, ok := v.Tags()
	if !ok {
		return false
	}
	for _, want := range s.tags {
		found := false
		for _, t := range have {
			found = found || t.Name == want.Key && t.Value == want.Value
		}
		if !found {
			return false
		}
	}
	return true
}
