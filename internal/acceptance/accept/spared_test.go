package accept_test

import (
	"context"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// says is a journal whose segments spare their entries the marker, or do not.
type says struct {
	accept.Journal
	spared bool
}

type saidTicket struct {
	journal.Ticket
	spared bool
}

func (j *says) Add(e journal.Entry) (journal.Ticket, error) {
	t, err := j.Journal.Add(e)
	return saidTicket{t, j.spared}, err
}

func (t saidTicket) Spared() bool { return t.spared }

// markers counts the reads of markers and of hours.
type markers struct {
	*mem.Store
	reads, hours int
}

func (m *markers) Get(ctx context.Context, key string, o objstore.GetOptions) ([]byte, objstore.Info, error) {
	if _, _, err := layout.ParseCondemned(key); err == nil {
		m.reads++
	} else if len(key) > len(layout.CondemnedPrefix) && key[:len(layout.CondemnedPrefix)] == layout.CondemnedPrefix {
		m.hours++
	}
	return m.Store.Get(ctx, key, o)
}

// TestAMarkerIsReadUnlessTheSegmentSparesIt: hoping for it is not enough, and what retention condemns is read all the same.
func TestAMarkerIsReadUnlessTheSegmentSparesIt(t *testing.T) {
	s := &markers{Store: mem.New(nil)}
	j := &says{Journal: newJournal(t, s.Store, 1)}
	hopes := false
	p := protocol(t, s, "c1", func(c *accept.Config) {
		c.Journal = j
		c.SparesMarker = func(identity.Digest) bool { return hopes }
	})
	sub := submission(identity.Batch{Agent: "a", Boot: "b", SeqStart: 1, SeqEnd: 4}, "x")
	for _, c := range []struct {
		what          string
		hopes, spared bool
		condemned     bool
		reads, hours  int
		generation    uint32
	}{
		{what: "not hoped for", spared: true, reads: 1},
		{what: "hoped for in vain", hopes: true, reads: 1, hours: 1},
		{what: "spared", hopes: true, spared: true, hours: 1},
		{what: "hoped for in vain, and condemned", hopes: true, condemned: true, reads: 2, hours: 1, generation: 1},
	} {
		hopes, j.spared, s.reads, s.hours = c.hopes, c.spared, 0, 0
		if c.condemned {
			if _, err := s.Create(t.Context(), layout.Condemned(sub.SHA256, 0), []byte("{}"), objstore.PutOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := p.Accept(t.Context(), sub); err != nil {
			t.Fatal(err)
		}
		if s.reads != c.reads || s.hours != c.hours {
			t.Errorf("%s: %d reads of markers, %d of hours; want %d and %d", c.what, s.reads, s.hours, c.reads, c.hours)
		}
		if _, err := s.Store.Head(t.Context(), layout.Blob(sub.SHA256, c.generation)); err != nil {
			t.Errorf("%s: generation %d: %v", c.what, c.generation, err)
		}
	}
	// Retention has condemned generation 0: a later one is relied on, and its marker is read.
	hour := accept.CondemnedHour{AuthorityID: "authority-1", Hour: timegrid.HourOfNS(sub.MaxTime), Below: 3, By: "w"}
	if _, err := s.Create(t.Context(), layout.CondemnedHour(hour.Hour), hour.Marshal(), objstore.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	hopes, j.spared, s.reads = true, true, 0
	if _, err := p.Accept(t.Context(), sub); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Store.Head(t.Context(), layout.Blob(sub.SHA256, 3)); err != nil || s.reads == 0 {
		t.Errorf("%d reads, generation 3: %v", s.reads, err)
	}
}
