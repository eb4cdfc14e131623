package gc

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// DefaultMinAge is the age below which a blob is no candidate. It saves requests for blobs whose acceptance is in progress; safety does not depend on it.
const DefaultMinAge = 24 * time.Hour

// DefaultMaxListed bounds the blobs of one plan, and with them its memory.
const DefaultMaxListed = 100_000

// PlanOptions select candidates.
type PlanOptions struct {
	// ID names the plan in markers and log entries; required.
	ID string
	// Now is the store's time: the LastModified of an object that was just written.
	Now time.Time
	// MinAge by the store's LastModified; negative means none, 0 means DefaultMinAge.
	MinAge time.Duration
	// Prefix within layout.RawBlobsPrefix; empty means all of it.
	Prefix string
	// StartAfter is the Next of the plan before this one; empty starts at the beginning.
	StartAfter string
	// MaxListed bounds the number of blobs; 0 means DefaultMaxListed.
	MaxListed int
}

// Candidate is one generation of a blob that may be an orphan.
type Candidate struct {
	Key          string
	SHA256       identity.Digest
	Generation   uint32
	Size         int64
	LastModified time.Time

	// version of the object whose header was read, where the bucket is versioned.
	version string
	// id is the frame's identity, once searched found no reference.
	id       identity.Batch
	searched bool
	// carried: a manifest with the frame in it was seen, so this is what it looks like, and nothing that the breaker is for.
	carried bool
}

// Plan lists the blobs that an execution checks. A candidate is not yet known to be an orphan.
type Plan struct {
	ID         string
	Candidates []Candidate
	Kept       []Kept
	// Listed blobs, candidates included.
	Listed int
	// Named are those of an inventory that the journal names. They are not in Kept.
	Named int
	// Next is the StartAfter of the plan that continues this one; empty at the end.
	Next string
}

// Bounds of the breaker.
const (
	BreakerBlobs   = 50
	BreakerPercent = 10
)

// Tripped reports whether the plan is suspiciously large: more than 50 blobs and
// more than 10% of those listed.
func (p Plan) Tripped() bool {
	n := p.counted()
	return n > BreakerBlobs && n*100 > p.Listed*BreakerPercent
}

// counted are the candidates that the breaker counts: not those of which a search has seen the manifest that carries the frame.
func (p Plan) counted() (n int) {
	for i := range p.Candidates {
		if !p.Candidates[i].carried {
			n++
		}
	}
	return n
}

func (o *PlanOptions) fill() error {
	if err := validName("plan id", o.ID); err != nil {
		return err
	}
	if o.Prefix == "" {
		o.Prefix = layout.RawBlobsPrefix
	}
	if !strings.HasPrefix(o.Prefix, layout.RawBlobsPrefix) {
		return fmt.Errorf("gc plan: prefix %q is not below %q", o.Prefix, layout.RawBlobsPrefix)
	}
	if o.MinAge == 0 {
		o.MinAge = DefaultMinAge
	}
	if o.MaxListed == 0 {
		o.MaxListed = DefaultMaxListed
	}
	if o.MaxListed < 0 || o.Now.IsZero() && o.MinAge > 0 {
		return errors.New("gc plan: the store's time and a bound are needed")
	}
	return nil
}

// Plan reads what the journal names, lists blobs and keeps those that it names. A failed reading
// is an error, and there is no partial plan. That a blob is named by none
// proves nothing, because the journal may be late. Errors wrap ErrJournalIncomplete or the store's.
func (c *Collector) Plan(ctx context.Context, o PlanOptions) (Plan, error) {
	n, err := c.ReadNames(ctx, NamesOptions{StartAfter: o.StartAfter})
	if err != nil {
		return Plan{}, planError(o.ID, err)
	}
	return c.PlanNamed(ctx, n, o)
}

// PlanNamed is Plan with names that were read before, of a range that begins at or before StartAfter. It ends where the
// range does. Names that are old cost searches, and prove no less.
func (c *Collector) PlanNamed(ctx context.Context, n *Names, o PlanOptions) (Plan, error) {
	if err := o.fill(); err != nil {
		return Plan{}, err
	}
	p := Plan{ID: o.ID}
	if n.from > position(o.StartAfter) {
		return Plan{}, fmt.Errorf("gc plan %s: the names begin behind %q", o.ID, o.StartAfter)
	}
	last := ""
	for info, err := range objstore.List(ctx, c.cfg.Store, objstore.ListOptions{Prefix: o.Prefix, StartAfter: o.StartAfter}) {
		if err != nil {
			return Plan{}, planError(p.ID, err)
		}
		d, _, perr := layout.ParseBlob(info.Key)
		if perr == nil && !n.covers(d) {
			p.Next = n.next()
			break
		}
		if p.Listed == o.MaxListed {
			// The blob that was just read is not part of this plan: the next one starts with it.
			p.Next = last
			break
		}
		last = info.Key
		p.Listed++
		p.add(info, o, perr == nil && n.has(d))
	}
	return p, nil
}

// PlanKeys makes a plan of given keys, such as those of a delayed queue. of is
// the number of blobs that they were chosen from, for the breaker; 0 means len(keys).
func (c *Collector) PlanKeys(ctx context.Context, keys []string, of int, o PlanOptions) (Plan, error) {
	if err := o.fill(); err != nil {
		return Plan{}, err
	}
	if len(keys) > o.MaxListed {
		return Plan{}, fmt.Errorf("gc plan %s: %d keys, at most %d", o.ID, len(keys), o.MaxListed)
	}
	p := Plan{ID: o.ID}
	if err := c.head(ctx, &p, keys, o); err != nil {
		return Plan{}, err
	}
	// The keys were chosen because they look like orphans, so the breaker compares them with the
	// number that they were chosen from.
	p.Listed = max(len(keys), of)
	return p, nil
}

// head adds keys to the plan, as the store describes their objects. Keys of no blob are not asked for.
func (c *Collector) head(ctx context.Context, p *Plan, keys []string, o PlanOptions) error {
	for _, key := range keys {
		if _, _, err := layout.ParseBlob(key); err != nil {
			p.add(objstore.Info{Key: key}, o, false)
			continue
		}
		info, err := c.cfg.Store.Head(ctx, key)
		switch {
		case errors.Is(err, objstore.ErrNotFound):
			p.Kept = append(p.Kept, Kept{key, Gone, ""})
		case err != nil:
			return planError(p.ID, err)
		default:
			info.Key = key
			p.add(info, o, false)
		}
	}
	return nil
}

func planError(id string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("gc plan %s: %w", id, err)
}

// add puts a listed blob among the candidates, or among the kept ones with its reason.
func (p *Plan) add(info objstore.Info, o PlanOptions, named bool) {
	d, gen, err := layout.ParseBlob(info.Key)
	switch {
	case err != nil:
		p.Kept = append(p.Kept, Kept{info.Key, Foreign, err.Error()})
	case named:
		p.Kept = append(p.Kept, Kept{info.Key, Named, ""})
	case o.MinAge > 0 && o.Now.Sub(info.LastModified) < o.MinAge:
		p.Kept = append(p.Kept, Kept{info.Key, Young, info.LastModified.UTC().Format(time.RFC3339)})
	default:
		p.Candidates = append(p.Candidates, Candidate{Key: info.Key, SHA256: d, Generation: gen, Size: info.Size, LastModified: info.LastModified})
	}
}
