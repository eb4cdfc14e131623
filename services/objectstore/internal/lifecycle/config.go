// Package lifecycle reads the lifecycle configuration of a bucket, decides what its rules do with a version or an upload
// at a time, and does it.
package lifecycle

import (
	"encoding/xml"
	"time"
	"unicode/utf8"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/s3err"
)

// Setting is the name under which the engine keeps a bucket's configuration.
const Setting = "lifecycle"

const (
	// maxRules, maxRuleID and maxNewer are AWS's limits.
	maxRules  = 1000
	maxRuleID = 255
	maxNewer  = 100
	// maxDays, a hundred years, keeps the arithmetic of times far from its end.
	maxDays = 36500
	xmlns   = "http://s3.amazonaws.com/doc/2006-03-01/"
)

// Config is a bucket's configuration.
type Config struct {
	XMLName xml.Name  `xml:"LifecycleConfiguration"`
	Rules   []Rule    `xml:"Rule"`
	Other   []element `xml:",any"`
}

// Rule is one of its rules.
type Rule struct {
	ID         string  `xml:",omitempty"`
	Prefix     *string // of configurations of the first version of the API
	Filter     *Filter
	Status     string // Enabled or Disabled
	Expiration *Expiration
	Noncurrent *Noncurrent `xml:"NoncurrentVersionExpiration"`
	Abort      *Abort      `xml:"AbortIncompleteMultipartUpload"`

	Transition           []element
	NoncurrentTransition []element `xml:"NoncurrentVersionTransition"`
	Other                []element `xml:",any"`
}

// Filter selects objects; one element, or And with several.
type Filter struct {
	Prefix      *string
	Tag         *Tag
	GreaterThan *int64 `xml:"ObjectSizeGreaterThan"`
	LessThan    *int64 `xml:"ObjectSizeLessThan"`
	And         *And
	Other       []element `xml:",any"`
}

// And selects what all of its elements select.
type And struct {
	Prefix      *string
	Tags        []Tag     `xml:"Tag"`
	GreaterThan *int64    `xml:"ObjectSizeGreaterThan"`
	LessThan    *int64    `xml:"ObjectSizeLessThan"`
	Other       []element `xml:",any"`
}

// Tag of an object.
type Tag struct{ Key, Value string }

// Expiration ends current versions: after Days, or from Date on; or removes delete markers that hide nothing.
type Expiration struct {
	Days   *int
	Date   *time.Time
	Marker *bool     `xml:"ExpiredObjectDeleteMarker"`
	Other  []element `xml:",any"`
}

// Noncurrent removes versions for good, Days after a newer one has come, but the newest Newer of them.
type Noncurrent struct {
	Days  *int      `xml:"NoncurrentDays"`
	Newer *int      `xml:"NewerNoncurrentVersions"`
	Other []element `xml:",any"`
}

// Abort ends uploads that were begun Days ago.
type Abort struct {
	Days  int       `xml:"DaysAfterInitiation"`
	Other []element `xml:",any"`
}

// element catches those that are not known, so that they are refused and not dropped.
type element struct{ XMLName xml.Name }

// Parse reads a configuration. What the store cannot do is refused. Errors are *s3err.Error.
func Parse(text []byte) (*Config, error) {
	var c Config
	if xml.Unmarshal(text, &c) != nil || len(c.Rules) == 0 || len(c.Rules) > maxRules || len(c.Other) > 0 {
		return nil, s3err.MalformedXML
	}
	c.XMLName = xml.Name{Space: xmlns, Local: "LifecycleConfiguration"}
	seen := map[string]bool{}
	for i := range c.Rules {
		r := &c.Rules[i]
		if err := r.check(); err != nil {
			return nil, err
		}
		if r.ID != "" && seen[r.ID] {
			return nil, s3err.InvalidArgument.With("Rule ID must be unique. Found same ID for more than one rule")
		}
		seen[r.ID] = true
	}
	return &c, nil
}

