package accept_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// carriedFrame has a line feed: only the first one of an object divides it.
var carriedFrame = []byte("a frame\nof two lines")

// objects are records with the frames that they carry.
func objects() []golden {
	m := goldenManifest()
	m.Inline, m.RawBlobKey, m.FrameSHA256, m.FrameBytes = true, "", identity.Sum(carriedFrame), uint64(len(carriedFrame))
	lost := identity.Sum([]byte("lost"))
	c := accept.ConflictRecord{
		AuthorityID: m.AuthorityID, Identity: m.Identity, AcceptedSHA256: lost, SubmittedSHA256: m.FrameSHA256, SubmittedBytes: m.FrameBytes,
		AcceptedManifestKey: layout.Accepted(m.Identity), ObservedAt: m.AcceptedAt + 1, CollectorID: "collector-2",
	}
	ofBlob, toInline := c, c
	ofBlob.AcceptedBlobKey = layout.Blob(lost, 2)
	toInline.SubmittedBlobKey, toInline.SubmittedBytes = layout.Blob(m.FrameSHA256, 1), 0
	manifest := func(x []byte) ([]byte, error) {
		v, err := accept.ParseManifest(x)
		return v.MarshalWith(accept.InlineFrame(x)), err
	}
	conflict := func(x []byte) ([]byte, error) {
		v, err := accept.ParseConflictRecord(x)
		return v.MarshalWith(accept.InlineFrame(x)), err
	}
	return []golden{
		{"manifest-inline", m.MarshalWith(carriedFrame), manifest},
		{"conflict-inline", c.MarshalWith(carriedFrame), conflict},
		{"conflict-inline-of-blob", ofBlob.MarshalWith(carriedFrame), conflict},
		{"conflict-blob-of-inline", toInline.MarshalWith(nil), conflict},
	}
}

