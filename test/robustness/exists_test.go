package robustness

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/derived/fsck"
	"lightmetrics.dev/lightmetrics/internal/harness/cluster"
	"lightmetrics.dev/lightmetrics/internal/harness/load"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	ingestv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/ingest/v1"
)

// lied412 is a store that answers a create of one family with 412.
type lied412 struct {
	family string
	// fault is "412": nothing is applied; or "412 after": the request itself made the object.
	fault string
	// second makes the frame the second one for its identity.
	second bool
	// during is what the sender is told while the store lies, each time.
	during ingestv1.BatchStatus
	// absent says that the key of the family is not there meanwhile.
	absent bool
	// then is what the sender is told afterwards.
	then ingestv1.BatchStatus
	// generation of the blob that the manifest names.
	generation uint32
}

const (
	accepted  = ingestv1.BatchStatus_BATCH_STATUS_ACCEPTED
	duplicate = ingestv1.BatchStatus_BATCH_STATUS_DUPLICATE
	conflict  = ingestv1.BatchStatus_BATCH_STATUS_IDENTITY_CONFLICT
	retry     = ingestv1.BatchStatus_BATCH_STATUS_RETRY
)

// TestStoreSaysExistsWrongly: "exists" is no proof. What is not there is never acknowledged, and what a
// lost create of the call itself made is its own.
func TestStoreSaysExistsWrongly(t *testing.T) {
	t.Parallel()
	_, rnd := seeded(t)
	c, p := behindProxy(t, rnd, 1)
	ctx := within(t, 2*time.Minute)
	must(t, c.StartStore(ctx))
	must(t, c.StartCollector(ctx, 0))
	store, err := c.OpenStore(ctx)
	must(t, err)
	for name, l := range map[string]lied412{
		"manifest, absent": {family: "accepted", fault: "412", during: retry, absent: true, then: accepted},
		"manifest, ours":   {family: "accepted", fault: "412 after", during: accepted, then: duplicate},
		// The generation that is said to exist and is not there is left alone.
		"blob, absent":              {family: "raw-blobs", fault: "412", during: retry, absent: true, then: accepted},
		"blob, ours":                {family: "raw-blobs", fault: "412 after", during: accepted, then: duplicate},
		"quarantine record, absent": {family: "quarantine", fault: "412", second: true, during: retry, absent: true, then: conflict},
		"quarantine record, ours":   {family: "quarantine", fault: "412 after", second: true, during: conflict, then: conflict},
		"boots record, absent":      {family: "boots", fault: "412", during: retry, absent: true, then: accepted},
		"boots record, ours":        {family: "boots", fault: "412 after", during: accepted, then: duplicate},
	} {
		t.Run(name, func(t *testing.T) { l.check(ctx, t, c, p, store) })
	}
	// A generation that was once said to exist stays unused, and the next one is as good.
	t.Run("one generation of a blob, absent", func(t *testing.T) {
		l := lied412{family: "raw-blobs", fault: "412", during: accepted, absent: true, then: duplicate, generation: 1}
		l.check(ctx, t, c, p, store)
	})
	p.obey(nil)
	report, err := fsck.Run(ctx, store, fsck.Options{AuthorityID: cluster.Authority})
	must(t, err)
	for _, f := range report.Findings {
		t.Error(f)
	}
	if report.Manifests != 9 || report.Quarantined != 2 {
		t.Errorf("%d manifests and %d quarantine records", report.Manifests, report.Quarantined)
	}
}

func (l lied412) check(ctx context.Context, t *testing.T, c *cluster.Cluster, p *proxy, store objstore.Store) {
	_, name, _ := strings.Cut(t.Name(), "/")
	boot := identity.Boot{Agent: name, Boot: "b"}
	s := load.NewSender(boot, c.Addr.Collectors[0].GRPC)
	defer s.Close()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	body, err := load.Frame(boot, "lied", 1, 5, time.Now(), 1)
	must(t, err)
	id := identity.Batch{Agent: boot.Agent, Boot: boot.Boot, SeqStart: 1, SeqEnd: 10}
	p.obey(nil)
	if l.second {
		l.told(ctx, t, s, body, accepted)
		body, err = load.Frame(boot, "lied", 1, 5, time.Now(), 2)
		must(t, err)
	}
	sha := identity.Sum(body)
	lies := 0
	p.obey(func(r *http.Request) string {
		if r.Method != http.MethodPut || !strings.Contains(r.URL.Path, "/"+l.family+"/") || l.generation > 0 && strings.Contains(r.URL.Path, ".g") {
			return ""
		}
		lies++
		return l.fault
	})
	key := map[string]string{
		"accepted": layout.Accepted(id), "raw-blobs": layout.Blob(sha, 0),
		"quarantine": layout.Quarantine(id, sha), "boots": layout.Boot(boot),
	}[l.family]
	l.told(ctx, t, s, body, l.during)
	p.obey(nil)
	if lies == 0 {
		t.Error("the store never lied")
	}
	if _, err := store.Head(ctx, key); l.absent != errors.Is(err, objstore.ErrNotFound) {
		t.Errorf("%s while the store lies: %v, want absent: %v", key, err, l.absent)
	}
	l.told(ctx, t, s, body, l.then)
	if l.then == conflict {
		if _, _, err := store.Get(ctx, key, objstore.GetOptions{}); err != nil {
			t.Errorf("a conflict without its record: %v", err)
		}
		return
	}
	stored, _, err := store.Get(ctx, layout.Accepted(id), objstore.GetOptions{})
	must(t, err)
	m, err := accept.ParseManifest(stored)
	must(t, err)
	if want := layout.Blob(sha, l.generation); m.FrameSHA256 != sha || m.RawBlobKey != want {
		t.Errorf("the manifest names %s at %s, want %s at %s", m.FrameSHA256, m.RawBlobKey, sha, want)
	}
	if got, _, err := store.Get(ctx, m.RawBlobKey, objstore.GetOptions{}); err != nil || identity.Sum(got) != sha {
		t.Errorf("%s does not hold the frame: %v", m.RawBlobKey, err)
	}
}

// told sends once and compares the answer. A hello that is turned away is told to try again.
func (l lied412) told(ctx context.Context, t *testing.T, s *load.Sender, body []byte, want ingestv1.BatchStatus) {
	t.Helper()
	r, err := s.Try(ctx, body)
	if err != nil {
		s.Close()
		if want != retry {
			t.Errorf("answered %v, want %s", err, want)
		}
		return
	}
	if r.GetStatus() != want {
		t.Errorf("answered %s (%s %s), want %s", r.GetStatus(), r.GetReason(), r.GetDetail(), want)
	}
}
