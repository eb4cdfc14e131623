package journal

import (
	"bytes"
	"encoding/binary"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/record"
)

var update = flag.Bool("update", false, "write golden files that do not exist yet")

// The files in testdata are read for ever. What is written for the same entries may be compressed
// otherwise by a later release, so only uncompressed ones are compared byte by byte.
func TestGoldenFiles(t *testing.T) {
	conflict := entry("agent-é", 3)
	conflict.Outcome, conflict.Generation = Conflict, 2
	abroad := entry("agent-é", 7)
	abroad.Outcome, abroad.HomeRegion, abroad.ClaimEpoch = Duplicate, "eu-west", 9
	home := entry("agent-é", 8)
	inline, inlineLost := entry("agent-é", 9), entry("agent-é", 10)
	inline.Inline, inlineLost.Inline, inlineLost.Outcome = true, true, Conflict
	elsewhere := entry("agent-é", 11)
	elsewhere.Outcome, elsewhere.HomeRegion, elsewhere.ClaimEpoch = Elsewhere, "eu-west", 9
	found := entry("agent-b", 1<<60)
	found.Outcome, found.MinTime, found.At = AuditedAccepted, -1<<62, 1
	var many []Entry
	for i := range uint64(300) {
		many = append(many, entry("agent", i))
	}
	run := RunID{0: 0xab, 15: 1}
	segments := map[string]*Segment{
		"opens":            {Position: Position{run, 0}, Opening: &Opening{Writer: "collector-1", Role: RoleCollector, Authority: "authority-1", At: 1_790_000_000_000_000_000}, Entries: []Entry{found, conflict, abroad, home}},
		"closed":           {Position: Position{run, 300}, Closed: true, Entries: []Entry{home}},
		"inline":           {Position: Position{run, 302}, Entries: []Entry{home, inline, inlineLost}},
		"names":            {Position: Position{run, 303}, Epochs: true, Epoch: 700, Entries: []Entry{home, inline, inlineLost}},
		"renews":           {Position: Position{run, 304}, Epochs: true, Epoch: 701},
		"naming":           {Position: Position{run, 0}, Epochs: true, Opening: &Opening{Writer: "collector-3", Role: RoleCollector, Authority: "authority-1"}, Entries: []Entry{home}},
		"elsewhere":        {Position: Position{run, 305}, Entries: []Entry{home, inline, elsewhere}},
		"elsewhere-naming": {Position: Position{run, 306}, Closed: true, Epochs: true, Epoch: 702, Entries: []Entry{elsewhere}},
		"fenced":           {Position: Position{run, 301}, Fenced: true},
		"many":             {Position: Position{run, 1}, Entries: many},
		"spools":           {Position: Position{run, 0}, Opening: &Opening{Writer: "collector-2", Role: RoleSpooler, Authority: "authority-1"}},
	}
	for name, s := range segments {
		written, err := s.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		golden := readGolden(t, "segment-"+name+".lmj", written)
		got, err := ParseSegment(golden)
		if err != nil || !reflect.DeepEqual(got.Entries, s.Entries) && len(s.Entries) > 0 || got.Position != s.Position || got.Closed != s.Closed || got.Fenced != s.Fenced || got.Epochs != s.Epochs || got.Epoch != s.Epoch || !reflect.DeepEqual(got.Opening, s.Opening) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
		// Only a file with such an entry, or of such a run, keeps earlier releases from reading it.
		want := byte(versionBlobs)
		switch {
		case slices.ContainsFunc(s.Entries, func(e Entry) bool { return e.Outcome == Elsewhere }):
			want = versionElsewhere
		case s.Epochs:
			want = versionEpochs
		case name == "inline":
			want = versionInline
		}
		if golden[5] != want {
			t.Errorf("%s is of version %d", name, golden[5])
		}
		if golden[7]&flagZstd == 0 && !bytes.Equal(written, golden) {
			t.Errorf("%s is written otherwise than before", name)
		}
	}
	written, err := marshalFolded(many)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := ParseFolded(readGolden(t, "folded.lmj", written)); err != nil || !reflect.DeepEqual(got, many) {
		t.Errorf("folded: %v", err)
	}
	// The document says about 60 bytes a batch.
	if per := len(written) / len(many); per > 64 {
		t.Errorf("%d bytes an entry", per)
	}
}

