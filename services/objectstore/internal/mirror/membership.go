package mirror

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// ID names a store or a drive: 32 hex digits, drawn at random when it was made.
type ID string

// Number orders the records of a store: first the term, which every start raises, then the changes within it.
type Number struct {
	Term   uint64 `json:"term"`
	Change uint64 `json:"change"`
}

func (n Number) less(o Number) bool {
	return n.Term < o.Term || n.Term == o.Term && n.Change < o.Change
}

func (n Number) String() string { return fmt.Sprintf("%d.%d", n.Term, n.Change) }

// Record is what a drive keeps of the membership.
type Record struct {
	Store ID `json:"store"`
	Drive ID `json:"drive"` // whose record it is
	// Promised is the highest term that a start has announced to this drive. A later start takes a higher one, so that
	// what an interrupted start has written never has the number of a record that counts.
	Promised uint64 `json:"promised"`
	At       Number `json:"at"`
	Before   Number `json:"before"` // the number of the record that this one replaced
	// InSync are the drives that have every acknowledged write, in the order in which they joined. None: the drive
	// has an identity, and was not in a store yet.
	InSync []ID `json:"in_sync"`
	// Index is the drive with the index; empty: there is none that can be used.
	Index ID `json:"index,omitempty"`
}

// ErrMajority means that there are too few of the drives that were in sync to know that no other has later writes.
var ErrMajority = errors.New("too few of the drives that were in sync are there")

// A set of n drives needs majority(n) of them for a start, and a change of it counts when witnesses(n) of them have
// it: every majority has a witness then. A change takes out or adds one drive, so that majorities of neighbouring sets
// intersect too.
func majority(n int) int { return n/2 + 1 }

func witnesses(n int) int { return n - majority(n) + 1 }

// Membership is the state machine of which drives are in sync. It does no I/O: who runs it writes the records that it
// gives, each durably and to every drive that works, and tells it which drives have it.
//
// Within one process no write is acknowledged between a failure of a drive in the set and the settled record without it.
type Membership struct {
	now  Record
	term uint64
	stop error
}

// Opinion is what a start makes of one drive.
type Opinion uint8

// Opinions.
const (
	// InSync: the drive has every acknowledged write, by its record and those of the others.
	InSync Opinion = iota + 1
	// Out: writes were acknowledged without it.
	Out
	// RolledBack: it was in sync, and its record is older than those that were there before the last change.
	RolledBack
)

func (o Opinion) String() string { return [...]string{"?", "in sync", "out of sync", "rolled back"}[o] }

// Begin is the first step of a start: it takes the records of all drives that are there, and gives an opinion of each.
// The error is ErrMajority when too few of them are in sync.
func Begin(read []Record) (*Membership, map[ID]Opinion, error) {
	m := &Membership{}
	for _, r := range read {
		if m.now.At.less(r.At) {
			m.now = r
		}
		m.term = max(m.term, r.Promised, r.At.Term)
	}
	m.term++
	if len(m.now.InSync) == 0 {
		return nil, nil, errors.New("no drive has a record of the store's drives")
	}
	opinions := map[ID]Opinion{}
	voters := 0
	for _, r := range read {
		switch {
		case !slices.Contains(m.now.InSync, r.Drive):
			opinions[r.Drive] = Out
		// A crash within a change leaves drives at the record before it. What is older than that was written over
		// since, on this very drive: somebody has put back an old copy of it.
		case r.At != m.now.At && r.At != m.now.Before:
			opinions[r.Drive] = RolledBack
		default:
			opinions[r.Drive] = InSync
			voters++
		}
	}
	m.now.Drive, m.now.Promised = "", 0
	if need := majority(len(m.now.InSync)); voters < need {
		return m, opinions, m.lacks(opinions, voters, need)
	}
	return m, opinions, nil
}

func (m *Membership) lacks(opinions map[ID]Opinion, have, need int) error {
	var missing []string
	for _, id := range m.now.InSync {
		if opinions[id] != InSync {
			why := "is missing"
			if o := opinions[id]; o != 0 {
				why = o.String()
			}
			missing = append(missing, fmt.Sprintf("drive %s %s", id, why))
		}
	}
	return fmt.Errorf("%w: %d of %d, and %d are needed: %s", ErrMajority, have, len(m.now.InSync), need, strings.Join(missing, ", "))
}

