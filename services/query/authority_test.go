package query_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

// authority is a store with accepted batches, as collectors leave them.
type authority struct {
	t testing.TB
	*mem.Store
	down atomic.Bool // reads fail
	// began is when rollups were set up, by the store's clock; zero: long ago.
	began time.Time
	// aged is when the store wrote the identity manifests; zero: when it did.
	aged time.Time
}

func (a *authority) Head(ctx context.Context, key string) (objstore.Info, error) {
	if err := a.failing("head", key); err != nil {
		return objstore.Info{}, err
	}
	info, err := a.Store.Head(ctx, key)
	if key == layout.RollupConfigKey && err == nil {
		if info.LastModified = a.began; a.began.IsZero() {
			info.LastModified = time.Now().AddDate(-1, 0, 0)
		}
	}
	return info, err
}

func newAuthority(t testing.TB) *authority { return &authority{t: t, Store: mem.New(time.Now)} }

func (a *authority) failing(op, key string) error {
	if a.down.Load() {
		return &objstore.Error{Op: op, Key: key, Err: objstore.ErrUnavailable}
	}
	return nil
}

func (a *authority) Get(ctx context.Context, key string, o objstore.GetOptions) ([]byte, objstore.Info, error) {
	if err := a.failing("get", key); err != nil {
		return nil, objstore.Info{}, err
	}
	return a.Store.Get(ctx, key, o)
}

func (a *authority) List(ctx context.Context, o objstore.ListOptions) (objstore.Page, error) {
	if err := a.failing("list", o.Prefix); err != nil {
		return objstore.Page{}, err
	}
	page, err := a.Store.List(ctx, o)
	for i := range page.Objects {
		if strings.HasPrefix(page.Objects[i].Key, layout.AcceptedPrefix) && !a.aged.IsZero() {
			page.Objects[i].LastModified = a.aged
		}
	}
	return page, err
}

func (a *authority) put(key string, body []byte) {
	a.t.Helper()
	if _, err := a.Put(context.Background(), key, body, objstore.PutOptions{}); err != nil {
		a.t.Fatal(err)
	}
}

// point is one sample of a batch.
type point struct {
	name  string
	value float64
	at    time.Time
}

// built is an accepted batch's objects.
type built struct {
	manifest accept.Manifest
	frame    []byte
}

// buildMeta is a batch of one sample, with a type, a unit and a help.
func (a *authority) buildMeta(boot identity.Boot, seq uint64, at time.Time, name string, typ series.Type, unit, help string) built {
	a.t.Helper()
	return a.buildAs(boot, seq, at, typ, unit, help, point{name, 1, at})
}

func (a *authority) build(boot identity.Boot, seq uint64, acceptedAt time.Time, points ...point) built {
	a.t.Helper()
	return a.buildAs(boot, seq, acceptedAt, series.Counter, "", "", points...)
}

func (a *authority) buildAs(boot identity.Boot, seq uint64, acceptedAt time.Time, typ series.Type, unit, help string, points ...point) built {
	a.t.Helper()
	b := frame.NewBuilder()
	must := func(err error) {
		if err != nil {
			a.t.Helper()
			a.t.Fatal(err)
		}
	}
	must(b.SetResource(series.Label{Name: "instance", Value: boot.Agent + ":1"}, series.Label{Name: "job", Value: "node"}))
	minT, maxT := points[0].at, points[0].at
	for _, p := range points {
		id, err := b.AddSeries([]series.Label{{Name: "__name__", Value: p.name}}, typ, unit, 0)
		must(err)
		must(b.Append(id, p.at.UnixNano(), p.value))
		if help != "" {
			must(b.SetHelp(p.name, help))
		}
		if p.at.Before(minT) {
			minT = p.at
		}
		if p.at.After(maxT) {
			maxT = p.at
		}
	}
	batch, err := b.Build(boot, seq)
	must(err)
	raw, err := frame.Encode(nil, batch)
	must(err)
	sum := identity.Sum(raw)
	return built{frame: raw, manifest: accept.Manifest{
		AuthorityID: "test", Identity: batch.Identity, FrameSHA256: sum, FrameBytes: uint64(len(raw)), RawBlobKey: layout.Blob(sum, 0),
		AcceptedAt: acceptedAt.UnixNano(), CollectorID: "c1", WireVersion: 1, FrameVersion: 1, AttemptID: "0123456789abcdef0123456789abcdef",
		RecordCount: batch.Identity.Count(), MinTime: minT.UnixNano(), MaxTime: maxT.UnixNano(),
	}}
}

func (a *authority) boot(b identity.Boot) { a.put(layout.Boot(b), []byte("{}")) }

// accept makes a batch accepted.
func (a *authority) accept(b built) {
	a.t.Helper()
	a.boot(b.manifest.Identity.BootOf())
	a.put(b.manifest.RawBlobKey, b.frame)
	a.put(layout.Accepted(b.manifest.Identity), b.manifest.Marshal())
}
