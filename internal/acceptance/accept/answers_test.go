package accept_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// TestStoreAnswers goes through the table of store answers, for every create and
// read of the protocol: once, and for ever.
func TestStoreAnswers(t *testing.T) {
	answers := []struct {
		err    error
		ends   bool          // at once, with an alarm
		reason accept.Reason // when it stays
	}{
		{objstore.ErrConflict, false, accept.ReasonContended},
		{objstore.ErrUnknown, false, accept.ReasonStoreUnavailable},
		{objstore.ErrUnavailable, false, accept.ReasonStoreUnavailable},
		{fmt.Errorf("%w: %w", objstore.ErrUnknown, context.DeadlineExceeded), false, accept.ReasonStoreUnavailable},
		{errors.New("no sentinel at all"), false, accept.ReasonStoreUnavailable},
		{objstore.ErrChecksum, false, accept.ReasonStoreUnavailable}, // damaged on the way
		{objstore.ErrDenied, true, accept.ReasonStoreDenied},
		{objstore.ErrNoBucket, true, accept.ReasonStoreDenied},
		{objstore.ErrInvalid, true, accept.ReasonStoreRefused},
	}
	steps := []struct {
		op, prefix string
		variant    string // what is submitted after "a" was accepted
		want       accept.Outcome
	}{
		{"create", layout.BootsPrefix, "", accept.Accepted},
		{"create", layout.RawBlobsPrefix, "", accept.Accepted},
		{"create", layout.AcceptedPrefix, "", accept.Accepted},
		{"get", layout.CondemnedPrefix, "", accept.Accepted},
		{"head", layout.RawBlobsPrefix, "a", accept.Duplicate},
		{"create", layout.AcceptedPrefix, "a", accept.Duplicate},
		{"get", layout.AcceptedPrefix, "a", accept.Duplicate},
		{"get", layout.BootsPrefix, "a", accept.Duplicate},
		{"create", layout.QuarantinePrefix, "b", accept.Conflict},
		{"get", layout.CondemnedPrefix, "b", accept.Conflict},
	}
	for _, st := range steps {
		for _, an := range answers {
			for _, times := range []int{1, 1 << 30} {
				for _, applied := range []bool{false, true} {
					if applied && (an.ends || errors.Is(an.err, objstore.ErrConflict) || errors.Is(an.err, objstore.ErrChecksum)) {
						continue // these wrote nothing
					}
					if errors.Is(an.err, objstore.ErrInvalid) && st.op == "get" && st.prefix != layout.CondemnedPrefix {
						continue // too long for a record: TestCorruptRecords
					}
					if errors.Is(an.err, objstore.ErrChecksum) && st.op == "get" {
						continue // damaged at rest: TestDamagedRecords
					}
					name := fmt.Sprintf("%s %s %q %v times %d applied %v", st.op, st.prefix, st.variant, an.err, times, applied)
					s := mem.New(nil)
					variant := "a"
					if st.variant != "" {
						variant = st.variant
						mustAccept(t, protocol(t, s, "c0", nil), submission(testID, "a"), accept.Accepted)
					}
					left := times
					hook := func(_ int, op, key string) error {
						if op == st.op && strings.HasPrefix(key, st.prefix) && left > 0 {
							left--
							return an.err
						}
						return nil
					}
					h := &hooked{Store: s, before: hook}
					if applied {
						h.before, h.after = nil, hook
					}
					clock, alarms := &tickClock{}, 0
					p := protocol(t, h, "c1", func(c *accept.Config) {
						c.Clock = clock
						c.Events.NotReady = func(accept.Step, error) { alarms++ }
					})
					res, err := p.Accept(t.Context(), submission(testID, variant))
					switch {
					case an.ends:
						var r *accept.RetryError
						if !errors.As(err, &r) || r.Reason != an.reason || alarms != 1 || len(clock.slept) != 0 {
							t.Errorf("%s: %v, %d alarms, %d waits", name, err, alarms, len(clock.slept))
						}
					case times == 1 && (err != nil || res.Outcome != st.want || len(clock.slept) != 1):
						t.Errorf("%s: %s, %v, %d waits", name, res.Outcome, err, len(clock.slept))
					case times > 1:
						var r *accept.RetryError
						if !errors.As(err, &r) || r.Reason != an.reason || alarms != 0 || r.After <= 0 {
							t.Errorf("%s: %v, %d alarms", name, err, alarms)
						}
						if n := len(clock.slept); n != attempts-1 {
							t.Errorf("%s: %d waits", name, n)
						}
					}
					// Whatever was said, another collector finds one truth.
					second, err := protocol(t, s, "c2", nil).Accept(t.Context(), submission(testID, "a"))
					if err != nil || second.Manifest.FrameSHA256 != submission(testID, "a").SHA256 {
						t.Errorf("%s: afterwards %s, %v", name, second.Outcome, err)
					}
				}
			}
		}
	}
}

func TestCanceledContextIsNoRetryError(t *testing.T) {
	s := mem.New(nil)
	ctx, cancel := context.WithCancel(t.Context())
	h := &hooked{Store: s, after: func(_ int, _, key string) error {
		if strings.HasPrefix(key, layout.AcceptedPrefix) {
			cancel()
			return objstore.ErrUnknown
		}
		return nil
	}}
	_, err := protocol(t, h, "c1", nil).Accept(ctx, submission(testID, "a"))
	var retry *accept.RetryError
	if !errors.Is(err, context.Canceled) || errors.As(err, &retry) {
		t.Errorf("canceled: %v", err)
	}
}

