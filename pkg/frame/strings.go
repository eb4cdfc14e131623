package frame

import (
	"bytes"
	"encoding/binary"
	"unicode/utf8"
)

// The string table is front-coded: each string is stored as the length of the start that it shares with the string before, and the rest. Metric names of one exporter share long starts.

// minPrefix is the length in bytes from which sharing a start saves space.
const minPrefix = 3

// writeStrings writes the string table without entry 0, which is always "".
func (w *payloadWriter) writeStrings(strings []string) {
	prefixes, lengths, size, last := w.col[:0], w.col2[:0], 0, ""
	for _, s := range strings {
		n := sharedPrefix(last, s)
		prefixes = binary.AppendUvarint(prefixes, uint64(n))
		lengths = binary.AppendUvarint(lengths, uint64(len(s)-n))
		size += len(s) - n
		last = s
	}
	w.buf = appendBytes(w.buf, 2, prefixes)
	w.buf = appendBytes(w.buf, 3, lengths)
	w.buf = binary.AppendUvarint(appendTag(w.buf, 4, wireBytes), uint64(size))
	pos := 0
	for _, s := range strings {
		var n uint64
		n, pos = uvarint(prefixes, pos)
		w.buf = append(w.buf, s[n:]...)
	}
	w.col, w.col2 = prefixes, lengths
}

// sharedPrefix is the length in bytes of the common start, in whole characters; 0 if it is shorter than minPrefix.
func sharedPrefix(a, b string) int {
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	// Whole characters, so that all rests together are valid UTF-8 and can be checked at once.
	for n > 0 && ((n < len(a) && !utf8.RuneStart(a[n])) || (n < len(b) && !utf8.RuneStart(b[n]))) {
		n--
	}
	if n < minPrefix {
		return 0
	}
	return n
}

// strings reads the string table into one allocation. A table that equals the one of the
// batch before, which is common in the stream of one agent, costs no allocation.
func (r *reader) strings(prefixes, lengths, rests []byte) error {
	b := r.b
	n := 1 + countVarints(lengths)
	if err := r.spend(n, stringCost); err != nil {
		return err
	}
	if r.same = r.same && b.arena.sameTable(prefixes, lengths, rests) && len(b.Strings) == n; r.same {
		return r.spend(b.arena.textLen, 1)
	}
	r.differ(true, 0)
	// Not valid until the new table is complete: after an error, Strings has only a part of it.
	b.arena.table = b.arena.table[:0]
	if !utf8.Valid(rests) {
		return refuse(BadLabels, "string table is not UTF-8")
	}
	b.Strings = append(resize(b.Strings, n)[:0], "")
	// Summed before memory is allocated: a few bytes of prefixes can describe a long text.
	size := sumVarints(prefixes, r.budget) + sumVarints(lengths, r.budget)
	if err := r.spend(size, 1); err != nil {
		return err
	}
	text := resize(b.arena.text, size)[:0]
	var prefixAt, lengthAt, restAt, last int // last: where the string before starts
	for len(b.Strings) < n {
		var p, l uint64
		k := len(b.Strings)
		if l, lengthAt = uvarint(lengths, lengthAt); lengthAt < 0 || l > uint64(len(rests)-restAt) {
			return refuse(BadPayload, "string %d ends beyond the table", k)
		}
		if p, prefixAt = uvarint(prefixes, prefixAt); prefixAt < 0 || p > uint64(len(text)-last) {
			return refuse(BadPayload, "string %d shares more than the string before has", k)
		}
		if p+l == 0 {
			return refuse(BadPayload, "string %d is empty", k)
		}
		start, cut := len(text), last+int(p)
		if cut < start && !utf8.RuneStart(text[cut]) || l > 0 && !utf8.RuneStart(rests[restAt]) {
			return refuse(BadLabels, "string %d is cut within a character", k)
		}
		text = append(text, text[last:cut]...)
		text = append(text, rests[restAt:restAt+int(l)]...)
		restAt += int(l)
		last = start
		b.Strings = append(b.Strings, "")
	}
	b.arena.text = text
	if prefixAt != len(prefixes) || lengthAt != len(lengths) || restAt != len(rests) {
		return refuse(BadPayload, "string table has more in it than %d strings", n)
	}
	b.cutStrings(string(text), prefixes, lengths)
	b.arena.keepTable(prefixes, lengths, rests, len(text))
	return nil
}

// sumVarints adds up a packed column. It stops a little above limit, so that the sum can't overflow.
func sumVarints(col []byte, limit int) int {
	sum := uint64(0)
	for pos := 0; pos >= 0 && pos < len(col) && sum <= uint64(limit); {
		var u uint64
		if u, pos = uvarint(col, pos); pos >= 0 {
			sum += min(u, uint64(limit)+1)
		}
	}
	return int(sum)
}

// cutStrings makes Strings substrings of text. The columns were checked before.
func (b *Batch) cutStrings(text string, prefixes, lengths []byte) {
	var prefixAt, lengthAt, start int
	for i := 1; i < len(b.Strings); i++ {
		var p, l uint64
		p, prefixAt = uvarint(prefixes, prefixAt)
		l, lengthAt = uvarint(lengths, lengthAt)
		end := start + int(p+l)
		b.Strings[i] = text[start:end]
		start = end
	}
}

func (a *arena) keepTable(prefixes, lengths, rests []byte, textLen int) {
	a.table = append(append(append(a.table[:0], prefixes...), lengths...), rests...)
	a.prefixLen, a.lengthLen, a.textLen = len(prefixes), len(lengths), textLen
}

func (a *arena) sameTable(prefixes, lengths, rests []byte) bool {
	p, l := a.prefixLen, a.lengthLen
	return len(a.table) > 0 && len(prefixes) == p && len(lengths) == l && len(a.table) == p+l+len(rests) &&
		bytes.Equal(a.table[:p], prefixes) && bytes.Equal(a.table[p:p+l], lengths) && bytes.Equal(a.table[p+l:], rests)
}
