package qualify

import (
	"context"
	"errors"
	"fmt"

	"lightmetrics.dev/lightmetrics/internal/acceptance/bucketpolicy"
	"lightmetrics.dev/lightmetrics/internal/objstore"
)

// Role probes whether the credentials of store may do exactly what roles need: for each family of keys
// and each kind of request one row, which fails where something is allowed that should not be, or
// denied that is needed. It does no harm, as the checks of Policy: it reads and deletes only keys that
// no program writes, lists one key of each prefix, and writes with a wrong checksum. A store that ignores
// checksums is left with what was written, where deletes are denied; Run finds such stores.
//
// A provider whose policies tell less apart is held to what it can tell.
func Role(ctx context.Context, store objstore.Store, provider bucketpolicy.Provider, roles []bucketpolicy.Role, o Options) (Report, error) {
	o = o.withDefaults()
	p := newProbe(store, o)
	report := Report{RunID: o.RunID}
	for _, family := range bucketpolicy.Families {
		for _, op := range bucketpolicy.Ops {
			want := provider.Enforces(roles, op, family)
			if op == bucketpolicy.Tag {
				if !provider.Conditions {
					continue
				}
				want = want && provider.Enforces(roles, bucketpolicy.Create, family)
			}
			report.Rows = append(report.Rows, p.row(ctx, check{fmt.Sprintf("%s of %s", op, family), func(ctx context.Context, p *probe) error {
				return p.wantAllowed(ctx, op, family, want)
			}}))
		}
	}
	if len(p.keys) > 0 {
		report.Rows = append(report.Rows, p.row(ctx, check{"clean-up", cleanUp}))
	}
	return report, report.Err()
}

func (p *probe) wantAllowed(ctx context.Context, op bucketpolicy.Op, family string, want bool) error {
	key := bucketpolicy.Probe(family)
	err := p.try(ctx, op, family, key)
	p.detail = "allowed"
	if !want {
		p.detail = "denied"
	}
	switch denied := errors.Is(err, objstore.ErrDenied); {
	case !denied && silent(err):
		return err
	case denied && want:
		return fmt.Errorf("is denied and needed: %w", err)
	case !denied && !want:
		return errors.New("is allowed and not needed")
	}
	return nil
}

// absentTag is no object's ETag.
const absentTag = `"0123456789abcdef0123456789abcdef"`

// try sends a request that changes nothing. Whatever answer but a denial says that it is allowed.
func (p *probe) try(ctx context.Context, op bucketpolicy.Op, family, key string) (err error) {
	body := p.body("role")
	switch op {
	case bucketpolicy.Get:
		_, _, err = p.store.Get(ctx, key, objstore.GetOptions{})
		return err
	case bucketpolicy.List:
		_, err = p.store.List(ctx, objstore.ListOptions{Prefix: family, Limit: 1})
		return err
	case bucketpolicy.Delete:
		return p.store.Delete(ctx, key)
	case bucketpolicy.Create:
		_, err = p.store.Create(ctx, key, body, mismatched)
	case bucketpolicy.Replace:
		_, err = p.store.Replace(ctx, key, body, absentTag, mismatched)
	case bucketpolicy.Put:
		_, err = p.store.Put(ctx, key, body, mismatched)
	case bucketpolicy.Tag:
		o := mismatched
		o.Tags = map[string]string{"status": "probe"}
		_, err = p.store.Create(ctx, key, body, o)
	}
	if err == nil || errors.Is(err, objstore.ErrUnknown) {
		p.own(key)
	}
	return err
}
