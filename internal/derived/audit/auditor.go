package audit

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Store is what an audit needs of the store.
type Store interface {
	journal.Store
	objstore.Header
}

// Ledgers are what the journal has of each boot, in intervals.
type Ledgers interface {
	// HasBoot reports whether the journal has a batch of the boot.
	HasBoot(identity.Boot) bool
	// GapBefore is where the numbers begin that the journal does not have and that end before seq; seq where
	// it has the one before.
	GapBefore(b identity.Boot, seq uint64) uint64
	// Seen reports whether the journal has the batch, or all of its numbers in batches that are not
	// known one by one.
	Seen(identity.Batch) bool
}

// Auditor runs audits. Its fields but Store, Rand, Authority and Writer are optional.
type Auditor struct {
	Store Store
	// Rand is the source of ids, and of the seed of fingerprints.
	Rand      io.Reader
	Authority string
	// By names the reconciler in records.
	By string
	// Writer writes the entries, in a run of the reconciler's own.
	Writer *journal.Writer
	// Ledgers spare news audits boots and batches that the journal has from before.
	Ledgers Ledgers
	// Judge says what becomes of a manifest that stands in no run, where several regions accept batches: there a manifest alone does
	// not say that its batch was accepted. An error says that nobody knows now; the audit goes on there later. Nil enters all of them.
	Judge func(context.Context, accept.Manifest) (Judgement, error)
	// Inventory opens the inventory with this key, or the newest one for "".
	Inventory func(ctx context.Context, key string) (Inventory, error)
	// Fan reads folded files side by side.
	Fan journal.Fan
	// Pace is called before each LIST and each GET, and may wait.
	Pace func(context.Context) error
	// Unusable is called with the key of a manifest that can't be read or is of another authority, and Foreign
	// with a key that we never write.
	Unusable, Foreign func(key string)
	// Underived is called with an entry of which a derived key is missing.
	Underived func(context.Context, *journal.Entry) error
	// Shards is how many shards a full audit has where there are as many agents; 0 is 1.
	Shards int
	// Lease is after how long, by the store's clock, a shard whose record does not move is taken from the process
	// that claimed it.
	Lease time.Duration
	// MaxInMemory bounds the fingerprints of entries in memory, of 8 bytes each; 0 is 8,000,000. A shard with more is
	// read in several passes, each over its own range of agents.
	MaxInMemory int

	claim string // the random id of this process
	// finished are shards that have, of audits that have not.
	finished map[string]bool
}

const (
	defaultMaxInMemory = 8_000_000
	// requestsPerSave is after how many requests the record of a shard is moved at the latest, and maxMissing after how many
	// keys that no entry is known of.
	requestsPerSave = 20
	maxMissing      = 1000
	// maxInventoryShards bounds the shards of an audit of an inventory: files are in no order, so each shard
	// needs all of the journal.
	maxInventoryShards = 4
)

// ErrTakenOver: another reconciler goes on with this shard.
var ErrTakenOver = errors.New("another reconciler runs this part of the audit")

var jsonContent = objstore.PutOptions{ContentType: "application/json"}

// Inventory is a list of the bucket's keys that was made by the store.
type Inventory struct {
	// Key of its manifest.
	Key string
	// At is when it was begun: everything that was created before is in it.
	At time.Time
	// Files it has; Read calls each with the keys of one, in whatever order.
	Files int
	Read  func(ctx context.Context, file int, each func(key string) error) error
}

// Begin creates the record of a full audit of listings, whose shards begin over the time of spread. Any reconciler
// works on it.
func (a *Auditor) Begin(ctx context.Context, spread time.Duration) (Stored, error) {
	r, err := a.plan(ctx, Full)
	if err == nil {
		r.Spread = int64(spread / time.Second)
		r.Bounds, err = a.bounds(ctx)
	}
	return a.create(ctx, r, err)
}

// BeginNews creates the record of a news audit. It takes what was journalled since the audit before the last: a sender
// that never got its answer has, within an interval, an earlier batch of the same boot in the journal.
func (a *Auditor) BeginNews(ctx context.Context) (Stored, error) {
	r, err := a.plan(ctx, News)
	if err == nil {
		r.Since, err = a.since(ctx)
	}
	return a.create(ctx, r, err)
}