func (r *Rule) check() error {
	switch {
	case len(r.Transition) > 0 || len(r.NoncurrentTransition) > 0:
		return s3err.NotImplemented.With("Transitions are not implemented: there is one storage class.")
	case len(r.Other) > 0, r.Status != "Enabled" && r.Status != "Disabled", (r.Prefix == nil) == (r.Filter == nil):
		return s3err.MalformedXML
	case utf8.RuneCountInString(r.ID) > maxRuleID:
		return s3err.InvalidArgument.With("ID length should not exceed allowed limit of %d", maxRuleID)
	case r.Expiration == nil && r.Noncurrent == nil && r.Abort == nil:
		return s3err.InvalidRequest.With("At least one action needs to be specified in a rule")
	}
	if err := r.Filter.check(); err != nil {
		return err
	}
	s := r.selection()
	ofObjects := len(s.tags) > 0 || s.above != nil || s.below != nil
	switch {
	case r.Abort != nil && ofObjects:
		return s3err.InvalidRequest.With("AbortIncompleteMultipartUpload cannot be specified with Tags or object sizes")
	case r.Expiration != nil && r.Expiration.Marker != nil && ofObjects:
		return s3err.InvalidRequest.With("ExpiredObjectDeleteMarker cannot be specified with Tags or object sizes")
	}
	if err := r.Expiration.check(); err != nil {
		return err
	}
	if err := r.Noncurrent.check(); err != nil {
		return err
	}
	if r.Abort != nil && (!validDays(r.Abort.Days) || len(r.Abort.Other) > 0) {
		return s3err.InvalidArgument.With("'DaysAfterInitiation' for AbortIncompleteMultipartUpload action must be a positive integer")
	}
	return nil
}

func validDays(n int) bool { return n > 0 && n <= maxDays }

func (f *Filter) check() error {
	if f == nil {
		return nil
	}
	given := 0
	for _, is := range []bool{f.Prefix != nil, f.Tag != nil, f.GreaterThan != nil, f.LessThan != nil, f.And != nil} {
		if is {
			given++
		}
	}
	if given > 1 || len(f.Other) > 0 || !validSizes(f.GreaterThan, f.LessThan) {
		return s3err.MalformedXML
	}
	a := f.And
	if a == nil {
		return nil
	}
	given = len(a.Tags)
	for _, is := range []bool{a.Prefix != nil, a.GreaterThan != nil, a.LessThan != nil} {
		if is {
			given++
		}
	}
	if given < 2 || len(a.Other) > 0 || !validSizes(a.GreaterThan, a.LessThan) {
		return s3err.MalformedXML
	}
	names := map[string]bool{}
	for _, t := range a.Tags {
		if names[t.Key] {
			return s3err.InvalidRequest.With("Duplicate Tag Keys are not allowed.")
		}
		names[t.Key] = true
	}
	return nil
}

func validSizes(above, below *int64) bool {
	return (above == nil || *above >= 0) && (below == nil || *below > 0) && (above == nil || below == nil || *above+1 < *below)
}

func (x *Expiration) check() error {
	if x == nil {
		return nil
	}
	given := 0
	for _, is := range []bool{x.Days != nil, x.Date != nil, x.Marker != nil} {
		if is {
			given++
		}
	}
	switch {
	case given != 1 || len(x.Other) > 0:
		return s3err.MalformedXML
	case x.Days != nil && !validDays(*x.Days):
		return s3err.InvalidArgument.With("'Days' for Expiration action must be a positive integer")
	case x.Date != nil && !x.Date.UTC().Equal(midnight(*x.Date)):
		return s3err.InvalidArgument.With("'Date' must be at midnight GMT")
	}
	return nil
}

func (n *Noncurrent) check() error {
	switch {
	case n == nil:
		return nil
	case n.Days == nil || len(n.Other) > 0:
		return s3err.MalformedXML
	case !validDays(*n.Days):
		return s3err.InvalidArgument.With("'NoncurrentDays' for NoncurrentVersionExpiration action must be a positive integer")
	case n.Newer != nil && (*n.Newer < 1 || *n.Newer > maxNewer):
		return s3err.InvalidArgument.With("'NewerNoncurrentVersions' for NoncurrentVersionExpiration action must be a positive integer of at most %d", maxNewer)
	}
	return nil
}
