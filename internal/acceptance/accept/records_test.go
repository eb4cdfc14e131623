package accept_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

var update = flag.Bool("update", false, "write the golden files")

func goldenManifest() accept.Manifest {
	id := identity.Batch{Agent: "host \"a\"\\\n\x01é", Boot: "boot-1", SeqStart: 1, SeqEnd: 1<<64 - 1}
	d := identity.Sum([]byte("frame"))
	return accept.Manifest{
		AuthorityID: "authority-1", Identity: id, FrameSHA256: d, FrameBytes: 5, RawBlobKey: layout.Blob(d, 3),
		AcceptedAt: 1_763_697_600_123_456_789, CollectorID: "collector-1", WireVersion: 1, FrameVersion: 1,
		AttemptID: "000102030405060708090a0b0c0d0e0f", RecordCount: id.Count(), MinTime: -5, MaxTime: 7,
		Traceparent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
	}
}

type golden struct {
	name  string
	bytes []byte
	parse func([]byte) ([]byte, error) // and marshal again
}

func records() []golden {
	m := goldenManifest()
	plain := m
	plain.Traceparent = ""
	regional := m
	regional.HomeRegion, regional.ClaimEpoch = "eu-north-1", 1<<64-1
	stamped := regional
	stamped.ClaimFence = 1<<64 - 1
	affirmed := accept.Affirmation{AuthorityID: m.AuthorityID, Identity: m.Identity, FrameSHA256: m.FrameSHA256, Stamp: accepted.Stamp{Epoch: 3, Fence: 1<<64 - 1}, HomeRegion: "eu-north-1"}
	lost := identity.Sum([]byte("lost"))
	c := accept.ConflictRecord{
		AuthorityID: m.AuthorityID, Identity: m.Identity, AcceptedBlobKey: m.RawBlobKey, AcceptedSHA256: m.FrameSHA256,
		SubmittedBlobKey: layout.Blob(lost, 0), SubmittedSHA256: lost, AcceptedManifestKey: layout.Accepted(m.Identity),
		ObservedAt: m.AcceptedAt + 1, CollectorID: "collector-2",
	}
	met := c
	met.Met = m.Identity
	met.Met.SeqStart, met.Met.SeqEnd = 0, 7
	b := accept.BootRecord{
		AuthorityID: m.AuthorityID, Boot: m.Identity.BootOf(), SpoolID: "", Mode: accept.ModeS3Manifest,
		FirstSeen: m.AcceptedAt, CollectorID: "collector-1",
	}
	manifest := func(x []byte) ([]byte, error) { v, err := accept.ParseManifest(x); return v.Marshal(), err }
	return []golden{
		{"manifest", m.Marshal(), manifest},
		{"manifest-plain", plain.Marshal(), manifest},
		{"manifest-regional", regional.Marshal(), manifest},
		{"manifest-stamped", stamped.Marshal(), manifest},
		{"affirmation", affirmed.Marshal(), func(x []byte) ([]byte, error) { v, err := accept.ParseAffirmation(x); return v.Marshal(), err }},
		{"conflict", c.Marshal(), func(x []byte) ([]byte, error) { v, err := accept.ParseConflictRecord(x); return v.Marshal(), err }},
		{"conflict-met", met.Marshal(), func(x []byte) ([]byte, error) { v, err := accept.ParseConflictRecord(x); return v.Marshal(), err }},
		{"boot", b.Marshal(), func(x []byte) ([]byte, error) { v, err := accept.ParseBootRecord(x); return v.Marshal(), err }},
		{"authority-bound", accept.AuthorityRecord{AuthorityID: "authority-1", Place: objstore.Place{Endpoint: "minio.example:9000", Region: "r", Bucket: "metrics", Prefix: "prod/"}, CreatedAt: 5, BoundAt: 7}.Marshal(), func(x []byte) ([]byte, error) {
			v, err := accept.ParseAuthorityRecord(x)
			return v.Marshal(), err
		}},
		{"authority", accept.AuthorityRecord{AuthorityID: "authority-1"}.Marshal(), func(x []byte) ([]byte, error) {
			v, err := accept.ParseAuthorityRecord(x)
			return v.Marshal(), err
		}},
		{"condemned", accept.CondemnedMarker{FrameSHA256: m.FrameSHA256, Generation: 3, CondemnedAt: 9, PlanID: "plan-1"}.Marshal(),
			func(x []byte) (_ []byte, err error) {
				var v accept.CondemnedMarker
				err = accept.CondemnedKind.Unmarshal(x, &v)
				return v.Marshal(), err
			}},
	}
}

