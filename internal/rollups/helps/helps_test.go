package helps

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

var start = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC).UnixNano()

func help(name, text, agent string, after time.Duration) Help {
	return Help{Name: name, Text: text, Agent: agent, Time: start + int64(after)}
}

func set(list ...Help) *Set {
	s := &Set{}
	for _, h := range list {
		s.Add(h)
	}
	return s
}

// TestNewestWins: whatever the order in which helps are added, the same texts are left.
func TestNewestWins(t *testing.T) {
	list := []Help{
		help("m", "first", "a", 0), help("m", "second", "a", time.Minute), help("m", "other agent", "b", time.Minute),
		help("m", "other text", "b", time.Minute), help("n", "n's", "a", -time.Hour), help("m", "later agent, earlier", "z", time.Second),
	}
	for seed := range uint64(50) {
		rand.New(rand.NewPCG(seed, 1)).Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
		s := set(list...)
		if got := s.List(); len(got) != 2 || got[0].Text != "other text" || got[1].Text != "n's" || s.Len() != 2 ||
			s.bytes != got[0].Bytes()+got[1].Bytes() {
			t.Fatalf("seed %d: %+v, %d bytes", seed, got, s.bytes)
		}
	}
}

// TestLearn: a help is as new as the batch's last sample, and no newer than its acceptance.
func TestLearn(t *testing.T) {
	b := &frame.Batch{Helps: []frame.Help{{Name: 1, Text: "One."}, {Name: 2, Text: "Two."}}}
	b.Strings = []string{"", "one", "two"}
	s := &Set{}
	s.Learn(accepted.Batch{Identity: identity.Batch{Agent: "ahead"}, MaxTime: math.MaxInt64, AcceptedAt: 7}, b)
	b.Helps = []frame.Help{{Name: 2, Text: "Two again."}}
	s.Learn(accepted.Batch{Identity: identity.Batch{Agent: "behind"}, MaxTime: 6, AcceptedAt: 9}, b)
	s.Learn(accepted.Batch{Identity: identity.Batch{Agent: "right"}, MaxTime: 8, AcceptedAt: 9}, b)
	if want := []Help{{"one", "One.", "ahead", 7}, {"two", "Two again.", "right", 8}}; !reflect.DeepEqual(s.List(), want) {
		t.Errorf("%+v, want %+v", s.List(), want)
	}
}

// TestMergeWritesWhatChanged: names that are new, texts that replace others, and once a day that a text is still sent.
func TestMergeWritesWhatChanged(t *testing.T) {
	const week = 7 * 24 * time.Hour
	stored := set(help("m", "is", "a", 0), help("n", "is", "a", 0))
	for _, c := range []struct {
		what    string
		learned Help
		worth   bool
	}{
		{"a new name", help("new", "text", "a", 0), true},
		{"an older text", help("m", "was", "a", -time.Hour), false},
		{"the same text an hour later", help("m", "is", "a", time.Hour), false},
		{"the same text a day later", help("m", "is", "b", 24*time.Hour), true},
		{"another text by turns", help("m", "as others say", "b", time.Hour-1), false},
		{"another text", help("m", "will be", "b", time.Hour), true},
		{"a new name that nobody sends any more", help("old", "text", "a", -week-1), false},
		{"a new name from before all clocks", Help{"old", "text", "a", math.MinInt64}, false},
		{"a text from after all clocks", Help{"m", "will be", "a", math.MaxInt64}, true},
	} {
		next, worth, dropped := Merge(stored, set(c.learned))
		if worth != c.worth || dropped || !worth && next != stored {
			t.Errorf("%s: worth %v, dropped %v, %+v", c.what, worth, dropped, next.List())
		}
		if h := next.byName[c.learned.Name]; worth && h != c.learned {
			t.Errorf("%s: %+v", c.what, h)
		}
		if stored.Len() != 2 || stored.byName["m"].Text != "is" {
			t.Fatalf("%s: what is stored has changed: %+v", c.what, stored.List())
		}
	}
	// What nobody has sent for a week goes with the next write.
	if next, worth, _ := Merge(stored, set(help("new", "text", "a", week+1))); !worth || next.Len() != 1 || next.bytes != set(next.List()...).bytes {
		t.Errorf("%v %+v", worth, next.List())
	}
	if next, worth, _ := Merge(stored, set(help("new", "text", "a", week))); !worth || next.Len() != 3 {
		t.Errorf("%v %+v", worth, next.List())
	}
}

// TestAnAgentThatMakesUpNames loses its own oldest helps. What has no room is not worth a write.
func TestAnAgentThatMakesUpNames(t *testing.T) {
	stored, learned := set(help("good", "help", "a", 0)), &Set{}
	for i := range 4000 {
		learned.Add(help(fmt.Sprintf("bad_%04d", i), strings.Repeat("x", 2048), "b", time.Duration(i)))
	}
	next, worth, dropped := Merge(stored, learned)
	if _, ok := next.byName["good"]; !ok || !worth || !dropped || next.bytes > MaxBytes-MaxBytes/8 || next.bytes < MaxBytes/2 {
		t.Fatalf("%d helps of %d bytes, worth %v, dropped %v, the good one there: %v", next.Len(), next.bytes, worth, dropped, ok)
	}
	if _, ok := next.byName["bad_3999"]; !ok {
		t.Error("the newest went")
	}
	if _, ok := next.byName["bad_0000"]; ok {
		t.Error("the oldest stayed")
	}
	// The oldest come again, as from another shard: none of them stays.
	full := set(next.List()...)
	for i := range 3000 {
		full.Add(help(fmt.Sprintf("c_%04d", i), "x", "c", time.Hour))
	}
	for full.bytes < MaxBytes-2000 {
		full.Add(help(fmt.Sprintf("more_%d", full.Len()), strings.Repeat("y", 1024), "b", time.Hour))
	}
	if _, worth, dropped := Merge(full, set(help("bad_0000", strings.Repeat("x", 2048), "b", 0))); worth || !dropped {
		t.Errorf("worth %v, dropped %v", worth, dropped)
	}
}