// Promise gives the record with which the start announces itself. It goes to every drive that is in sync, before anything
// else is written; a drive that was behind has the present set from then on.
func (m *Membership) Promise() Record {
	r := m.now
	r.Promised = m.term
	return r
}

// Promised tells which drives have the promise.
func (m *Membership) Promised(written []ID) error {
	have, need := count(m.now.InSync, written), majority(len(m.now.InSync))
	if have < need {
		m.stop = fmt.Errorf("%w: only %d of %d took the start's record", ErrMajority, have, len(m.now.InSync))
	}
	return m.stop
}

// Found gives the first record of a store.
func Found(store ID, drives ...ID) *Membership {
	return &Membership{now: Record{Store: store, InSync: slices.Clone(drives)}, term: 1}
}

// forcedLeap is how far a forced start raises the term: further than drives that it was done without can have come. When they
// return, their records are the older ones.
const forcedLeap = 1 << 32

// Force is Begin for an operator who knows that the missing drives will not return: it goes on from those drives of
// the newest set that are there. What only the missing ones have is given up.
func Force(read []Record) (*Membership, map[ID]Opinion, error) {
	m, opinions, err := Begin(read)
	if err == nil || !errors.Is(err, ErrMajority) {
		return m, opinions, err
	}
	m.now.InSync = slices.DeleteFunc(slices.Clone(m.now.InSync), func(id ID) bool { return opinions[id] != InSync })
	if len(m.now.InSync) == 0 {
		return m, opinions, fmt.Errorf("no drive is there that was in sync: %w", err)
	}
	m.term += forcedLeap
	return m, opinions, nil
}

// InSync gives the drives that have every acknowledged write.
func (m *Membership) InSync() []ID { return slices.Clone(m.now.InSync) }

// Now gives the last record that counts.
func (m *Membership) Now() Record { return m.now }

// Err gives the reason why the membership can change no more in this process; nil while it can.
func (m *Membership) Err() error { return m.stop }

// Greet gives the record for a drive that comes to the store and is not in sync yet.
func (m *Membership) Greet() Record {
	r := m.now
	r.Promised = m.term
	return r
}

func (m *Membership) next(set []ID) Record {
	r := m.now
	r.InSync, r.Before, r.Promised = set, m.now.At, m.term
	r.At = Number{m.term, 1}
	if m.now.At.Term == m.term {
		r.At.Change = m.now.At.Change + 1
	}
	if !slices.Contains(set, r.Index) {
		r.Index = ""
	}
	return r
}

// Renew gives a record with the same drives; index is the one with the index.
func (m *Membership) Renew(index ID) Record {
	r := m.next(m.now.InSync)
	r.Index = index
	return r
}

// Drop gives the record without a drive.
func (m *Membership) Drop(id ID) Record {
	return m.next(slices.DeleteFunc(slices.Clone(m.now.InSync), func(d ID) bool { return d == id }))
}

// Join gives the record with one more drive, which has everything.
func (m *Membership) Join(id ID) Record { return m.next(append(slices.Clone(m.now.InSync), id)) }

// Settle tells which drives have a record that Renew, Drop or Join gave. With enough of them it counts. Otherwise
// the process must stop: nobody knows which of the two records the next start will find.
func (m *Membership) Settle(r Record, written []ID) error {
	if m.stop != nil {
		return m.stop
	}
	// The drives of the old set decide, since a start that has not seen the new record asks those. The first record
	// of a store has no old one, and is needed everywhere: a drive without it is in no store.
	old := m.now.InSync
	have, need := count(old, written), witnesses(len(old))
	if m.now.At == (Number{}) {
		need = len(old)
	}
	if len(r.InSync) == 0 {
		m.stop = errors.New("no drive is left that is in sync")
	} else if have < need {
		m.stop = fmt.Errorf("%w: %d of %d took the change to %d drives, and %d are needed", ErrMajority, have, len(old), len(r.InSync), need)
	}
	if m.stop == nil {
		m.now = r
		m.now.Promised = 0
	}
	return m.stop
}

// count gives how many of set are among have.
func count(set, have []ID) (n int) {
	for _, id := range set {
		if slices.Contains(have, id) {
			n++
		}
	}
	return n
}