func TestGenerationsAreBounded(t *testing.T) {
	s := mem.New(nil)
	sub := submission(testID, "a")
	for g := range uint32(20) {
		condemn(t, s, sub.SHA256, g, false)
	}
	_, err := protocol(t, s, "c1", nil).Accept(t.Context(), sub)
	wantRetry(t, err, accept.ReasonContended)
	p := protocol(t, s, "c2", func(c *accept.Config) { c.Policy.Generations = 21 })
	mustAccept(t, p, sub, accept.Duplicate)
	if !exists(t, s, layout.Blob(sub.SHA256, 20)) {
		t.Error("the first generation without a marker was not written")
	}
}

func TestCorruptRecords(t *testing.T) {
	sub := submission(testID, "a")
	other := testID
	other.SeqEnd++
	wrongID := mustAccept(t, protocol(t, mem.New(nil), "c1", nil), submission(other, "a"), accept.Accepted).ManifestBytes
	otherBoot := accept.BootRecord{
		AuthorityID: "authority-1", Boot: identity.Boot{Agent: "agent-1", Boot: "boot-2"}, SpoolID: "spool-1",
		Mode: accept.ModeS3Manifest, CollectorID: "c0",
	}.Marshal()
	for name, body := range map[string][]byte{
		"another boot": otherBoot, "empty": nil, "garbage": []byte("{}"), "long": make([]byte, 2*accept.MaxRecordBytes), "another identity": wrongID,
	} {
		for key, want := range map[string]accept.Reason{
			layout.Accepted(testID): accept.ReasonCorruptManifest, layout.Boot(testID.BootOf()): accept.ReasonCorruptBootRecord,
		} {
			s := mem.New(nil)
			put(t, s, key, body)
			seen := 0
			p := protocol(t, s, "c1", func(c *accept.Config) {
				c.Events.CorruptRecord = func(accept.Step, string, error) { seen++ }
			})
			_, err := p.Accept(t.Context(), sub)
			wantRetry(t, err, want)
			if seen != 1 {
				t.Errorf("%s %s: %d events", name, key, seen)
			}
		}
	}
}

func TestInvalidSubmissions(t *testing.T) {
	s := mem.New(nil)
	p := protocol(t, s, "c1", nil)
	for name, spoil := range map[string]func(*accept.Submission){
		"no agent":      func(x *accept.Submission) { x.Identity.Agent = "" },
		"backwards":     func(x *accept.Submission) { x.Identity.SeqEnd = x.Identity.SeqStart - 1 },
		"no frame":      func(x *accept.Submission) { x.Frame = nil },
		"no hash":       func(x *accept.Submission) { x.SHA256 = [32]byte{} },
		"records":       func(x *accept.Submission) { x.Records++ },
		"times":         func(x *accept.Submission) { x.MinTime = x.MaxTime + 1 },
		"long spool id": func(x *accept.Submission) { x.SpoolID = strings.Repeat("x", accept.MaxNameBytes+1) },
	} {
		sub := submission(testID, "a")
		spoil(&sub)
		_, err := p.Accept(t.Context(), sub)
		var refused *accept.RefusedError
		if !errors.As(err, &refused) || refused.Reason != accept.ReasonInvalidSubmission {
			t.Errorf("%s: %v", name, err)
		}
	}
	if s.Len() != 0 {
		t.Error("something was written")
	}
}

// TestDamagedRecords: a store that finds an object damaged at rest is neither down nor
// without the object.
func TestDamagedRecords(t *testing.T) {
	damaged := func(prefix string) func(int, string, string) error {
		return func(_ int, op, key string) error {
			if op == "get" && strings.HasPrefix(key, prefix) {
				return objstore.ErrChecksum
			}
			return nil
		}
	}
	for prefix, want := range map[string]accept.Reason{
		layout.BootsPrefix:    accept.ReasonCorruptBootRecord,
		layout.AcceptedPrefix: accept.ReasonCorruptManifest,
	} {
		s := mem.New(nil)
		mustAccept(t, protocol(t, s, "c0", nil), submission(testID, "a"), accept.Accepted)
		clock := &tickClock{}
		p := protocol(t, &hooked{Store: s, before: damaged(prefix)}, "c1", func(c *accept.Config) { c.Clock = clock })
		_, err := p.Accept(t.Context(), submission(testID, "a"))
		wantRetry(t, err, want)
		if len(clock.slept) != attempts-1 { // the bytes may have been damaged on the way
			t.Errorf("%s: %d waits", prefix, len(clock.slept))
		}
	}

	// A marker of any content condemns.
	s, sub := mem.New(nil), submission(testID, "a")
	condemn(t, s, sub.SHA256, 0, false)
	first := damaged(layout.Condemned(sub.SHA256, 0))
	p := protocol(t, &hooked{Store: s, before: first}, "c1", nil)
	mustAccept(t, p, sub, accept.Accepted)
	if !exists(t, s, layout.Blob(sub.SHA256, 1)) {
		t.Error("relied on a generation whose marker is damaged")
	}
}

// TestTimeIsNoDecision: a call that ran out of time while the store said something
// final is a context error and nothing else; a caller that finds "not found" in it
// would tell the sender never to come back.
func TestTimeIsNoDecision(t *testing.T) {
	for _, last := range []error{objstore.ErrNotFound, objstore.ErrDenied} {
		s := mem.New(nil)
		mustAccept(t, protocol(t, s, "c0", nil), submission(testID, "a"), accept.Accepted)
		ctx, cancel := context.WithCancel(t.Context())
		p := protocol(t, &hooked{Store: s, before: func(_ int, op, key string) error {
			if op == "get" && strings.HasPrefix(key, layout.AcceptedPrefix) {
				cancel()
				return last
			}
			return nil
		}}, "c1", nil)
		_, err := p.Accept(ctx, submission(testID, "a"))
		if !errors.Is(err, context.Canceled) || errors.Is(err, last) {
			t.Errorf("%v: %v", last, err)
		}
	}
}