func TestRecord(t *testing.T) {
	good := func() Record {
		return Record{"authority-1", []Help{help("a", "A's \"help\",\nof two lines.", "x", 0), help("b", "B's", "y", -time.Minute)}}
	}
	b := good().Marshal()
	r, err := Parse(b)
	if err != nil || !reflect.DeepEqual(r, good()) || !bytes.Equal(r.Marshal(), b) {
		t.Fatal(r, err)
	}
	if r, err := Parse(Record{AuthorityID: "a"}.Marshal()); err != nil || len(r.Helps) != 0 {
		t.Error(r, err)
	}
	for name, spoil := range map[string]func(*Record){
		"no authority": func(r *Record) { r.AuthorityID = "" },
		"no name":      func(r *Record) { r.Helps[0].Name = "" },
		"long name":    func(r *Record) { r.Helps[1].Name = strings.Repeat("n", 2049) },
		"no text":      func(r *Record) { r.Helps[0].Text = "" },
		"long text":    func(r *Record) { r.Helps[0].Text = strings.Repeat("t", 2049) },
		"no agent":     func(r *Record) { r.Helps[0].Agent = "" },
		"order":        func(r *Record) { r.Helps[0], r.Helps[1] = r.Helps[1], r.Helps[0] },
		"a name twice": func(r *Record) { r.Helps[1].Name = r.Helps[0].Name },
		"too much": func(r *Record) {
			r.Helps = nil
			for i := range MaxBytes/2300 + 1 {
				r.Helps = append(r.Helps, help(fmt.Sprintf("%05d", i), strings.Repeat("t", 2048), "a", 0))
			}
		},
	} {
		r := good()
		spoil(&r)
		if _, err := Parse(r.Marshal()); !errors.Is(err, record.ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestWriteIsConditional: whoever has read an older record does not replace a newer one.
func TestWriteIsConditional(t *testing.T) {
	s, ctx := mem.New(nil), t.Context()
	if _, _, err := Read(ctx, s, "a"); !errors.Is(err, objstore.ErrNotFound) {
		t.Fatal(err)
	}
	first, err := Write(ctx, s, "a", set(help("m", "first", "x", 0)), "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Write(ctx, s, "a", set(help("m", "other", "x", 0)), ""); !errors.Is(err, objstore.ErrExists) {
		t.Fatal(err)
	}
	second, err := Write(ctx, s, "a", set(help("m", "second", "x", 0)), first)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Write(ctx, s, "a", set(help("m", "third", "x", 0)), first); !errors.Is(err, objstore.ErrPreconditionFailed) {
		t.Fatal(err)
	}
	got, etag, err := Read(ctx, s, "a")
	if err != nil || etag != second || got.Len() != 1 || got.List()[0].Text != "second" {
		t.Fatal(got, etag, err)
	}
	if _, etag, err := Read(ctx, s, "b"); !errors.Is(err, record.ErrCorrupt) || etag != second {
		t.Error(etag, err)
	}
}

// TestALongRecordIsShortened: escaped texts may be longer than a record; then the oldest go.
func TestALongRecordIsShortened(t *testing.T) {
	s, all := mem.New(nil), &Set{}
	for i := 0; all.bytes < MaxBytes-4096; i++ {
		all.Add(help(fmt.Sprintf("m_%05d", i), strings.Repeat("\x01", 2048), "a", time.Duration(i)))
	}
	n := all.Len()
	if _, err := Write(t.Context(), s, "a", all, ""); err != nil {
		t.Fatal(err)
	}
	got, _, err := Read(t.Context(), s, "a")
	if err != nil || got.Len() >= n || got.Len() < n/8 || got.Len() != all.Len() {
		t.Fatalf("%d of %d helps, %v", got.Len(), n, err)
	}
	if h := got.List()[got.Len()-1]; h.Name != fmt.Sprintf("m_%05d", n-1) {
		t.Errorf("the newest went, %s is there", h.Name)
	}
}

// FuzzParse: whatever the bytes, a record is read as it is written again, or is corrupt or newer.
func FuzzParse(f *testing.F) {
	f.Add(Record{"a", []Help{help("a", "A's", "x", 0), help("b", "\x01<é>", "y", -1)}}.Marshal())
	f.Add([]byte(`{"schema":"lightmetrics.metric_helps.v2"}`))
	f.Add([]byte(`{"schema":"lightmetrics.metric_helps.v1","authority_id":"a","helps":[{"name":"m","help":"h","agent_id":"x","time_unix_ns":-9223372036854775808}],"more":1}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := Parse(b)
		if err != nil {
			if !record.Opaque(err) {
				t.Fatalf("%v", err)
			}
			return
		}
		again, err := Parse(r.Marshal())
		if err != nil || !reflect.DeepEqual(again, r) {
			t.Fatalf("%+v, %v, of %+v", again, err, r)
		}
		s := set(r.Helps...)
		if s.Len() != len(r.Helps) || s.bytes > MaxBytes {
			t.Fatalf("%d helps of %d, %d bytes", s.Len(), len(r.Helps), s.bytes)
		}
		if _, worth, _ := Merge(s, s); worth {
			t.Fatal("what is stored is worth a write")
		}
	})
}
