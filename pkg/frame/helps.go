package frame

import (
	"encoding/binary"
	"slices"
	"strings"
	"unicode/utf8"

	"lightmetrics.dev/lightmetrics/pkg/series"
)

// Helps are stored after the series and not in their columns: a help belongs to a metric
// name, of which a batch may have thousands of series, and most batches have no helps. So
// the string table and the label references of a batch are the same with and without helps,
// and a reader that compares batches by their series finds them equal.

// helpCost is the memory that an entry takes in a reader, in bytes, without its text.
const helpCost = 24

// Help is the description of a metric of the batch.
type Help struct {
	// Name indexes Batch.Strings; it is the metric name of a series of the batch.
	Name uint32
	// Text has 1 to Limits.HelpBytes bytes of UTF-8.
	Text string
}

// HelpText turns any bytes into a help that every reader accepts: the first 2 KiB, in whole
// characters, with a question mark in place of bytes that are not UTF-8.
func HelpText(text []byte) string {
	if limit := DefaultLimits().HelpBytes; len(text) > limit {
		for limit > 0 && !utf8.RuneStart(text[limit]) {
			limit--
		}
		text = text[:limit]
	}
	return strings.ToValidUTF8(string(text), "?")
}

// SetHelp sets the help of a metric that has a series in the batch. It is left out of
// the Batch if none of its series has a record.
func (b *Builder) SetHelp(metric, text string) error {
	name, ok := b.intern[metric]
	if !ok || metric == "" {
		return refuse(BadHelp, "no series is named %q", clip(metric))
	}
	if err := validateHelp(text, &b.lim); err != nil {
		return err
	}
	at, ok := slices.BinarySearchFunc(b.helps, name, func(h Help, n uint32) int { return int(h.Name) - int(n) })
	if ok {
		b.helps[at].Text = text
		return nil
	}
	b.helps = slices.Insert(b.helps, at, Help{name, text})
	return nil
}

// keepHelps fills the Batch with the helps of the metrics that it contains.
func (b *Builder) keepHelps() {
	b.out.Helps = b.out.Helps[:0]
	if len(b.helps) == 0 {
		return
	}
	names := b.out.metricNames()
	for _, h := range b.helps {
		if names.has(h.Name) {
			b.out.Helps = append(b.out.Helps, h)
		}
	}
}

func (w *payloadWriter) writeHelps(helps []Help) {
	if len(helps) == 0 {
		return
	}
	names, lengths, size, last := w.col[:0], w.col2[:0], 0, uint32(0)
	for _, h := range helps {
		names = binary.AppendUvarint(names, uint64(h.Name-last))
		lengths = binary.AppendUvarint(lengths, uint64(len(h.Text)))
		size, last = size+len(h.Text), h.Name
	}
	w.buf = appendBytes(w.buf, 9, names)
	w.buf = appendBytes(w.buf, 10, lengths)
	w.buf = binary.AppendUvarint(appendTag(w.buf, 11, wireBytes), uint64(size))
	for _, h := range helps {
		w.buf = append(w.buf, h.Text...)
	}
	w.col, w.col2 = names, lengths
}

// helps reads the three columns of helps. The groups are read before, so that each name can be checked.
func (r *reader) helps(names, lengths, texts []byte) error {
	b, n := r.b, countVarints(names)
	b.Helps = b.Helps[:0]
	if err := r.spend(n, helpCost); err != nil {
		return err
	}
	if err := r.spend(len(texts), 1); err != nil {
		return err
	}
	if !utf8.Valid(texts) {
		return refuse(BadHelp, "help texts are not UTF-8")
	}
	b.Helps = slices.Grow(b.Helps, n)
	// One allocation for all texts; each help is a substring of it.
	text := string(texts)
	var nameAt, lengthAt int
	last := uint64(0)
	for range n {
		var step, size uint64
		// Steps of at least 1 keep the names ascending, and so unique.
		if step, nameAt = uvarint(names, nameAt); nameAt < 0 || step == 0 || step >= uint64(len(b.Strings))-last {
			return refuse(BadHelp, "help %d is of no string after string %d", len(b.Helps), last)
		}
		if size, lengthAt = uvarint(lengths, lengthAt); lengthAt < 0 || size > uint64(len(text)) {
			return refuse(BadHelp, "help %d ends beyond the texts", len(b.Helps))
		}
		if size < uint64(len(text)) && !utf8.RuneStart(text[size]) {
			return refuse(BadHelp, "help %d is cut within a character", len(b.Helps))
		}
		last += step
		b.Helps = append(b.Helps, Help{uint32(last), text[:size]})
		text = text[size:]
	}
	if nameAt != len(names) || lengthAt != len(lengths) || len(text) > 0 {
		return refuse(BadHelp, "columns have more in them than %d helps", n)
	}
	return b.validateHelps(r.lim)
}

// validateHelps checks that the names ascend, that each is a metric of the batch, and that the texts are within the limit.
func (b *Batch) validateHelps(lim *Limits) error {
	if len(b.Helps) == 0 {
		return nil
	}
	names, last := b.metricNames(), uint32(0)
	for i, h := range b.Helps {
		if h.Name <= last || h.Name >= uint32(len(b.Strings)) {
			return refuse(BadHelp, "help %d is of string %d, after %d and of %d strings", i, h.Name, last, len(b.Strings))
		}
		if !names.has(h.Name) {
			return refuse(BadHelp, "help %d is of %q, which names no series", i, clip(b.Strings[h.Name]))
		}
		if err := validateHelp(h.Text, lim); err != nil {
			return err
		}
		last = h.Name
	}
	return nil
}

func validateHelp(text string, lim *Limits) error {
	if n := len(text); n == 0 || n > lim.HelpBytes {
		return refuse(BadHelp, "a help has %d bytes, want 1 to %d", n, lim.HelpBytes)
	}
	if !validText(text) {
		return refuse(BadHelp, "%q is not UTF-8", clip(text))
	}
	return nil
}

// stringSet is a set of indexes of a string table.
type stringSet []uint64

func (s stringSet) has(i uint32) bool { return s[i>>6]&(1<<(i&63)) != 0 }

// metricNames returns the strings that are metric names of series of b.
func (b *Batch) metricNames() stringSet {
	out := make(stringSet, len(b.Strings)>>6+1)
	for i := range b.Groups {
		for k := range b.Groups[i].Series {
			for _, l := range b.Groups[i].Series[k].Labels {
				if b.Strings[l.Name] == series.MetricName {
					out[l.Value>>6] |= 1 << (l.Value & 63)
				}
			}
		}
	}
	return out
}