func TestGoldenObjects(t *testing.T) {
	for _, r := range objects() {
		path := filepath.Join("testdata", r.name)
		if *update {
			if err := os.WriteFile(path, r.bytes, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil || !bytes.Equal(r.bytes, want) {
			t.Errorf("%s is\n%q\nwant\n%q (%v)", r.name, r.bytes, want, err)
		}
		if again, err := r.parse(want); err != nil || !bytes.Equal(again, want) {
			t.Errorf("%s read and written again is\n%q (%v)", r.name, again, err)
		}
		// The record alone is within the bytes that a reader asks for who does not want the frame.
		if head := accept.RecordOf(want); len(head) > accept.MaxRecordBytes || !bytes.HasPrefix(want, head) || head[len(head)-1] != '}' {
			t.Errorf("%s: the record is %q", r.name, head)
		}
		// A field of a newer release may be ignored, a version may not.
		head := string(accept.RecordOf(want))
		more := strings.Replace(string(want), head, strings.TrimSuffix(head, "}")+`,"x":1}`, 1)
		if again, err := r.parse([]byte(more)); err != nil || !bytes.Equal(again, want) {
			t.Errorf("%s with a field of a newer release: %q, %v", r.name, again, err)
		}
		if _, err := r.parse([]byte(schemaVersion.ReplaceAllString(string(want), `${1}9"`))); !errors.Is(err, record.ErrNewerVersion) {
			t.Errorf("%s of a newer version: %v", r.name, err)
		}
	}
}

func TestStrictObjects(t *testing.T) {
	m, conflict := objects()[0], objects()[1]
	s, f := string(m.bytes), string(carriedFrame)
	other := strings.Replace(f, "a", "b", 1)
	for name, bad := range map[string]string{
		"no frame":        strings.TrimSuffix(s, "\n"+f),
		"an empty frame":  strings.TrimSuffix(s, f),
		"cut":             s[:len(s)-1],
		"longer":          s + "x",
		"another frame":   strings.TrimSuffix(s, f) + other,
		"first version":   strings.Replace(s, ".v2", ".v1", 1),
		"with a blob":     strings.Replace(s, `"accepted_at_unix_ns"`, `"raw_blob_key":"`+layout.Blob(identity.Sum(carriedFrame), 0)+`","accepted_at_unix_ns"`, 1),
		"another length":  strings.Replace(s, `"frame_bytes":20`, `"frame_bytes":21`, 1),
		"a long record":   strings.Replace(s, "\n", strings.Repeat(" ", accept.MaxRecordBytes)+"\n", 1),
		"carriage return": strings.Replace(s, "\n", "\r\n", 1),
	} {
		if _, err := m.parse([]byte(bad)); !errors.Is(err, record.ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
	s = string(conflict.bytes)
	both := strings.Replace(s, `"accepted_sha256"`, `"accepted_blob_key":"`+layout.Blob(identity.Sum([]byte("lost")), 0)+`","accepted_sha256"`, 1)
	for name, bad := range map[string]string{
		"no frame":       strings.TrimSuffix(s, "\n"+f),
		"another frame":  strings.TrimSuffix(s, f) + other,
		"another length": strings.Replace(s, `"submitted_bytes":20`, `"submitted_bytes":9`, 1),
		"two blobs":      strings.Replace(strings.TrimSuffix(both, "\n"+f), `"submitted_sha256"`, `"submitted_blob_key":"`+layout.Blob(identity.Sum(carriedFrame), 0)+`","submitted_sha256"`, 1),
		"blob and frame": string(objects()[3].bytes) + "\n" + f,
		"another's blob": strings.Replace(both, layout.Blob(identity.Sum([]byte("lost")), 0), layout.Blob(identity.Sum(nil), 0), 1),
		"an empty key":   strings.Replace(s, `"accepted_sha256"`, `"accepted_blob_key":"","accepted_sha256"`, 1),
	} {
		if _, err := conflict.parse([]byte(bad)); !errors.Is(err, record.ErrCorrupt) {
			t.Errorf("conflict, %s: %v", name, err)
		}
	}
	long := bytes.Repeat([]byte("x"), accept.MaxInlineFrame+1)
	v, err := accept.ParseManifest(m.bytes)
	if err != nil {
		t.Fatal(err)
	}
	v.FrameSHA256, v.FrameBytes = identity.Sum(long), uint64(len(long))
	if _, err := accept.ParseManifest(v.MarshalWith(long)); !errors.Is(err, record.ErrCorrupt) {
		t.Errorf("a frame of %d bytes: %v", len(long), err)
	}
	long = long[1:]
	v.FrameSHA256, v.FrameBytes = identity.Sum(long), uint64(len(long))
	if _, err := accept.ParseManifest(v.MarshalWith(long)); err != nil {
		t.Errorf("a frame of %d bytes: %v", len(long), err)
	}
}

// FuzzObjects: whatever a parser takes has the frame that its record says, and is the one encoding of both but for fields of
// newer releases.
func FuzzObjects(f *testing.F) {
	for _, r := range objects() {
		f.Add(r.bytes)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		head, frame := accept.RecordOf(b), accept.InlineFrame(b)
		check := func(again []byte, inline bool, d identity.Digest) {
			own := accept.RecordOf(again)
			if !bytes.Equal(own, head) && !bytes.HasPrefix(head, append(own[:len(own)-1:len(own)-1], ',')) {
				t.Errorf("%q was read as %q", b, again)
			}
			if inline && identity.Sum(frame) != d || !inline && frame != nil {
				t.Errorf("%q: the frame %q", b, frame)
			}
		}
		if m, err := accept.ParseManifest(b); err == nil {
			check(m.MarshalWith(frame), m.Inline, m.FrameSHA256)
		}
		if c, err := accept.ParseConflictRecord(b); err == nil {
			check(c.MarshalWith(frame), c.Inline(), c.SubmittedSHA256)
		}
	})
}

func inlineBelow(n int) func(*accept.Config) {
	return func(c *accept.Config) { c.InlineBelow = n }
}

// Frames of fewer bytes are carried, and no request is about a blob; but where another collector made a record that names one.
func TestRequestsOfInlineFrames(t *testing.T) {
	size := len(submission(testID, "a").Frame)
	const all = accept.MaxInlineFrame
	for name, c := range map[string]struct {
		first, second int // thresholds of the collector that comes first, and of the other
		variant       string
		outcome       accept.Outcome
		want          string
	}{
		"accepted":                            {0, all, "other", 0, "create accepted, create journal"},
		"as long as the bound":                {0, size + 4, "other", 0, "create raw-blobs, create accepted, get gc, create journal"},
		"duplicate":                           {all, all, "a", accept.Duplicate, "create accepted, get accepted, create journal"},
		"duplicate, blobs after inline":       {all, 0, "a", accept.Duplicate, "create raw-blobs, create accepted, get accepted, create journal"},
		"duplicate, inline after blobs":       {0, all, "a", accept.Duplicate, "create accepted, get accepted, create raw-blobs, head raw-blobs, get gc, get gc, create journal"},
		"conflict":                            {all, all, "b", accept.Conflict, "create accepted, get accepted, create quarantine, create journal"},
		"conflict of inline with a blob":      {0, all, "b", accept.Conflict, "create accepted, get accepted, create quarantine, create journal"},
		"conflict of a blob with inline":      {all, 0, "b", accept.Conflict, "create raw-blobs, create accepted, get accepted, create quarantine, get gc, create journal"},
		"conflict again, inline after inline": {all, all, "B", accept.Conflict, "create accepted, get accepted, create quarantine, get quarantine, create journal"},
		"conflict again, inline after a blob": {0, all, "B", accept.Conflict, "create accepted, get accepted, create quarantine, get quarantine, create raw-blobs, head raw-blobs, get gc, create journal"},
		"conflict again, a blob after inline": {all, 0, "B", accept.Conflict, "create raw-blobs, create accepted, get accepted, create quarantine, get quarantine, get gc, create journal"},
	} {
		t.Run(name, func(t *testing.T) {
			s := mem.New(nil)
			mustAccept(t, protocol(t, s, "c1", inlineBelow(c.first)), submission(testID, "a"), accept.Accepted)
			if c.variant == "B" {
				mustAccept(t, protocol(t, s, "c1", inlineBelow(c.first)), submission(testID, "b"), accept.Conflict)
			}
			h := &hooked{Store: s}
			p := protocol(t, h, "c2", func(cfg *accept.Config) {
				cfg.InlineBelow, cfg.Journal = c.second, newJournal(t, h, 1)
			})
			warm := submission(identity.Batch{Agent: "agent-1", Boot: "boot-1", SeqStart: 100, SeqEnd: 100}, "warm")
			mustAccept(t, p, warm, accept.Accepted)
			h.ops = nil
			sub := submission(testID, strings.ToLower(c.variant))
			if c.outcome == 0 {
				sub = submission(identity.Batch{Agent: "agent-1", Boot: "boot-1", SeqStart: 20, SeqEnd: 29}, "other")
				c.outcome = accept.Accepted
			}
			res := mustAccept(t, p, sub, c.outcome)
			var got []string
			for _, op := range h.ops {
				verb, key, _ := strings.Cut(op, " ")
				got = append(got, verb+" "+objstore.Family(key))
			}
			if all := strings.Join(got, ", "); all != c.want {
				t.Errorf("%s\nwant %s", all, c.want)
			}
			key := res.Manifest.FrameKey()
			if c.outcome == accept.Conflict {
				b, _, err := s.Get(t.Context(), res.QuarantineKey, objstore.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				r, err := accept.ParseConflictRecord(b)
				if err != nil {
					t.Fatal(err)
				}
				key = r.FrameKey()
			}
			if raw, err := accept.ReadFrame(t.Context(), s, key, sub.SHA256, uint64(len(sub.Frame))); err != nil || !bytes.Equal(raw, sub.Frame) {
				t.Errorf("the frame is %q, %v", raw, err)
			}
		})
	}
}

// What the journal says of a frame is where the frame is, whichever collector says it.
func TestEntriesSayWhereTheFrameIs(t *testing.T) {
	for _, first := range []int{0, accept.MaxInlineFrame} {
		for _, second := range []int{0, accept.MaxInlineFrame} {
			s := mem.New(nil)
			var entries []journal.Entry
			noted := func(name string, below int) *accept.Protocol {
				return protocol(t, s, name, func(c *accept.Config) {
					c.InlineBelow = below
					c.Journal = addedAt{newJournal(t, s, 1), func(e journal.Entry) { entries = append(entries, e) }}
				})
			}
			one, two := noted("c1", first), noted("c2", second)
			mustAccept(t, one, submission(testID, "a"), accept.Accepted)
			mustAccept(t, two, submission(testID, "a"), accept.Duplicate)
			mustAccept(t, two, submission(testID, "b"), accept.Conflict)
			mustAccept(t, one, submission(testID, "b"), accept.Conflict)
			for _, e := range entries {
				if err := e.Validate(); err != nil {
					t.Error(err)
				}
				// Of a conflict any place will do that has the bytes; of an accepted batch it is the manifest's own.
				if _, err := accept.ReadFrame(t.Context(), only{s}, e.FrameKey(), e.SHA256, e.Bytes); err != nil {
					t.Errorf("%d, then %d: %s %s: %v", first, second, e.Outcome, e.FrameKey(), err)
				}
				if !e.Outcome.Conflict() && e.Inline != (first > 0) {
					t.Errorf("%d, then %d: %s: inline is %v", first, second, e.Outcome, e.Inline)
				}
			}
			if len(entries) < 5 {
				t.Errorf("%d entries", len(entries))
			}
		}
	}
}

// only lists nothing, so that a frame is read from the one key.
type only struct{ objstore.Store }

func (only) List(context.Context, objstore.ListOptions) (objstore.Page, error) {
	return objstore.Page{}, nil
}

// A frame that a record carries is read from it, and from a generation where the record is damaged.
func TestReadInlineFrame(t *testing.T) {
	sub := submission(testID, "a")
	key := layout.Accepted(testID)
	for name, c := range map[string]struct {
		change func([]byte) []byte
		blob   bool
		found  bool
	}{
		"whole":                    {nil, false, true},
		"damaged":                  {func(b []byte) []byte { b[len(b)-1] ^= 1; return b }, false, false},
		"damaged, there is a blob": {func(b []byte) []byte { b[len(b)-1] ^= 1; return b }, true, true},
		"cut":                      {func(b []byte) []byte { return b[:len(b)-1] }, false, false},
		"gone":                     {func([]byte) []byte { return nil }, false, false},
	} {
		s := mem.New(nil)
		mustAccept(t, protocol(t, s, "c1", inlineBelow(accept.MaxInlineFrame)), sub, accept.Accepted)
		if c.change != nil {
			b, _, err := s.Get(t.Context(), key, objstore.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if b = c.change(slices.Clone(b)); b == nil {
				if err := s.Delete(t.Context(), key); err != nil {
					t.Fatal(err)
				}
			} else {
				put(t, s, key, b)
			}
		}
		if c.blob {
			put(t, s, layout.Blob(sub.SHA256, 3), sub.Frame)
		}
		raw, err := accept.ReadFrame(t.Context(), s, key, sub.SHA256, uint64(len(sub.Frame)))
		if c.found != (err == nil && bytes.Equal(raw, sub.Frame)) || !c.found && !errors.As(err, new(*accept.FrameError)) {
			t.Errorf("%s: %q, %v", name, raw, err)
		}
		if whole, err := accept.HasInline(t.Context(), s, key, sub.SHA256); err != nil || whole != (c.change == nil) {
			t.Errorf("%s: has it: %v, %v", name, whole, err)
		}
		if _, err := accept.ReadFrame(t.Context(), gone{s}, key, sub.SHA256, 9); !errors.Is(err, objstore.ErrUnavailable) || errors.As(err, new(*accept.FrameError)) {
			t.Errorf("%s, no answer: %v", name, err)
		}
	}
}

// A frame that does not hash to its digest must not be carried: nobody could ever mend the manifest.
func TestInlineFrameIsHashed(t *testing.T) {
	s := mem.New(nil)
	sub := submission(testID, "a")
	sub.SHA256 = identity.Sum([]byte("another"))
	_, err := protocol(t, s, "c1", inlineBelow(accept.MaxInlineFrame)).Accept(t.Context(), sub)
	var refused *accept.RefusedError
	if !errors.As(err, &refused) || refused.Reason != accept.ReasonInvalidSubmission || exists(t, s, layout.Accepted(testID)) {
		t.Errorf("%v", err)
	}
}

// A lost answer to the one create is no duplicate, and an unreadable quarantine record carries nothing.
func TestRaceInline(t *testing.T) {
	s := mem.New(nil)
	lost := 0
	h := &hooked{Store: s, after: func(_ int, op, key string) error {
		if op == "create" && strings.HasPrefix(key, layout.AcceptedPrefix) && lost == 0 {
			lost++
			return objstore.ErrUnknown
		}
		return nil
	}}
	mustAccept(t, protocol(t, h, "c1", inlineBelow(accept.MaxInlineFrame)), submission(testID, "a"), accept.Accepted)
	if lost == 0 {
		t.Fatal("no answer was lost")
	}
	b := submission(testID, "b")
	put(t, s, layout.Quarantine(testID, b.SHA256), []byte("{}"))
	mustAccept(t, protocol(t, s, "c1", inlineBelow(accept.MaxInlineFrame)), b, accept.Conflict)
	if !readable(t, s, b.Frame) {
		t.Error("the record can't be read, and no blob has the frame that lost")
	}
	// A blob-writing collector's manifest whose blob was collected: the inline collector's duplicate brings it back.
	s = mem.New(nil)
	a := submission(testID, "a")
	mustAccept(t, protocol(t, s, "c1", nil), a, accept.Accepted)
	condemn(t, s, a.SHA256, 0, true)
	mustAccept(t, protocol(t, s, "c2", inlineBelow(accept.MaxInlineFrame)), a, accept.Duplicate)
	if !exists(t, s, layout.Blob(a.SHA256, 1)) {
		t.Error("the duplicate relies on a generation that is condemned")
	}
}

// A call that wrote a blob for nothing says so.
func TestBlobUnneeded(t *testing.T) {
	s := mem.New(nil)
	mustAccept(t, protocol(t, s, "c1", inlineBelow(accept.MaxInlineFrame)), submission(testID, "a"), accept.Accepted)
	var keys []string
	p := protocol(t, s, "c2", func(c *accept.Config) { c.Events.BlobUnneeded = func(k string) { keys = append(keys, k) } })
	mustAccept(t, p, submission(testID, "a"), accept.Duplicate)
	if want := []string{layout.Blob(submission(testID, "a").SHA256, 0)}; !slices.Equal(keys, want) {
		t.Errorf("%v", keys)
	}
}
