package regions

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/coordination/folds"
	"lightmetrics.dev/lightmetrics/internal/derived/history"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// PreparationKind of the record of how far a region is prepared.
var PreparationKind = record.Kind{Schema: "lightmetrics.preparation.v1", Title: "preparation of a region", MaxBytes: 4 << 10}

// Preparation is how far what a region has accepted is prepared to be folded, before it takes part; or, of one that takes part, how far its
// journal was folded. It lies in the region's bucket, and is replaced by If-Match.
type Preparation struct {
	Region claims.Region
	// Through is the move of the journal's head up to which everything is prepared that is folded there; 0 is nothing.
	Through uint64
	// Batches were prepared, and Left share sequence numbers with others that were: they count where those do not.
	Batches, Left uint64
	// Folded is the move up to which the journal was folded while the region took part, and FoldedBatches how many of it were.
	Folded, FoldedBatches uint64
	// AcceptedAt is the time of acceptance of the latest of all these batches; UpdatedAt of the last change. Unix nanoseconds.
	AcceptedAt, UpdatedAt int64
}

type preparationJSON struct {
	Region        string `json:"region"`
	Through       uint64 `json:"through,omitempty"`
	Batches       uint64 `json:"batches,omitempty"`
	Left          uint64 `json:"left,omitempty"`
	Folded        uint64 `json:"folded,omitempty"`
	FoldedBatches uint64 `json:"folded_batches,omitempty"`
	AcceptedAt    int64  `json:"accepted_at_unix_ns"`
	UpdatedAt     int64  `json:"updated_at_unix_ns"`
}

// Marshal writes the canonical JSON.
func (p Preparation) Marshal() []byte {
	return PreparationKind.Marshal(preparationJSON{string(p.Region), p.Through, p.Batches, p.Left, p.Folded, p.FoldedBatches, p.AcceptedAt, p.UpdatedAt})
}

// ParsePreparation reads it; errors wrap record.ErrCorrupt or record.ErrNewerVersion.
func ParsePreparation(b []byte) (Preparation, error) {
	var j preparationJSON
	err := PreparationKind.Unmarshal(b, &j)
	p := Preparation{claims.Region(j.Region), j.Through, j.Batches, j.Left, j.Folded, j.FoldedBatches, j.AcceptedAt, j.UpdatedAt}
	if err == nil {
		err = p.Region.Validate()
	}
	if err == nil && (p.Through == 0 && (p.Batches > 0 || p.Left > 0) || p.Folded == 0 && p.FoldedBatches > 0 || p.UpdatedAt < 0) {
		err = fmt.Errorf("%d batches of no move, or at %d", p.Batches+p.FoldedBatches, p.UpdatedAt)
	}
	if err != nil {
		return Preparation{}, PreparationKind.Wrap(layout.PreparedStateKey, err)
	}
	return p, nil
}

// preparation reads how far a region is prepared; the zero Preparation where nothing is.
func (k *Keeper) preparation(ctx context.Context, n claims.Region) (Preparation, error) {
	p, _, err := k.readPreparation(ctx, n)
	return p, err
}

func (k *Keeper) readPreparation(ctx context.Context, n claims.Region) (Preparation, string, error) {
	p, info, err := record.Read(ctx, k.store(n), layout.PreparedStateKey, PreparationKind, ParsePreparation)
	switch {
	case errors.Is(err, objstore.ErrNotFound):
		return Preparation{Region: n}, "", nil
	case err == nil && p.Region != n:
		err = fmt.Errorf("%w: its bucket is that of region %s", ErrRegionSettings, p.Region)
	}
	if err != nil {
		return Preparation{}, "", &RegionError{"read the preparation", n, err}
	}
	return p, info.ETag, nil
}

// DefaultPrepareEntries bounds the batches that are in memory at once while a region is prepared, some 250 bytes each.
const DefaultPrepareEntries = 1 << 18

