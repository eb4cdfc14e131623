package journal

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"testing"
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
	found := entry("agent-b", 1<<60)
	found.Outcome, found.MinTime, found.At = AuditedAccepted, -1<<62, 1
	var many []Entry
	for i := range uint64(300) {
		many = append(many, entry("agent", i))
	}
	run := RunID{0: 0xab, 15: 1}
	segments := map[string]*Segment{
		"opens":  {Position: Position{run, 0}, Opening: &Opening{Writer: "collector-1", Role: RoleCollector, Authority: "authority-1", At: 1_790_000_000_000_000_000}, Entries: []Entry{found, conflict, abroad, home}},
		"closed": {Position: Position{run, 300}, Closed: true, Entries: []Entry{home}},
		"fenced": {Position: Position{run, 301}, Fenced: true},
		"many":   {Position: Position{run, 1}, Entries: many},
		"spools": {Position: Position{run, 0}, Opening: &Opening{Writer: "collector-2", Role: RoleSpooler, Authority: "authority-1"}},
	}
	for name, s := range segments {
		written, err := s.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		golden := readGolden(t, "segment-"+name+".lmj", written)
		got, err := ParseSegment(golden)
		if err != nil || !reflect.DeepEqual(got.Entries, s.Entries) && len(s.Entries) > 0 || got.Position != s.Position || got.Closed != s.Closed || got.Fenced != s.Fenced || !reflect.DeepEqual(got.Opening, s.Opening) {
			t.Errorf("%s: %+v, %v", name, got, err)
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
	for _, name := range []string{"opens", "closed", "fenced", "many", "spools"} {
		if b, err := os.ReadFile(filepath.Join("testdata", "segment-"+name+".lmj")); err == nil {
			f.Add(b)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		// The checksum is set right, so that the fuzzer gets past it.
		if len(b) >= headerBytes {
			b = bytes.Clone(b)
			sum := checksum(b)
			b[12], b[13], b[14], b[15] = byte(sum), byte(sum>>8), byte(sum>>16), byte(sum>>24)
		}
		s, err := ParseSegment(b)
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