// BeginInventory creates the record of a full audit of an inventory. It proves as much as a full audit that
// had ended when the inventory was begun.
func (a *Auditor) BeginInventory(ctx context.Context, inv Inventory) (Stored, error) {
	r, err := a.plan(ctx, Full)
	if err == nil {
		r.Inventory, r.InventoryAt, r.Files = inv.Key, inv.At.Unix(), inv.Files
		r.Shards = min(inv.Files, max(a.Shards, 1), maxInventoryShards)
		r.Through, err = a.throughBefore(ctx, inv.At)
	}
	return a.create(ctx, r, err)
}

func (a *Auditor) plan(ctx context.Context, scope string) (Record, error) {
	// The head first: what it has not folded was journalled after it, or is read by this audit.
	head, _, err := journal.ReadHead(ctx, a.Store)
	if err != nil {
		return Record{}, err
	}
	now, err := a.date(ctx)
	return Record{Scope: scope, By: a.By, StartedAt: now.Unix(), UpdatedAt: now.Unix(), Through: head.Number}, err
}

func (a *Auditor) create(ctx context.Context, r Record, err error) (Stored, error) {
	var id journal.RunID
	if err == nil {
		id, err = journal.NewRunID(a.Rand)
	}
	out := Stored{Record: r, Key: layout.Audit(r.Scope, time.Unix(r.StartedAt, 0), id)}
	if err == nil {
		_, _, err = objstore.CreateOrGet(ctx, a.Store, out.Key, r.Marshal(), int64(Kind.MaxBytes), jsonContent)
	}
	if err == nil {
		out, err = Read(ctx, a.Store, out.Key)
	}
	if err != nil {
		return out, fmt.Errorf("begin an audit: %w", err)
	}
	return out, nil
}

// bounds divides the agents into shards of about as many.
func (a *Auditor) bounds(ctx context.Context) ([]string, error) {
	n := min(max(a.Shards, 1), MaxShards)
	if n == 1 {
		return nil, nil
	}
	var agents []string
	for p, err := range objstore.Groups(ctx, a.paced(), objstore.ListOptions{Prefix: layout.AcceptedPrefix, Delimiter: "/"}) {
		if err != nil {
			return nil, err
		}
		if agent, err := layout.ParseOfAgent(layout.AcceptedPrefix, p); err == nil {
			agents = append(agents, agent)
		}
	}
	n = min(n, len(agents))
	var out []string
	for i := 1; i < n; i++ {
		out = append(out, agents[i*len(agents)/n])
	}
	return out, nil
}

// since is where a news audit begins.
func (a *Auditor) since(ctx context.Context) (uint64, error) {
	news, err := History(ctx, a.Store, News, 2)
	if err != nil {
		return 0, err
	}
	switch len(news) {
	case 2:
		return news[1].Through, nil
	case 1:
		return news[0].Since, nil
	}
	full, err := History(ctx, a.Store, Full, 100)
	for i := range full {
		if full[i].Finished() {
			return full[i].Through, nil
		}
	}
	return 0, err
}

// throughBefore is the number of a head from before the given time: that of the last audit that began before.
func (a *Auditor) throughBefore(ctx context.Context, at time.Time) (uint64, error) {
	through := uint64(0)
	for _, scope := range []string{Full, News} {
		history, err := History(ctx, a.Store, scope, 100)
		if err != nil {
			return 0, err
		}
		for i := range history {
			if history[i].StartedAt < at.Unix() {
				through = max(through, history[i].Through)
			}
		}
	}
	return through, nil
}

// Work takes one shard of the audit after the other, and returns when none is left for it. done: the audit has
// finished. Otherwise other reconcilers work on it, or shards are not due. After an error the next call goes on.
// A full audit of listings that finishes says that the journal is complete, unless that is known, or it does not show it;
// see Record.Shows.
func (a *Auditor) Work(ctx context.Context, r *Stored) (done bool, err error) {
	if done, err = a.work(ctx, r); err != nil {
		return false, fmt.Errorf("%s audit: %w", r.Scope, err)
	}
	return done, nil
}

