package journal

import "lightmetrics.dev/lightmetrics/pkg/identity"

// Condemned are the names that garbage collection has condemned through an epoch. It never changes.
type Condemned interface {
	Epoch() uint64
	// Has reports whether any generation of the frame's blob is, or may be, condemned.
	Has(identity.Digest) bool
}

// Epochs is the log of epochs as a Writer needs it. For concurrent use.
type Epochs interface {
	// Held is the newest set that is held, and the number of a reading of the log that found no further epoch. Nil while
	// there is none, or it is not known to be recent: then runs name no epochs, and one that did is closed.
	Held() (Condemned, uint64)
	// Readings is how many readings have begun.
	Readings() uint64
}

// hold looks at the log of epochs, for the next segment. names is what the segment may name; closes says that the run has to end: one
// that names epochs because nothing shows that it can follow them, and garbage collection would wait for it; one that
// names none because the next one can.
func (w *Writer) hold() (names Condemned, closes bool) {
	if w.epochs == nil || !w.live || w.next == 0 {
		return nil, false
	}
	set, reading := w.epochs.Held()
	switch {
	case (set != nil) != w.names:
		return nil, true
	case set == nil:
		return nil, false
	// A collection that began when this run was not there yet waits for no segment of it. So the run may name only what was
	// read after segment 0 was durable: that holds all that such a collection has condemned.
	case reading <= w.openedAt || set.Epoch() < w.epoch:
		return nil, false
	}
	return set, false
}

// Current are the condemned names that the next segment will name; nil where it will name none. An entry that is added now is
// spared its marker if they do not have it, unless there is a fence, or they grow.
func (w *Writer) Current() Condemned {
	names, _ := w.hold()
	return names
}

// Behind reports whether Renew has something to say, or said it without an answer.
func (w *Writer) Behind() bool {
	if w.sent != nil {
		return w.epochs != nil && w.sentEntries == 0
	}
	names, closes := w.hold()
	return closes || names != nil && w.epoch > 0 && names.Epoch() > w.epoch
}

// Spared reports of an entry of the segment that the last Flush made durable that the segment names an epoch which does not
// condemn its frame: an answer that waited for it needs no marker read. That is of this segment alone; an entry whose
// run was fenced stands in another one, and may not be spared.
func (w *Writer) Spared(no uint64) bool {
	i := no - w.sparedFrom
	return no >= w.sparedFrom && i < uint64(len(w.spared)) && w.spared[i]
}

// check says which of the entries the names do not condemn.
func check(names Condemned, entries []Entry) []bool {
	if names == nil {
		return nil
	}
	out := make([]bool, len(entries))
	for i := range entries {
		out[i] = !names.Has(entries[i].SHA256)
	}
	return out
}