// Prepare reads the journal of a region from where it was read last, and writes down in bulk what it has: what the region has accepted on its
// own is prepared, so that a recovery which takes it in has only the rest to read; of one that takes part, what it has decided is folded, as
// if its claims were. The region may accept meanwhile. It ends when everything is done that is folded in the journal. Whatever interrupts
// it, the next call goes on; any number of them may run at once.
//
// more gets how far it is, again and again, and ends it when it gives false; all is false then. Errors that callers branch on are
// ErrRegionSettings and *RegionError.
func (k *Keeper) Prepare(ctx context.Context, name claims.Region, more func(Preparation) bool) (p Preparation, all bool, _ error) {
	b, err := k.bulk(ctx, name)
	if err == nil {
		b.more = more
		if err = b.read(ctx); errors.Is(err, errEnough) {
			return b.state, false, nil
		}
	}
	if err != nil {
		return Preparation{}, false, fmt.Errorf("prepare region %s: %w", name, err)
	}
	return b.state, true, nil
}

// errEnough ends a reading.
var errEnough = errors.New("enough for now")

func (k *Keeper) bulk(ctx context.Context, name claims.Region) (*bulk, error) {
	if err := k.mayAdd(name); err != nil {
		return nil, err
	}
	s, err := k.look(ctx)
	if err != nil {
		return nil, err
	}
	// Every other bucket is written to.
	for _, u := range s.unread {
		if newest, _ := s.newest(); !newest.retired(u.Region) {
			return nil, u
		}
	}
	newest, _ := s.newest()
	joining := slices.Contains(s.joining(), name)
	switch {
	case newest.retired(name):
		return nil, fmt.Errorf("%w: it was retired", ErrRegionSettings)
	case joining:
		return nil, fmt.Errorf("%w: it is being added", ErrRegionSettings)
	}
	if err := s.mayTake([]claims.Region{name}); err != nil {
		return nil, err
	}
	b := &bulk{k: k, name: name, preparer: folds.Preparer{SealAt: k.cfg.SealAt}}
	// The last region of a linearizer that was dissolved accepts on its own again.
	if b.member = slices.Contains(newest.Regions, name) && !newest.Dissolved; b.member {
		b.folder = k.Folder(newest.Epoch(), names(newest.Retired))
		b.folder.Lenient = true
	}
	for _, r := range k.cfg.Regions {
		switch one := (folds.Region{Name: r.Name, Store: r.Store}); {
		case r.Name == name:
			b.preparer.Own = one
		case !newest.retired(r.Name):
			b.preparer.Others = append(b.preparer.Others, one)
		}
	}
	b.state, b.etag, err = k.readPreparation(ctx, name)
	return b, err
}

// bulk is what one call of Prepare does.
type bulk struct {
	k        *Keeper
	name     claims.Region
	member   bool
	preparer folds.Preparer
	folder   folds.Folder
	more     func(Preparation) bool
	state    Preparation
	etag     string
	// boots are the batches that were read and are not written yet, n of them.
	boots map[identity.Boot][]journal.Entry
	n     int
}

// at is the move of the journal's head that this kind of bulk is at.
func (b *bulk) at() *uint64 {
	if b.member {
		return &b.state.Folded
	}
	return &b.state.Through
}

func (b *bulk) read(ctx context.Context) error {
	from := *b.at()
	b.boots = map[identity.Boot][]journal.Entry{}
	through := from
	take := func(ctx context.Context, p history.Page) error {
		for _, e := range p.Entries {
			// Of what a region has decided in an epoch the entry says so. Others it had accepted on its own before, which may have lost since.
			if b.member && (e.ClaimEpoch == 0 || e.HomeRegion != string(b.name)) {
				continue
			}
			boot := e.ID.BootOf()
			b.boots[boot] = append(b.boots[boot], e)
			b.n++
		}
		through = max(through, p.Through)
		if b.n < b.k.cfg.PrepareEntries {
			return nil
		}
		err := b.flush(ctx, through)
		if err == nil && !b.more(b.state) {
			err = errEnough
		}
		return err
	}
	last, err := history.Folded(ctx, b.k.store(b.name), history.Selection{}, from, take)
	if errors.Is(err, journal.ErrHeadWentBack) {
		// Another journal, whose numbers begin lower. What it has is as true.
		through = 0
		last, err = history.Folded(ctx, b.k.store(b.name), history.Selection{}, 0, take)
		if err == nil && last == 0 {
			return nil // of it nothing is folded yet, and what was prepared of the one before stays prepared
		}
	}
	if errors.Is(err, errEnough) {
		return err
	}
	if err != nil {
		return &RegionError{"read the journal", b.name, err}
	}
	return b.flush(ctx, last)
}