func (a *Auditor) work(ctx context.Context, r *Stored) (bool, error) {
	if r.Finished() {
		a.forget(r)
		return true, nil
	}
	if r.Inventory != "" && a.Inventory == nil {
		return false, nil // others know where it is
	}
	if a.claim == "" {
		id, err := journal.NewRunID(a.Rand)
		if err != nil {
			return false, err
		}
		a.claim, a.finished = hex.EncodeToString(id[:]), map[string]bool{}
	}
	now, err := a.date(ctx)
	if err != nil {
		return false, err
	}
	left := false
	for i := range r.ShardCount() {
		key := layout.AuditShard(r.Key, i)
		if a.finished[key] {
			continue
		}
		// Of a shard that is not due, nothing is asked.
		if now.Before(r.DueAt(i)) {
			left = true
			continue
		}
		s, mine, err := a.take(ctx, r, key, now)
		if err == nil && mine {
			err = a.shard(ctx, r, i, &s)
		}
		if err != nil && !errors.Is(err, ErrTakenOver) {
			return false, err
		}
		if s.Finished() {
			a.finished[key] = true
		} else {
			left = true
		}
	}
	// Nothing more comes of this run, so nobody has to ask for its next segment.
	if err := a.Writer.Close(ctx); err != nil || left {
		return false, err
	}
	done, err := a.finish(ctx, r)
	if done {
		a.forget(r)
	}
	return done, err
}

// forget drops what is only of use while the audit goes on.
func (a *Auditor) forget(r *Stored) {
	for i := range r.ShardCount() {
		delete(a.finished, layout.AuditShard(r.Key, i))
	}
}

// take claims a shard. mine is false where it has finished, or is another one's.
func (a *Auditor) take(ctx context.Context, r *Stored, key string, now time.Time) (s Stored, mine bool, err error) {
	s, err = Read(ctx, a.Store, key)
	switch {
	case errors.Is(err, objstore.ErrNotFound):
		s = Stored{Key: key, Record: Record{Scope: r.Scope, By: a.By, StartedAt: now.Unix(), UpdatedAt: now.Unix(), Claim: a.claim}}
		body := s.Marshal()
		there, _, err := objstore.CreateOrGet(ctx, a.Store, key, body, int64(Kind.MaxBytes), jsonContent)
		if err != nil || string(there) != string(body) {
			return s, false, err
		}
		s, err = Read(ctx, a.Store, key)
		return s, err == nil, err
	case err != nil || s.Finished():
		return s, false, err
	case s.Claim != a.claim && now.Sub(time.Unix(s.UpdatedAt, 0)) < a.Lease:
		return s, false, nil
	}
	s.By, s.Claim = a.By, a.claim
	err = a.save(ctx, &s)
	return s, err == nil, err
}

// shard works on a shard that was claimed.
func (a *Auditor) shard(ctx context.Context, r *Stored, i int, s *Stored) error {
	var err error
	from, until := r.Agents(i)
	switch {
	case r.Inventory != "":
		err = a.inventory(ctx, r, i, s)
	case r.Scope == Derived:
		err = a.derived(ctx, i, s)
	case r.Scope == News:
		err = a.news(ctx, r, s, from, until)
	default:
		err = a.full(ctx, s, from, until)
	}
	if err != nil {
		return err
	}
	now, err := a.date(ctx)
	if err != nil {
		return err
	}
	s.FinishedAt = now.Unix()
	if err := a.save(ctx, s); err != nil {
		s.FinishedAt = 0
		return err
	}
	return nil
}

// finish adds up the shards, all of which have finished.
func (a *Auditor) finish(ctx context.Context, r *Stored) (bool, error) {
	shards, err := Progress(ctx, a.Store, r)
	if err != nil {
		return false, err
	}
	sum := r.Record
	sum.Manifests, sum.Conflicts, sum.Journalled, sum.Unusable, sum.Unread, sum.Foreign, sum.Digest = 0, 0, 0, 0, 0, 0, identity.Digest{}
	sum.Copies, sum.CopyBytes, sum.Quarantined, sum.Undecided = 0, 0, 0, 0
	for i := range shards {
		if !shards[i].Finished() {
			return false, nil
		}
		sum.add(&shards[i].Record)
		sum.FinishedAt = max(sum.FinishedAt, shards[i].FinishedAt)
	}
	if r.Scope == Full && r.Inventory == "" {
		if err := a.complete(ctx, &sum, r.Key); err != nil {
			return false, err
		}
	}
	r.Record = sum
	if err := a.save(ctx, r); err != nil {
		// Another one that has found all shards finished has written the same sums.
		there, rerr := Read(ctx, a.Store, r.Key)
		if rerr != nil || !there.Finished() {
			r.FinishedAt = 0
			return false, err
		}
		*r = there
	}
	return true, nil
}

