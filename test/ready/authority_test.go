package ready

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/s3"
	"lightmetrics.dev/lightmetrics/internal/platform/config"
	"lightmetrics.dev/lightmetrics/internal/platform/run"
	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
	refsmem "lightmetrics.dev/lightmetrics/internal/rollups/publish/mem"
	"lightmetrics.dev/lightmetrics/services/ingest"
	"lightmetrics.dev/lightmetrics/services/objectstore"
	"lightmetrics.dev/lightmetrics/services/query"
	"lightmetrics.dev/lightmetrics/services/reconciler"
	"lightmetrics.dev/lightmetrics/services/rollup"
)

// TestACopyIsNobodysAuthority: over a bucket that carries another bucket's authority record,
// collector and rollup worker end with the reason, and reconciler and query service are not
// ready. After the operator has moved the authority there all of them work.
func TestACopyIsNobodysAuthority(t *testing.T) {
	t.Parallel()
	const secret = "test-secret-0123456789"
	oc := objectstore.DefaultConfig()
	oc.Listen, oc.AdminListen, oc.Dir, oc.Buckets = here, here, t.TempDir(), []string{"first", "second"}
	oc.Users = []objectstore.User{{Name: "test", AccessKeyID: "AKTEST", Secret: secret}}
	o, err := objectstore.New(oc, objectstore.Deps{})
	up(t, "objectstore", o, err)
	open := func(bucket string) objstore.Store {
		c := s3.DefaultConfig()
		c.Endpoint, c.Bucket, c.PathStyle = "http://"+o.Addr(), bucket, true
		c.AccessKeyID, c.SecretAccessKey = "AKTEST", config.Secret(secret)
		s, err := s3.New(t.Context(), c, s3.Options{})
		must(t, err)
		return s
	}
	ingestOver := func(s objstore.Store) *ingest.Service {
		c := ingest.DefaultConfig()
		c.GRPC.Listen, c.HTTP.Listen = here, here
		i, err := ingest.New(c, ingest.Deps{Store: s, Telemetry: telemetry.Discard()})
		must(t, err)
		return i
	}
	rollupOver := func(s objstore.Store) run.Service {
		c := rollup.DefaultConfig()
		c.HTTP.Listen, c.Shards = here, 4
		w, err := rollup.New(c, rollup.Deps{Store: s, Telemetry: telemetry.Discard(), Refs: refsmem.New()})
		must(t, err)
		return w
	}
	first, second := open("first"), open("second")
	i := ingestOver(first)
	stop := up(t, "ingest", i, nil)
	until(t, "an authority", func() bool { return i.NotReady() == nil })
	stop()
	record, _, err := first.Get(t.Context(), layout.AuthorityKey, objstore.GetOptions{})
	must(t, err)
	_, err = second.Create(t.Context(), layout.AuthorityKey, record, objstore.PutOptions{})
	must(t, err)

	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for name, s := range map[string]run.Service{"ingest": ingestOver(second), "rollup": rollupOver(second)} {
		var e *accept.AuthorityError
		if err := s.Run(ctx); !errors.As(err, &e) || e.Reason != accept.AuthorityOtherBucket {
			t.Errorf("%s over a copy: %v", name, err)
		}
	}
	rc := reconciler.DefaultConfig()
	rc.GRPC.Listen, rc.HTTP.Listen = here, here
	r, err := reconciler.New(rc, reconciler.Deps{Store: second, Telemetry: telemetry.Discard()})
	up(t, "reconciler", r, err)
	qc := query.DefaultConfig()
	qc.GRPC.Listen, qc.HTTP.Listen = here, here
	q, err := query.New(qc, query.Deps{Store: second, Telemetry: telemetry.Discard()})
	up(t, "query", q, err)
	addrs := map[string]string{"reconciler": r.HTTPAddr(), "query": q.HTTPAddr()}
	for name, addr := range addrs {
		until(t, name+" to say why it is not ready", func() bool {
			s := ask(t, addr)
			_, why := s.part("store")
			return s.code == http.StatusServiceUnavailable && strings.Contains(why, `bound to the bucket "first", this is the bucket "second"`)
		})
	}

	from, err := accept.InspectAuthority(t.Context(), second)
	must(t, err)
	_, err = accept.MoveAuthority(t.Context(), second, from)
	must(t, err)
	i = ingestOver(second)
	up(t, "ingest", i, nil)
	addrs["ingest"] = i.HTTPAddr()
	up(t, "rollup", rollupOver(second), nil)
	for name, addr := range addrs {
		until(t, name+" to be ready", func() bool { return ask(t, addr).code == http.StatusOK })
	}
}