func TestGoldenRecords(t *testing.T) {
	for _, r := range records() {
		path := filepath.Join("testdata", r.name+".json")
		if *update {
			if err := os.WriteFile(path, r.bytes, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(r.bytes, want) {
			t.Errorf("%s is\n%s\nwant\n%s", r.name, r.bytes, want)
		}
		if !json.Valid(want) || len(want) > accept.MaxRecordBytes {
			t.Errorf("%s: not JSON of a permitted length", r.name)
		}
		again, err := r.parse(want)
		if err != nil || !bytes.Equal(again, want) {
			t.Errorf("%s read and written again is\n%s (%v)", r.name, again, err)
		}
	}
	if m, err := accept.ParseManifest(goldenManifest().Marshal()); err != nil || m != goldenManifest() {
		t.Errorf("manifest read back is %+v, %v", m, err)
	}
	// What another JSON reader sees is the same text.
	var v struct {
		AgentID string `json:"agent_id"`
	}
	if err := json.Unmarshal(goldenManifest().Marshal(), &v); err != nil || v.AgentID != goldenManifest().Identity.Agent {
		t.Errorf("agent_id is %q, %v", v.AgentID, err)
	}
}

// schemaVersion is the version behind a record's schema.
var schemaVersion = regexp.MustCompile(`^(\{"schema":"[a-z_.]+\.v)[0-9]+"`)

// TestStrictParse changes each record in ways that a lenient reader would let pass.
func TestStrictParse(t *testing.T) {
	for _, r := range records() {
		s := string(r.bytes)
		for name, bad := range map[string]string{
			"repeated field":  strings.TrimSuffix(s, "}") + `,"schema":"x"}`,
			"unknown first":   strings.Replace(s, `{"schema"`, `{"x":1,"schema"`, 1),
			"trailing space":  s + " ",
			"trailing record": s + s,
			"spaces":          strings.ReplaceAll(s, `":`, `": `),
			"schema version":  schemaVersion.ReplaceAllString(s, `${1}0"`),
			"case":            strings.Replace(s, `"schema"`, `"Schema"`, 1),
			"cut":             s[:len(s)-1],
			"empty":           "",
			"long":            s + strings.Repeat(" ", accept.MaxRecordBytes),
		} {
			if _, err := r.parse([]byte(bad)); !errors.Is(err, record.ErrCorrupt) {
				t.Errorf("%s, %s: %v", r.name, name, err)
			}
		}
		// A field of a newer release that may be ignored, and a version that may not.
		if again, err := r.parse([]byte(strings.TrimSuffix(s, "}") + `,"x":1}`)); err != nil || string(again) != s {
			t.Errorf("%s with a field of a newer release: %s, %v", r.name, again, err)
		}
		if _, err := r.parse([]byte(schemaVersion.ReplaceAllString(s, `${1}9"`))); !errors.Is(err, record.ErrNewerVersion) {
			t.Errorf("%s of a newer version: %v", r.name, err)
		}
	}
	m := goldenManifest()
	m.HomeRegion, m.ClaimEpoch, m.ClaimFence = "eu", 5, 6
	for _, c := range [][2]string{
		{`"claim_epoch":5,`, ``},
		{`"claim_fence":6`, `"claim_fence":0`},
		{`"claim_fence":6`, `"claim_fence":06`},
		{`"claim_epoch":5,"claim_fence":6`, `"claim_fence":6,"claim_epoch":5`},
		{`"seq_start":1`, `"seq_start":01`}, {`"seq_start":1`, `"seq_start":1.0`}, {`"seq_start":1`, `"seq_start":-1`},
		{`"seq_start":1`, `"seq_start":2`},                 // record_count
		{`"min_time_unix_ns":-5`, `"min_time_unix_ns":8`},  // after max
		{`"min_time_unix_ns":-5`, `"min_time_unix_ns":-0`}, // not the shortest form
		{`"wire_version":1`, `"wire_version":4294967296`},  // 33 bits
		{`"frame_bytes":5`, `"frame_bytes":0`},             //
		{`.g3.lmbatch`, `.g03.lmbatch`},                    // not a key
		{`raw-blobs/v1`, `raw-blobs/v2`},                   //
		{`"agent_id":"host `, `"agent_id":"\u0068ost `},    // needless escape
		{`\u0001`, "\x01"},                                 // bare control character
		{`\u0001`, "\xff"},                                 // not UTF-8
		{`\n`, `\u000a`},                                   // an escape with a shorter form
		{`"traceparent":"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"`, `"traceparent":""`}, //
		{`"authority_id":"authority-1"`, `"authority_id":""`},                                           //
		{`"attempt_id":"00`, `"attempt_id":"0A`},                                                        // upper case
		{`-01"`, `-0g"`},                                                                                // traceparent
		{`"accepted_at_unix_ns":1`, `"accepted_at_unix_ns":-1`},                                         //
		{m.FrameSHA256.String() + `","frame`, strings.Repeat("0", 64) + `","frame`},                     // another blob's key
	} {
		old := string(m.Marshal())
		bad := strings.Replace(old, c[0], c[1], 1)
		if bad == old {
			t.Errorf("%q is not in the manifest", c[0])
		}
		if _, err := accept.ParseManifest([]byte(bad)); !errors.Is(err, record.ErrCorrupt) {
			t.Errorf("%q for %q: %v", c[1], c[0], err)
		}
	}
}

// The longest record that the limits allow stays below the bound that readers use.
func TestLongestRecordFits(t *testing.T) {
	long := strings.Repeat("\x01", accept.MaxNameBytes)
	m := goldenManifest()
	m.AuthorityID, m.CollectorID, m.HomeRegion, m.ClaimEpoch, m.ClaimFence = long, long, long, 1<<64-1, 1<<64-1
	m.Identity.Agent, m.Identity.Boot = long, long[:identity.MaxBootIDBytes]
	c := accept.ConflictRecord{
		AuthorityID: long, Identity: m.Identity, CollectorID: long,
		AcceptedBlobKey: layout.Blob(m.FrameSHA256, 1<<32-1), AcceptedSHA256: m.FrameSHA256,
		SubmittedBlobKey: layout.Blob(identity.Sum(nil), 1<<32-1), SubmittedSHA256: identity.Sum(nil),
		AcceptedManifestKey: layout.Accepted(m.Identity), ObservedAt: 1<<63 - 1, Met: m.Identity,
	}
	c.Met.SeqStart = 1<<64 - 2
	a := accept.Affirmation{AuthorityID: long, Identity: m.Identity, FrameSHA256: m.FrameSHA256, Stamp: m.Stamp(), HomeRegion: long}
	if got, err := accept.ParseAffirmation(a.Marshal()); err != nil || got != a {
		t.Error(got, err)
	}
	if _, err := accept.ParseManifest(m.Marshal()); err != nil {
		t.Error(err)
	}
	if _, err := accept.ParseConflictRecord(c.Marshal()); err != nil {
		t.Error(err)
	}
}

// TestTheNumbersOfAConflict: they are those of another identity that shares some, both or none are there, and who reads the record finds
// that one's manifest by it.
func TestTheNumbersOfAConflict(t *testing.T) {
	m := goldenManifest()
	m.Identity.SeqStart, m.Identity.SeqEnd = 10, 19
	c := accept.ConflictRecord{
		AuthorityID: m.AuthorityID, Identity: m.Identity, AcceptedBlobKey: m.RawBlobKey, AcceptedSHA256: m.FrameSHA256, SubmittedBlobKey: layout.Blob(identity.Sum(nil), 0),
		SubmittedSHA256: identity.Sum(nil), AcceptedManifestKey: layout.Accepted(m.Identity), ObservedAt: 9, CollectorID: "c",
	}
	if c.ManifestKey() != layout.Accepted(m.Identity) {
		t.Error(c.ManifestKey())
	}
	plain := string(c.Marshal())
	for fields, good := range map[string]bool{
		`,"accepted_seq_start":5,"accepted_seq_end":10`: true, `,"accepted_seq_start":0,"accepted_seq_end":99`: true, `,"accepted_seq_start":10,"accepted_seq_end":18`: true,
		`,"accepted_seq_start":10,"accepted_seq_end":19`: false, `,"accepted_seq_start":20,"accepted_seq_end":29`: false, `,"accepted_seq_start":18,"accepted_seq_end":12`: false,
		`,"accepted_seq_start":5`: false, `,"accepted_seq_end":12`: false, `,"accepted_seq_end":12,"accepted_seq_start":5`: false,
		`,"x":1,"accepted_seq_start":5,"accepted_seq_end":12`: false,
	} {
		got, err := accept.ParseConflictRecord([]byte(strings.TrimSuffix(plain, "}") + fields + "}"))
		if (err == nil) != good || err != nil && !errors.Is(err, record.ErrCorrupt) {
			t.Errorf("%s: %v", fields, err)
		}
		if err == nil && (got.Met.BootOf() != m.Identity.BootOf() || got.ManifestKey() != layout.Accepted(got.Met) || string(got.Marshal()) != strings.TrimSuffix(plain, "}")+fields+"}") {
			t.Errorf("%s: %+v", fields, got)
		}
	}
}

// FuzzRecords: whatever a parser takes is the one encoding of what it returns, but for fields of newer releases behind it.
func FuzzRecords(f *testing.F) {
	for _, r := range records() {
		f.Add(r.bytes)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, r := range records() {
			again, err := r.parse(b)
			if err == nil && !bytes.Equal(again, b) && !bytes.HasPrefix(b, append(again[:len(again)-1:len(again)-1], ',')) {
				t.Errorf("%s: %q was read as %q", r.name, b, again)
			}
			if err != nil && !errors.Is(err, record.ErrCorrupt) && !errors.Is(err, record.ErrNewerVersion) {
				t.Errorf("%s: %v", r.name, err)
			}
		}
	})
}

// An affirmation is never one of a claim that nobody made.
func TestAffirmationsHaveAStamp(t *testing.T) {
	m := goldenManifest()
	a := accept.Affirmation{AuthorityID: "a", Identity: m.Identity, FrameSHA256: m.FrameSHA256, Stamp: accepted.Stamp{Epoch: 3, Fence: 7}, HomeRegion: "eu"}
	for _, s := range []accepted.Stamp{{}, {Epoch: 3}, {Fence: 7}} {
		bad := a
		bad.Stamp = s
		if _, err := accept.ParseAffirmation(bad.Marshal()); !errors.Is(err, record.ErrCorrupt) {
			t.Errorf("%+v: %v", s, err)
		}
	}
}
