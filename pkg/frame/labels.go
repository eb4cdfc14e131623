package frame

import (
	"iter"
	"unicode/utf8"
)

// MetricName is the label that every series has.
const MetricName = "__name__"

// Label is a name and a value.
type Label struct{ Name, Value string }

// Labels yields the resolved labels of a series of b, sorted by name: its own and
// the resource's, of which its own win. It allocates nothing.
func (b *Batch) Labels(s *Series) iter.Seq2[string, string] {
	return func(yield func(name, value string) bool) {
		own, res := s.Labels, b.Resource
		for len(own) > 0 || len(res) > 0 {
			var l LabelRef
			switch {
			case len(res) == 0:
				l, own = own[0], own[1:]
			case len(own) == 0:
				l, res = res[0], res[1:]
			default:
				o, r := b.Strings[own[0].Name], b.Strings[res[0].Name]
				if o > r {
					l, res = res[0], res[1:]
					break
				}
				if o == r {
					res = res[1:]
				}
				l, own = own[0], own[1:]
			}
			if !yield(b.Strings[l.Name], b.Strings[l.Value]) {
				return
			}
		}
	}
}

// AppendLabels appends the resolved labels of s to dst.
func (b *Batch) AppendLabels(dst []Label, s *Series) []Label {
	for name, value := range b.Labels(s) {
		dst = append(dst, Label{name, value})
	}
	return dst
}

// Name is the metric name of s, "" in a batch that was not validated.
func (b *Batch) Name(s *Series) string {
	for _, l := range s.Labels {
		if b.Strings[l.Name] == MetricName {
			return b.Strings[l.Value]
		}
	}
	return ""
}

// validateLabels checks refs of which, a series when named is true and the resource otherwise.
func (b *Batch) validateLabels(refs []LabelRef, named bool, lim *Limits) error {
	n := uint32(len(b.Strings))
	last, found := "", false
	for i, l := range refs {
		if l.Name >= n || l.Value >= n {
			return refuse(BadLabels, "label %d refers to string %d of %d", i, max(l.Name, l.Value), n)
		}
		name, value := b.Strings[l.Name], b.Strings[l.Value]
		switch {
		case name == "":
			return refuse(BadLabels, "label %d has an empty name", i)
		case value == "":
			return refuse(BadLabels, "label %q has an empty value", clip(name))
		case len(name) > lim.LabelNameBytes:
			return refuse(BadLabels, "label name %q has %d bytes, at most %d", clip(name), len(name), lim.LabelNameBytes)
		case len(value) > lim.LabelValueBytes:
			return refuse(BadLabels, "value of label %q has %d bytes, at most %d", name, len(value), lim.LabelValueBytes)
		case name <= last:
			return refuse(BadLabels, "label %q is not after %q", name, last)
		}
		found = found || name == MetricName
		last = name
	}
	switch {
	case named && !found:
		return refuse(BadLabels, "%s is missing", MetricName)
	case !named && found:
		return refuse(BadLabels, "the resource has %s", MetricName)
	case len(refs) > lim.SeriesLabels:
		return refuse(BadLabels, "%d labels, at most %d", len(refs), lim.SeriesLabels)
	}
	return nil
}

// validateSeries checks one series of a group; histograms says which kind of group.
func (b *Batch) validateSeries(s *Series, histograms bool, lim *Limits) error {
	if err := b.validateLabels(s.Labels, true, lim); err != nil {
		return err
	}
	if len(s.Labels)+len(b.Resource) > lim.SeriesLabels {
		n := 0
		for range b.Labels(s) {
			n++
		}
		if n > lim.SeriesLabels {
			return refuse(BadLabels, "%d labels with those of the resource, at most %d", n, lim.SeriesLabels)
		}
	}
	switch {
	case s.Type > Info:
		return refuse(BadPayload, "unknown metric type %d", s.Type)
	case s.Type != Unknown && s.Type.Histogram() != histograms:
		return refuse(BadPayload, "metric type %d in a group of the other kind", s.Type)
	case s.Unit >= uint32(len(b.Strings)):
		return refuse(BadLabels, "unit refers to string %d of %d", s.Unit, len(b.Strings))
	case len(b.Strings[s.Unit]) > lim.LabelNameBytes:
		return refuse(BadLabels, "unit has %d bytes, at most %d", len(b.Strings[s.Unit]), lim.LabelNameBytes)
	}
	return nil
}

// Histogram reports whether records of this type are histograms.
func (t MetricType) Histogram() bool { return t >= HistogramCumulative && t <= HistogramGauge }

// validText reports whether a string may stand in the table.
func validText(s string) bool { return utf8.ValidString(s) }

// clip keeps untrusted text in messages short.
func clip(s string) string {
	if len(s) > 64 {
		return s[:64] + "…"
	}
	return s
}
