package frame

import (
	"unicode/utf8"

	"lightmetrics.dev/lightmetrics/pkg/series"
)

// validateLabels checks the labels of a series if named is true, else those of the resource.
func (b *Batch) validateLabels(refs []series.LabelRef, named bool, lim *Limits) error {
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
		found = found || name == series.MetricName
		last = name
	}
	switch {
	case named && !found:
		return refuse(BadLabels, "%s is missing", series.MetricName)
	case !named && found:
		return refuse(BadLabels, "the resource has %s", series.MetricName)
	case len(refs) > lim.SeriesLabels:
		return refuse(BadLabels, "%d labels, at most %d", len(refs), lim.SeriesLabels)
	}
	return nil
}

// validateSeries checks one series of a group; histograms says which kind of group.
func (b *Batch) validateSeries(s *series.Ref, histograms bool, lim *Limits) error {
	if err := b.validateLabels(s.Labels, true, lim); err != nil {
		return err
	}
	// Only then can the merged labels exceed the limit; a label of both counts once.
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
	case s.Type > series.Info:
		return refuse(BadPayload, "unknown metric type %d", s.Type)
	case s.Type != series.Unknown && s.Type.Histogram() != histograms:
		return refuse(BadPayload, "metric type %d in a group of the other kind", s.Type)
	case s.Unit >= uint32(len(b.Strings)):
		return refuse(BadLabels, "unit refers to string %d of %d", s.Unit, len(b.Strings))
	case len(b.Strings[s.Unit]) > lim.LabelNameBytes:
		return refuse(BadLabels, "unit has %d bytes, at most %d", len(b.Strings[s.Unit]), lim.LabelNameBytes)
	}
	return nil
}

// validText reports whether the string table may contain s.
func validText(s string) bool { return utf8.ValidString(s) }

// clip shortens untrusted text for messages.
func clip(s string) string {
	if len(s) > 64 {
		return s[:64] + "…"
	}
	return s
}
