// Package epochs is the log of condemned names: the collection of orphans appends an epoch that names what it condemns, and
// collectors that hold all epochs need not read the marker of every blob that they answer about. docs/protocol/gc.md has the
// rules and why they are safe; the journal's segments say which epoch a collector held.
//
// The package is deterministic: no goroutines, no clock, no randomness of its own.
package epochs

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"unicode/utf8"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Kind of an epoch. It is exact: a reader that ignored a part of it would take for sound what is condemned.
var Kind = record.Kind{Schema: "lightmetrics.condemned_epoch.v1", Title: "epoch of condemned names", MaxBytes: 4 << 20, Exact: true}

// MaxNames bounds the names of all epochs. Beyond it everything counts as condemned, so that every marker is read.
const MaxNames = 250_000

// WholeEvery is the distance of the epochs that have the names of all before them: so many others a process reads
// that begins.
const WholeEvery = 64

// Epoch is one record of the log. Numbers have no gaps. Number 0 begins the log: from then on every collection goes by it. Number 1
// has what was condemned before.
type Epoch struct {
	AuthorityID string `json:"authority_id"`
	Number      uint64 `json:"number"`
	// By names the process that condemns; At is its time, Unix nanoseconds, for people.
	By string `json:"by"`
	At int64  `json:"at_unix_ns"`
	// Whole: it has the names of all epochs before it. Number 1, and every multiple of WholeEvery.
	Whole bool `json:"whole"`
	// Everything counts as condemned from here on: there are too many names.
	Everything bool `json:"everything"`
	// Names are the first 8 bytes of each hash, in their order, in base64.
	Names string `json:"names"`
}

func isWhole(n uint64) bool { return n == 1 || n > 0 && n%WholeEvery == 0 }

// Key of the record.
func (e Epoch) Key() string { return layout.CondemnedEpoch(e.Number) }

// Marshal writes the canonical JSON.
func (e Epoch) Marshal() []byte { return Kind.Marshal(e) }

// Parse reads the record under a key; errors wrap record.ErrCorrupt or record.ErrNewerVersion.
func Parse(key string, b []byte) (Epoch, []uint64, error) {
	var e Epoch
	err := Kind.Unmarshal(b, &e)
	var names []uint64
	if err == nil {
		names, err = e.names()
	}
	if err == nil && e.Key() != key {
		err = fmt.Errorf("it is epoch %d", e.Number)
	}
	return e, names, Kind.Wrap(key, err)
}

const nameBytes = 8

func (e *Epoch) names() ([]uint64, error) {
	for what, s := range map[string]string{"authority id": e.AuthorityID, "process": e.By} {
		if s == "" || len(s) > 256 || !utf8.ValidString(s) {
			return nil, fmt.Errorf("the %s %.80q is not 1 to 256 bytes of UTF-8", what, s)
		}
	}
	raw, err := base64.StdEncoding.DecodeString(e.Names)
	if err != nil || len(raw)%nameBytes != 0 || len(raw) > MaxNames*nameBytes {
		return nil, fmt.Errorf("names of %d characters: %v", len(e.Names), err)
	}
	names := make([]uint64, len(raw)/nameBytes)
	for i := range names {
		names[i] = binary.BigEndian.Uint64(raw[i*nameBytes:])
		if i > 0 && names[i-1] >= names[i] {
			return nil, errors.New("names are out of order")
		}
	}
	switch {
	case e.Whole != isWhole(e.Number):
		return nil, fmt.Errorf("epoch %d, whole is %v", e.Number, e.Whole)
	case (e.Number == 0 || e.Everything) && len(names) > 0:
		return nil, fmt.Errorf("epoch %d with %d names", e.Number, len(names))
	case e.Number == 0 && e.Everything || e.At < 0:
		return nil, fmt.Errorf("epoch %d at %d", e.Number, e.At)
	}
	return names, nil
}

func (e *Epoch) set(names []uint64) {
	b := make([]byte, 0, len(names)*nameBytes)
	for _, n := range names {
		b = binary.BigEndian.AppendUint64(b, n)
	}
	e.Names = base64.StdEncoding.EncodeToString(b)
}

func nameOf(d identity.Digest) uint64 { return binary.BigEndian.Uint64(d[:nameBytes]) }

// Set is what an epoch and all before it condemn. It never changes.
type Set struct {
	epoch      uint64
	everything bool
	names      []uint64
}

// Epoch implements journal.Condemned.
func (s *Set) Epoch() uint64 { return s.epoch }

// Has implements journal.Condemned. A frame that shares its first bytes with one that is condemned counts as condemned.
func (s *Set) Has(d identity.Digest) bool {
	if s.everything {
		return true
	}
	_, found := slices.BinarySearch(s.names, nameOf(d))
	return found
}

// Everything reports whether everything counts as condemned.
func (s *Set) Everything() bool { return s.everything }

// Len is how many names there are.
func (s *Set) Len() int { return len(s.names) }

// add makes the set of the next epoch.
func (s *Set) add(e *Epoch, names []uint64) *Set {
	next := &Set{epoch: e.Number, everything: e.Everything}
	switch {
	case e.Everything:
	case e.Whole:
		next.names = names
	default:
		next.everything = s.everything
		next.names = union(s.names, names)
	}
	return next
}

// union of two that are in order.
func union(a, b []uint64) []uint64 {
	if len(b) == 0 {
		return a
	}
	out := append(append(make([]uint64, 0, len(a)+len(b)), a...), b...)
	slices.Sort(out)
	return slices.Compact(out)
}
