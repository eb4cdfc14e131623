package objectstore

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"time"

	pebblevfs "github.com/cockroachdb/pebble/v2/vfs"

	"lightmetrics.dev/lightmetrics/internal/platform/config"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/body"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/engine"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/erasure"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/ledger"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/mirror"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/redundancy"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/spread"
)

// Redundancy says how bodies are kept on the places, once they are written.
type Redundancy struct {
	Copies int `koanf:"copies" help:"copies of a body that is not coded, each on a place of its own; 0: as many as ack_copies"`
	// Data and Parity are k and m of Reed-Solomon.
	Data      int          `koanf:"data" help:"data shards of a coded body; 0: no body is coded"`
	Parity    int          `koanf:"parity" help:"parity shards of a coded body: so many places may be lost" needs:"data"`
	Threshold config.Bytes `koanf:"threshold" help:"size of the smallest body that is coded; with min_chunk it is data times that" needs:"data"`
	MinChunk  config.Bytes `koanf:"min_chunk" help:"smallest share of a shard in a stripe; 0: threshold by data, 16KiB to 4MiB" needs:"data"`
	MaxChunk  config.Bytes `koanf:"max_chunk" help:"largest share of a shard in a stripe, at most 64MiB: it bounds the memory of coding" needs:"data"`

	SegmentsAfter time.Duration `koanf:"segments_after" help:"how long a segment of the log must be closed before it is coded as one body and given up on the drives of the log; 0: never" needs:"data"`
	SegmentsLive  float64       `koanf:"segments_live" help:"smallest fraction of a segment that must be in use for that: what reclaiming will soon rewrite is not coded" needs:"data"`

	Workers     int           `koanf:"workers" help:"bodies that are made redundant at the same time"`
	HealAfter   time.Duration `koanf:"heal_after" help:"how long a place may be away before its files are made again on others"`
	ScrubPeriod time.Duration `koanf:"scrub_period" help:"time in which every file of a place is read back; 0: never"`
	ScrubRate   config.Bytes  `koanf:"scrub_rate" help:"bytes that reading back takes a second at most; 0: no bound" needs:"scrub_period"`
	Rebalance   bool          `koanf:"rebalance" help:"move files to places that were added"`
}

func defaultRedundancy() Redundancy {
	return Redundancy{Threshold: 4 << 20, MaxChunk: 16 << 20, SegmentsAfter: 15 * time.Minute, SegmentsLive: 0.7, Workers: 2, HealAfter: 15 * time.Minute,
		ScrubPeriod: 14 * 24 * time.Hour, ScrubRate: 32 << 20, Rebalance: true}
}

// policy gives the policy of the settings; its version is found later.
func (c Config) policy() redundancy.Policy {
	r := c.Redundancy
	p := redundancy.Policy{Copies: r.Copies}
	if p.Copies == 0 {
		p.Copies = c.AckCopies
	}
	if r.Data > 0 {
		p.Data, p.Parity, p.MaxChunk = r.Data, r.Parity, int64(r.MaxChunk)
		p.Threshold, p.MinChunk = erasure.Derive(r.Data, int64(r.Threshold), int64(r.MinChunk))
	}
	return p
}

func checkRedundancy(c Config) (errs []error) {
	if len(c.Places) == 0 {
		return nil
	}
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("redundancy: "+format, args...)) }
	r, p := c.Redundancy, c.policy()
	switch {
	case r.Copies < 0 || p.Copies > len(c.Places):
		bad("copies %d: there are %d places", p.Copies, len(c.Places))
	case r.Data < 0 || r.Parity < 0:
		bad("data %d and parity %d must not be negative", r.Data, r.Parity)
	case r.Data > 0 && r.Data+r.Parity > len(c.Places):
		bad("%d data and %d parity shards need as many places, and there are %d", r.Data, r.Parity, len(c.Places))
	case r.Workers < 1 || r.HealAfter <= 0 || r.ScrubPeriod < 0 || r.ScrubRate < 0:
		bad("workers and heal_after must be positive, scrub_period and scrub_rate not negative")
	case r.SegmentsAfter < 0 || r.SegmentsLive < 0 || r.SegmentsLive > 1:
		bad("segments_after must not be negative, and segments_live 0 to 1")
	case r.Data > 0 && p.Threshold < 1:
		bad("threshold %s: must be positive", r.Threshold)
	}
	if r.Data > 0 {
		if err := (erasure.Params{K: p.Data, M: p.Parity, MinChunk: p.MinChunk, MaxChunk: p.MaxChunk}).Validate(); err != nil {
			bad("%w", err)
		}
	}
	return errs
}

// keeping is the keeper of a store with places, while there is one. The store of bodies is opened before it.
type keeping struct {
	of  atomic.Pointer[redundancy.Keeper]
	old *body.Files // bodies of the time before places
	eng atomic.Pointer[engine.Engine]

	ledger *ledger.Ledger
}

func (k *keeping) get() *redundancy.Keeper { return k.of.Load() }

// open opens the ledger below a directory and makes the keeper. On several drives the directory is that of the drive with the
// index: the one of the settings may be on a drive that is away, or that is being copied.
func (k *keeping) open(ctx context.Context, s *Service, dir string, eng *engine.Engine, places *spread.Store) error {
	l, err := ledger.Open(pebblevfs.Default, filepath.Join(dir, mirror.LedgerDir))
	if err != nil {
		return err
	}
	r := s.cfg.Redundancy
	files := &redundancy.Spread{Store: places, Old: k.old}
	log := segments{eng}
	if _, ok := s.cfg.codesSegments(); ok {
		files.Log = log
	}
	keeper, err := redundancy.New(ctx, l, files, redundancy.Options{
		Policy: s.cfg.policy(), Log: s.deps.Telemetry.Log, Workers: r.Workers, HealAfter: r.HealAfter, Rebalance: r.Rebalance,
		ScrubPeriod: r.ScrubPeriod, ScrubRate: int64(r.ScrubRate), Reserve: int64(s.cfg.Reserve),
		Names:  func(id string) (redundancy.Naming, error) { return naming(eng, places, id) },
		Bodies: eng.BodiesAfter, Segments: log.status, AckCopies: s.cfg.AckCopies,
		Objects: func(ctx context.Context, bodies map[string]bool, limit int) (out []redundancy.ObjectName, _ error) {
			list, err := eng.ObjectsOf(ctx, bodies, limit)
			for _, o := range list {
				out = append(out, redundancy.ObjectName(o))
			}
			return out, err
		},
	})
	if err != nil {
		return errors.Join(err, l.Close())
	}
	k.ledger = l
	k.eng.Store(eng)
	k.of.Store(keeper)
	return nil
}

// close gives them back, after the keeper's Run has ended.
func (k *keeping) close() error {
	k.of.Store(nil)
	k.eng.Store(nil)
	return k.ledger.Close()
}

// naming asks the log whether it names a body, and the places whether somebody reads it. While lost writes have unknown keys
// the log cannot say.
func naming(eng *engine.Engine, places *spread.Store, id string) (redundancy.Naming, error) {
	is, err := eng.StateOf(id)
	switch {
	case errors.Is(err, engine.ErrUncertain):
		return redundancy.Unsure, nil
	case err != nil:
		return redundancy.Unsure, err
	case is == engine.BodyNamed:
		return redundancy.Named, nil
	case is == engine.BodyAwaited || places.IsRead(id):
		return redundancy.Awaited, nil
	}
	return redundancy.Unnamed, nil
}
