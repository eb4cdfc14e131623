package compact

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/rollups/publish"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// RetentionKind is the kind of the records under layout.RetentionLog, which are for operators.
var RetentionKind = record.Kind{Schema: "lightmetrics.retention_log.v1", Title: "log of retention", MaxBytes: 64 << 20}

// ExpirerConfig of a Retainer. All are required.
type ExpirerConfig struct {
	Store       ExpirerStore
	Publisher   *publish.Publisher
	AuthorityID string
	WorkerID    string
	// Now stamps the decision and the log; no decision depends on it.
	Now func() time.Time
}

// ExpirerStore is what retention needs of an object store.
type ExpirerStore interface {
	Store
	objstore.Replacer
}

// Expirer removes blocks that have expired. It has no state; two that do the same work at once are harmless.
type Expirer struct{ cfg ExpirerConfig }

// NewExpirer checks the settings; it makes no request.
func NewExpirer(c ExpirerConfig) (*Expirer, error) {
	if c.Store == nil || c.Publisher == nil || c.AuthorityID == "" || c.WorkerID == "" || c.Now == nil {
		return nil, errors.New("compact: store, publisher, authority, worker and clock are needed")
	}
	return &Expirer{c}, nil
}

// ExpireReport counts what a call did.
type ExpireReport struct {
	Hours, Blocks int
	Samples       uint64
}

type retentionJSON struct {
	AuthorityID string         `json:"authority_id"`
	Resolution  string         `json:"window"`
	Hour        string         `json:"hour"`
	RemovedAt   int64          `json:"removed_at_unix_ns"`
	WorkerID    string         `json:"worker_id"`
	Blocks      []removedBlock `json:"blocks"`
}

// removedBlock is a line of the log. Bytes are of the block's own objects.
type removedBlock struct {
	Key     string `json:"key"`
	Samples uint64 `json:"samples"`
	Objects int    `json:"objects"`
	Bytes   uint64 `json:"bytes"`
	Into    string `json:"into,omitempty"`
}

// Expire decides that the resolution's rows of all hours through to have expired, then removes every block of the
// hours from..to, both included, and logs what it removed. An hour that is logged already costs one request. Once
// it is decided no reader uses a row of these hours, whichever blocks are left and for how long.
func (r *Expirer) Expire(ctx context.Context, res timegrid.Resolution, from, to timegrid.Hour) (ExpireReport, error) {
	var rep ExpireReport
	if err := r.decide(ctx, res, to, r.cfg.Now()); err != nil {
		return rep, err
	}
	var names []catalog.Name
	// The listing yields slots; an hour is removed when the listing has moved past it.
	flush := func() error {
		if len(names) == 0 {
			return nil
		}
		of := names
		names = nil
		if err := r.removeHour(ctx, res, of, &rep); err != nil {
			return fmt.Errorf("retention of %s, %s: %w", res, of[0].Hour, err)
		}
		return nil
	}
	for of, err := range slots(ctx, r.cfg.Store, from, to) {
		if err != nil {
			return rep, errors.Join(err, flush())
		}
		n := of.Name
		if n.Resolution != res || n.Span > 0 {
			continue
		}
		if len(names) > 0 && names[0].Hour != n.Hour {
			if err := flush(); err != nil {
				return rep, err
			}
		}
		for _, g := range of.Listed {
			names = append(names, g.Name)
		}
	}
	return rep, flush()
}

// removeHour removes the blocks of an hour, and writes its log when that is done.
func (r *Expirer) removeHour(ctx context.Context, res timegrid.Resolution, names []catalog.Name, rep *ExpireReport) error {
	// The log's key has the hash of the names, so that blocks that late batches add afterwards get a log of their
	// own.
	var all strings.Builder
	for _, n := range names {
		all.WriteString(n.Key() + "\n")
	}
	key := layout.RetentionLog(res, names[0].Hour, identity.Sum([]byte(all.String())))
	if done, err := r.exists(ctx, key); done || err != nil {
		return err
	}
	log := retentionJSON{
		AuthorityID: r.cfg.AuthorityID, Resolution: res.String(), Hour: names[0].Hour.String(),
		RemovedAt: max(r.cfg.Now().UnixNano(), 0), WorkerID: r.cfg.WorkerID, Blocks: []removedBlock{},
	}
	for _, n := range names {
		line, err := r.removeBlock(ctx, n)
		if err != nil {
			return err
		}
		if line != nil {
			log.Blocks = append(log.Blocks, *line)
			rep.Blocks++
			rep.Samples += line.Samples
		}
	}
	rep.Hours++
	return create(ctx, r.cfg.Store, key, RetentionKind.Marshal(log))
}

// removeBlock removes one block; it returns nil when the generation is no block. A block that an earlier call removed
// without logging it gets a line without figures.
func (r *Expirer) removeBlock(ctx context.Context, n catalog.Name) (*removedBlock, error) {
	rec, _, err := catalog.Read(ctx, r.cfg.Store, r.cfg.AuthorityID, n.Key())
	switch {
	case err != nil:
		return nil, err
	case rec.Removed != nil:
		return &removedBlock{Key: n.Key(), Objects: len(rec.Removed.Keys)}, nil
	case rec.Block == nil:
		return nil, nil
	}
	line := &removedBlock{Key: n.Key(), Samples: rec.Block.Counts.Samples, Objects: len(rec.Block.Keys())}
	for _, o := range rec.Block.Objects {
		line.Bytes += o.ChunkBytes + o.IndexBytes
	}
	if rec.Block.Redirect != nil {
		line.Into = rec.Block.Redirect.Name.Key()
	}
	_, err = r.cfg.Publisher.Expire(ctx, n)
	return line, err
}

// exists reports whether the store has the key.
func (r *Expirer) exists(ctx context.Context, key string) (bool, error) {
	_, err := r.cfg.Store.Head(ctx, key)
	if errors.Is(err, objstore.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

// create writes an object that may exist already with the same meaning.
func create(ctx context.Context, s Store, key string, body []byte) error {
	_, err := s.Create(ctx, key, body, objstore.PutOptions{ContentType: "application/json"})
	if err == nil || errors.Is(err, objstore.ErrExists) {
		return nil
	}
	if there, _, rerr := s.Get(ctx, key, objstore.GetOptions{}); rerr == nil && bytes.Equal(there, body) {
		return nil
	}
	return err
}
