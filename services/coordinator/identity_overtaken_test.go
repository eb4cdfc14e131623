package coordinator

import (
	"context"
	"errors"
	"slices"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/coordination/regions"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
)

// hookedStore calls a function before its bucket's record of the epoch is replaced. An error is the answer.
type hookedStore struct {
	regions.Store
	before func() error
}

func (s hookedStore) Replace(ctx context.Context, key string, body []byte, etag string, o objstore.PutOptions) (objstore.Info, error) {
	if key == layout.RegionsKey && s.before != nil {
		if err := s.before(); err != nil {
			return objstore.Info{}, err
		}
	}
	return s.Store.Replace(ctx, key, body, etag, o)
}

// A region is being added, and that died; so did its retirement. The operator asks for it once more, and is overtaken by the retirement of the region
// that alone had its record: it never took part, and is not retired. He is not told that it is.
func TestARetirementOfARegionThatWasNeverAdded(t *testing.T) {
	t.Parallel()
	buckets := threeBuckets()
	m := external(t, t.TempDir())
	t.Cleanup(func() { m.Close() })
	first := startRegions(t, withRegions(shared(m), buckets), buckets)
	first.openedEpoch(1)
	first.end()
	buckets["zanzibar"] = mem.New(nil)
	hook := make(chan func() error, 1)
	with := stores(buckets)
	with["asia"] = hookedStore{with["asia"], func() error {
		select {
		case do := <-hook:
			return do()
		default:
			return nil
		}
	}}
	s := startStores(t, withRegions(shared(m), buckets), with)
	s.openedEpoch(1)
	v := s.back.Load().identities
	keeper := func(hooked claims.Region, before func() error) *regions.Keeper {
		c := v.settings
		c.Regions = nil
		for n, b := range stores(buckets) {
			if n == hooked {
				b = hookedStore{b, before}
			}
			c.Regions = append(c.Regions, regions.Region{Name: n, Store: b})
		}
		k, err := regions.New(c)
		must(t, err)
		return k
	}
	errDead := errors.New("dead")
	dies := func() error { return errDead }
	waits, goOn, ended := make(chan bool), make(chan bool), make(chan error)
	go func() {
		once := true
		_, err := keeper("eu", func() error {
			if once {
				once = false
				waits <- true
				<-goOn
			}
			return nil
		}).Retire(context.Background(), "asia", false)
		ended <- err
	}()
	<-waits
	if _, err := keeper("eu", dies).Add(t.Context(), "zanzibar"); !errors.Is(err, errDead) {
		t.Fatal(err)
	}
	if _, err := keeper("eu", dies).Retire(t.Context(), "zanzibar", false); !errors.Is(err, errDead) {
		t.Fatal(err)
	}
	hook <- func() error {
		goOn <- true
		t.Logf("the other one: %v", <-ended)
		return nil
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	o, err := v.RetireRegion(ctx, "zanzibar", false)
	if err == nil && !slices.Contains(o.Retired, "zanzibar") {
		t.Errorf("zanzibar is said to be retired by epoch %d, which retires %v", o.Epoch.Number, o.Retired)
	}
	if a, err2 := v.AddRegion(t.Context(), "zanzibar"); err2 == nil {
		t.Logf("and it is added: %v", a.Epoch)
	}
	if err != nil && !errors.Is(err, regions.ErrOvertaken) && !errors.Is(err, regions.ErrRegionSettings) {
		t.Error(err)
	}
}