// flush writes what was read, and that everything through a move of the head is done.
func (b *bulk) flush(ctx context.Context, through uint64) error {
	boots := make([]identity.Boot, 0, len(b.boots))
	for boot := range b.boots {
		boots = append(boots, boot)
	}
	slices.SortFunc(boots, identity.Boot.Compare)
	got := make([]folds.Prepared, len(boots))
	if err := b.k.each(len(boots), func(i int) (err error) {
		got[i], err = b.boot(ctx, boots[i], b.boots[boots[i]])
		return err
	}); err != nil {
		return err
	}
	if b.n == 0 && through == *b.at() {
		return nil
	}
	for i, boot := range boots {
		if b.member {
			b.state.FoldedBatches += uint64(got[i].Added)
		} else {
			b.state.Batches, b.state.Left = b.state.Batches+uint64(got[i].Added), b.state.Left+uint64(got[i].Left)
		}
		for _, e := range b.boots[boot] {
			b.state.AcceptedAt = max(b.state.AcceptedAt, e.At)
		}
	}
	clear(b.boots)
	*b.at(), b.n = through, 0
	b.state.UpdatedAt = max(b.k.cfg.Now(), 0)
	return b.save(ctx)
}

// boot writes what was read of a boot.
func (b *bulk) boot(ctx context.Context, boot identity.Boot, es []journal.Entry) (folds.Prepared, error) {
	add, left := b.entries(es)
	if !b.member {
		out, err := b.preparer.Add(ctx, boot, add)
		out.Left += left
		return out, err
	}
	var out folds.Prepared
	for len(add) > 0 {
		n := min(len(add), folds.MaxAdd)
		m, err := b.folder.Fold(ctx, boot, claims.Folds{}, add[:n])
		if err != nil {
			return out, err
		}
		out.Added, add = out.Added+n-m.Left, add[n:]
	}
	return out, nil
}

// entries are those of batches of one boot, in order and without overlaps: of batches that share numbers the one that was accepted first. left are the
// others. What was decided in an epoch, before the linearizer of the region was dissolved, is folded, and counts against any of them.
func (b *bulk) entries(es []journal.Entry) (out []folds.Entry, left int) {
	slices.SortFunc(es, func(x, y journal.Entry) int {
		return cmp.Or(cmp.Compare(x.At, y.At), x.ID.Compare(y.ID))
	})
	for _, e := range es {
		one := folds.Entry{Start: e.ID.SeqStart, End: e.ID.SeqEnd, Home: b.name, Digest: folds.DigestOf(e.SHA256)}
		i, there := slices.BinarySearchFunc(out, one, func(o, n folds.Entry) int {
			switch {
			case o.End < n.Start:
				return -1
			case o.Start > n.End:
				return 1
			}
			return 0
		})
		switch {
		case !there:
			out = slices.Insert(out, i, one)
		case out[i] != one:
			left++
		}
	}
	return out, left
}

// save replaces the record of the preparation. Where others have moved it, theirs stays if it is further.
func (b *bulk) save(ctx context.Context) error {
	s := b.k.store(b.name)
	o := objstore.PutOptions{ContentType: "application/json"}
	for try := 0; ; try++ {
		var info objstore.Info
		var err error
		if b.etag == "" {
			info, err = s.Create(ctx, layout.PreparedStateKey, b.state.Marshal(), o)
		} else {
			info, err = s.Replace(ctx, layout.PreparedStateKey, b.state.Marshal(), b.etag, o)
		}
		if err == nil {
			b.etag = info.ETag
			return nil
		}
		if !passes(err) || ctx.Err() != nil || try == moveTries {
			return &RegionError{"write the preparation", b.name, err}
		}
		there, etag, err := b.k.readPreparation(ctx, b.name)
		if err != nil {
			return err
		}
		if b.etag = etag; there.Through >= b.state.Through && there.Folded >= b.state.Folded {
			b.state = there
			return nil
		}
		b.state.Through, b.state.Folded = max(there.Through, b.state.Through), max(there.Folded, b.state.Folded)
	}
}