// The head and its lists are JSON of one form, so they are compared byte by byte.
func TestGoldenHead(t *testing.T) {
	span := func(number uint64, entries uint64) Span {
		return Span{Key: layout.JournalFolded(number, RunID{7}, 0), First: number, Last: number + 1, Entries: entries, Bytes: 60 * entries,
			MinAt: 1_790_000_000_000_000_000, MaxAt: 1_790_000_060_000_000_000, MinTime: -5, MaxTime: 1_790_000_000_000_000_000}
	}
	listed := span(1, 40_000)
	listed.Key, listed.Last = layout.JournalList(9, RunID{7}), 8
	head := Head{Number: 12, Forgotten: 3, Lists: []FileList{{listed}}, Files: []FoldedFile{{span(9, 300)}, {span(11, 1)}}, Runs: []HeadRun{
		{Run: RunID{0xab}, Writer: "collector-1", Role: RoleCollector, Folded: 4, Deleted: 2},
		{Run: RunID{0xcd}, Writer: "collector-é", Role: RoleSpooler, Folded: 9, Deleted: 9, Ended: 10, Fenced: true},
	}}
	written, err := head.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	golden := readGolden(t, "head.json", written)
	if got, err := ParseHead(golden); err != nil || !reflect.DeepEqual(got, head) || !bytes.Equal(golden, written) {
		t.Errorf("%+v, %v, written %s", got, err, written)
	}
	files := []FoldedFile{{span(1, 5)}, {span(3, 7)}}
	if written, err = MarshalList(files); err != nil {
		t.Fatal(err)
	}
	golden = readGolden(t, "list.json", written)
	if got, err := ParseList(golden); err != nil || !reflect.DeepEqual(got, files) || !bytes.Equal(golden, written) {
		t.Errorf("%+v, %v, written %s", got, err, written)
	}
}

func readGolden(t *testing.T, name string, written []byte) []byte {
	t.Helper()
	path := filepath.Join("testdata", name)
	b, err := os.ReadFile(path)
	if os.IsNotExist(err) && *update {
		b, err = written, os.WriteFile(path, written, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func FuzzParseSegment(f *testing.F) {
	for _, name := range []string{"opens", "closed", "fenced", "many", "spools", "inline", "names", "renews", "naming", "elsewhere", "elsewhere-naming"} {
		if b, err := os.ReadFile(filepath.Join("testdata", "segment-"+name+".lmj")); err == nil {
			f.Add(b)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := ParseSegment(withChecksum(b))
		if err != nil {
			return
		}
		again, err := s.Marshal()
		if err != nil {
			t.Fatalf("a segment that was read can't be written: %v", err)
		}
		other, err := ParseSegment(again)
		if err != nil || !reflect.DeepEqual(s, other) {
			t.Fatalf("read back as %+v, %v; was %+v", other, err, s)
		}
	})
}

// withChecksum sets the checksum right, so that the fuzzer gets past it.
func withChecksum(b []byte) []byte {
	if len(b) >= headerBytes {
		b = bytes.Clone(b)
		binary.LittleEndian.PutUint32(b[12:], checksum(b))
	}
	return b
}

func FuzzParseFolded(f *testing.F) {
	b, err := os.ReadFile(filepath.Join("testdata", "folded.lmj"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	small, err := marshalFolded([]Entry{entry("a", 1), entry("b", 2)})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(small)
	elsewhere := entry("b", 2)
	elsewhere.Outcome, elsewhere.HomeRegion = Elsewhere, "eu"
	abroad, err := marshalFolded([]Entry{entry("a", 1), elsewhere})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(abroad)
	f.Fuzz(func(t *testing.T, b []byte) {
		es, err := ParseFolded(withChecksum(b))
		if err != nil {
			return
		}
		again, err := marshalFolded(slices.Clone(es))
		if err != nil {
			t.Fatalf("a file that was read can't be written: %v", err)
		}
		if other, err := ParseFolded(again); err != nil || !reflect.DeepEqual(es, other) {
			t.Fatalf("read back as %+v, %v; was %+v", other, err, es)
		}
	})
}

// FuzzParseHead reads heads and lists: what is read is written as the same bytes.
func FuzzParseHead(f *testing.F) {
	for _, name := range []string{"head.json", "list.json"} {
		b, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if h, err := ParseHead(b); err == nil {
			if again, err := h.Marshal(); err != nil || !bytes.Equal(b, again) {
				t.Fatalf("written as %s, %v; was %s", again, err, b)
			}
			h.Positions()
		} else if !record.Opaque(err) {
			t.Fatalf("an error of no kind: %v", err)
		}
		if files, err := ParseList(b); err == nil {
			if again, err := MarshalList(files); err != nil || !bytes.Equal(b, again) {
				t.Fatalf("written as %s, %v; was %s", again, err, b)
			}
		}
	})
}

func FuzzParsePosition(f *testing.F) {
	f.Add(Position{RunID{1}, 2}.String())
	f.Add("")
	f.Fuzz(func(t *testing.T, s string) {
		if p, err := ParsePosition(s); err == nil && p.String() != s {
			t.Fatalf("%q is read as %s", s, p)
		}
	})
}
