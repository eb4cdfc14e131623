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

// RetentionKind is the kind of the records under layout.RetentionLog. They are for people.
var RetentionKind = record.Kind{Schema: "lightmetrics.retention_log.v1", Title: "log of retention", MaxBytes: 64 << 20}

// RetainConfig of a Retainer. All are required.
type RetainConfig struct {
	Store       RetainStore
	Publisher   *publish.Publisher
	AuthorityID string
	WorkerID    string
	// Now stamps the decision and the log; nothing is decided by it.
	Now func() time.Time
}

// RetainStore is what retention needs of an object store.
type RetainStore interface {
	Store
	objstore.Replacer
}

// Retainer removes blocks whose time is over. It has no state; two that do the
// same at once are harmless.
type Retainer struct{ cfg RetainConfig }

// NewRetainer checks the settings; it makes no request.
func NewRetainer(c RetainConfig) (*Retainer, error) {
	if c.Store == nil || c.Publisher == nil || c.AuthorityID == "" || c.WorkerID == "" || c.Now == nil {
		return nil, errors.New("compact: store, publisher, authority, worker and clock are needed")
	}
	return &Retainer{c}, nil
}

// RetainReport counts what a call did.
type RetainReport struct {
	Hours, Sets int
	Samples     uint64
}

type retentionJSON struct {
	AuthorityID string         `json:"authority_id"`
	Resolution  string         `json:"window"`
	Hour        string         `json:"hour"`
	RemovedAt   int64          `json:"removed_at_unix_ns"`
	WorkerID    string         `json:"worker_id"`
	Sets        []removedBlock `json:"sets"`
}

// removedSet is a line of the log. Bytes are of the set's own objects.
type removedBlock struct {
	Key     string `json:"key"`
	Samples uint64 `json:"samples"`
	Objects int    `json:"objects"`
	Bytes   uint64 `json:"bytes"`
	Into    string `json:"into,omitempty"`
}

// Retain decides that the resolution's rows of all hours through to are over, then removes
// every set of the hours from to to, both included, and writes down what it removed. Hours
// whose sets are written down already cost a request. From when it is decided no reader
// takes a row of these hours, whichever sets are left and for how long.
func (r *Retainer) Retain(ctx context.Context, res timegrid.Resolution, from, to timegrid.Hour) (RetainReport, error) {
	var rep RetainReport
	if err := r.decide(ctx, res, to, r.cfg.Now()); err != nil {
		return rep, err
	}
	var names []catalog.Name
	flush := func() error {
		if len(names) == 0 {
			return nil
		}
		of := names
		names = nil
		if err := r.hour(ctx, res, of, &rep); err != nil {
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

// hour removes the sets of an hour. Its log is written when that is done.
func (r *Retainer) hour(ctx context.Context, res timegrid.Resolution, names []catalog.Name, rep *RetainReport) error {
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
		RemovedAt: max(r.cfg.Now().UnixNano(), 0), WorkerID: r.cfg.WorkerID, Sets: []removedBlock{},
	}
	for _, n := range names {
		line, err := r.block(ctx, n)
		if err != nil {
			return err
		}
		if line != nil {
			log.Sets = append(log.Sets, *line)
			rep.Sets++
			rep.Samples += line.Samples
		}
	}
	rep.Hours++
	return create(ctx, r.cfg.Store, key, RetentionKind.Marshal(log))
}

// set removes one set; nil when it was none. What an earlier call removed before it could
// write it down has a line without figures.
func (r *Retainer) block(ctx context.Context, n catalog.Name) (*removedBlock, error) {
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
	if rec.Block.Into != nil {
		line.Into = rec.Block.Into.Name.Key()
	}
	_, err = r.cfg.Publisher.Expire(ctx, n)
	return line, err
}

func (r *Retainer) exists(ctx context.Context, key string) (bool, error) {
	_, err := r.cfg.Store.Head(ctx, key)
	if errors.Is(err, objstore.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

// create writes an object that may be there already, with the same or an equal meaning.
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