// complete says that the journal is complete, where that is not known and the audit shows it.
func (a *Auditor) complete(ctx context.Context, r *Record, key string) error {
	begin, err := journal.ReadBegin(ctx, a.Store)
	if err != nil {
		return err
	}
	head, _, err := journal.ReadHead(ctx, a.Store)
	if err != nil || begin.Covers(head.Lost) || !r.Shows(&head) {
		return err
	}
	return journal.Begin{AuthorityID: a.Authority, By: journal.ByAudit, Audit: key, Head: r.Through}.Write(ctx, a.Store)
}

// Shows reports whether the audit, when it has finished, shows that the journal with this head is complete, but for what
// was dropped after it had begun: Begin.Head tells that.
func (r *Record) Shows(head *journal.Head) bool {
	switch {
	// An inventory says nothing of what was accepted after it was begun.
	case r.Scope != Full || r.Inventory != "":
		return false
	// It began with another journal than this one, which was deleted or is an older copy, so it may have passed over batches
	// that this one lacks.
	case r.Through > head.Number:
		return false
	}
	// What can't be read may be a batch of the dropped file, whose entry was the only other record of it.
	return head.Lost == 0 || r.Unread == 0
}

// date is the store's time; 1 where the store does not say.
func (a *Auditor) date(ctx context.Context) (time.Time, error) {
	page, err := a.Store.List(ctx, objstore.ListOptions{Prefix: layout.JournalOpenPrefix, Limit: 1})
	if err != nil {
		return time.Time{}, err
	}
	if page.Date.IsZero() {
		return time.Unix(1, 0), nil
	}
	return page.Date, nil
}

// save moves a record with If-Match, so that of two reconcilers one goes on.
func (a *Auditor) save(ctx context.Context, r *Stored) error {
	now, err := a.date(ctx)
	if err != nil {
		return err
	}
	r.UpdatedAt = now.Unix()
	b := r.Marshal()
	info, err := a.Store.Replace(ctx, r.Key, b, r.etag, jsonContent)
	if err != nil {
		there, got, gerr := a.Store.Get(ctx, r.Key, objstore.GetOptions{Limit: int64(Kind.MaxBytes)})
		switch {
		case gerr == nil && string(there) == string(b):
			info = got // the answer was lost
		case gerr == nil && errors.Is(err, objstore.ErrPreconditionFailed):
			return fmt.Errorf("%w: %w", ErrTakenOver, err)
		default:
			return err
		}
	}
	r.etag = info.ETag
	return nil
}

func (a *Auditor) pace(ctx context.Context) error {
	if a.Pace == nil {
		return ctx.Err()
	}
	return a.Pace(ctx)
}

// paced is what follows the journal and lists agents and boots: each request counts for the rate.
func (a *Auditor) paced() pacedStore { return pacedStore{a} }

type pacedStore struct{ a *Auditor }

func (p pacedStore) List(ctx context.Context, o objstore.ListOptions) (objstore.Page, error) {
	if err := p.a.pace(ctx); err != nil {
		return objstore.Page{}, err
	}
	return p.a.Store.List(ctx, o)
}

func (p pacedStore) Get(ctx context.Context, key string, o objstore.GetOptions) ([]byte, objstore.Info, error) {
	if err := p.a.pace(ctx); err != nil {
		return nil, objstore.Info{}, err
	}
	return p.a.Store.Get(ctx, key, o)
}

func (p pacedStore) Head(ctx context.Context, key string) (objstore.Info, error) {
	if err := p.a.pace(ctx); err != nil {
		return objstore.Info{}, err
	}
	return p.a.Store.Head(ctx, key)
}
