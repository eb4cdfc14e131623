package audit

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
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

// Auditor runs full audits. Its fields but Store, Rand, Authority and Writer are optional.
type Auditor struct {
	Store Store
	// Rand is the source of ids, and of the seed of fingerprints.
	Rand      io.Reader
	Authority string
	// By names the reconciler in records.
	By string
	// Writer writes the entries, in a run of the reconciler's own.
	Writer *journal.Writer
	// Fan reads folded files side by side.
	Fan journal.Fan
	// Pace is called before each LIST and each GET, and may wait.
	Pace func(context.Context) error
	// Unusable is called with the key of a manifest that can't be read or is of another authority, and Foreign
	// with a key that we never write.
	Unusable, Foreign func(key string)
	// Listed is called with the key of every manifest and quarantine record.
	Listed func(ctx context.Context, key string) error
	// MaxInMemory bounds the fingerprints of entries in memory, of 8 bytes each; 0 is 8,000,000. A journal with more is
	// read in several passes, each over its own range of agents.
	MaxInMemory int
}

const (
	defaultMaxInMemory = 8_000_000
	// pagesPerSave is after how many pages of a listing the record is moved.
	pagesPerSave = 20
)

// ErrTakenOver: another reconciler goes on with this audit.
var ErrTakenOver = errors.New("another reconciler runs this audit")

// Run goes on with the last audit if it was interrupted, else it begins one. It returns the
// finished record. After an error the next call goes on where this one was. The first one that finishes
// says that the journal is complete.
func (a *Auditor) Run(ctx context.Context) (Stored, error) {
	r, err := a.begin(ctx)
	if err == nil {
		err = a.run(ctx, &r)
	}
	if err != nil {
		return r, fmt.Errorf("full audit: %w", err)
	}
	return r, nil
}

func (a *Auditor) begin(ctx context.Context) (Stored, error) {
	history, err := History(ctx, a.Store, 1)
	if err != nil {
		return Stored{}, err
	}
	if len(history) > 0 && !history[0].Finished() {
		return history[0], nil
	}
	now, err := a.date(ctx)
	if err != nil {
		return Stored{}, err
	}
	id, err := journal.NewRunID(a.Rand)
	if err != nil {
		return Stored{}, err
	}
	r := Stored{Record: Record{Scope: Full, By: a.By, StartedAt: now.Unix(), UpdatedAt: now.Unix()}, Key: layout.Audit(Full, now, id)}
	body, _, err := objstore.CreateOrGet(ctx, a.Store, r.Key, r.Marshal(), int64(Kind.MaxBytes), jsonContent)
	if err != nil {
		return r, err
	}
	if string(body) != string(r.Marshal()) {
		return r, ErrTakenOver
	}
	_, info, err := a.Store.Get(ctx, r.Key, objstore.GetOptions{Limit: int64(Kind.MaxBytes)})
	r.etag = info.ETag
	return r, err
}

var jsonContent = objstore.PutOptions{ContentType: "application/json"}

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

// run lists both families. Their prefixes are in the order of their keys, so one cursor says where both are.
func (a *Auditor) run(ctx context.Context, r *Stored) error {
	r.By = a.By
	for _, f := range families() {
		from := ""
		if id, _, err := f.parse(r.Cursor); err == nil {
			from = id.Agent
		}
		for r.Cursor < f.end {
			p, err := a.newPass(ctx, f, r, from)
			if err != nil {
				return err
			}
			if err := p.list(ctx); err != nil {
				return err
			}
			from = max(from, p.known.until)
		}
	}
	// Nothing more comes of this run, so nobody has to ask for its next segment.
	if err := a.Writer.Close(ctx); err != nil {
		return err
	}
	now, err := a.date(ctx)
	if err != nil {
		return err
	}
	r.FinishedAt = now.Unix()
	if err := a.save(ctx, r); err != nil {
		return err
	}
	begun, err := journal.HasBegun(ctx, a.Store)
	if err != nil || begun {
		return err
	}
	return journal.Begin{AuthorityID: a.Authority, By: journal.ByAudit, Audit: r.Key}.Create(ctx, a.Store)
}

// save moves the record with If-Match, so that of two reconcilers one goes on.
func (a *Auditor) save(ctx context.Context, r *Stored) error {
	if now, err := a.date(ctx); err == nil {
		r.UpdatedAt = now.Unix()
	}
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

// family is one of the two kinds of records that are listed.
type family struct {
	prefix, end string
	// parse reads the key: whose batch it is about, and of a conflict the hash of the frame in quarantine.
	parse func(key string) (identity.Batch, identity.Digest, error)
	// entry reads the record into an entry; an error wraps record.ErrCorrupt or record.ErrNewerVersion.
	entry func(b []byte, id identity.Batch, d identity.Digest) (e journal.Entry, authority string, err error)
	count func(*Record) *uint64
}

func families() []family {
	return []family{{
		prefix: layout.AcceptedPrefix, end: prefixEnd(layout.AcceptedPrefix),
		parse: func(key string) (identity.Batch, identity.Digest, error) {
			id, err := layout.ParseAccepted(key)
			return id, identity.Digest{}, err
		},
		entry: func(b []byte, id identity.Batch, _ identity.Digest) (journal.Entry, string, error) {
			m, err := accept.ParseManifest(b)
			if err == nil && m.Identity != id {
				err = accept.ManifestKind.Corrupt("", "it is of %s", m.Identity)
			}
			return m.Entry(journal.AuditedAccepted), m.AuthorityID, err
		},
		count: func(r *Record) *uint64 { return &r.Manifests },
	}, {
		prefix: layout.QuarantinePrefix, end: prefixEnd(layout.QuarantinePrefix),
		parse: layout.ParseQuarantine,
		entry: func(b []byte, id identity.Batch, d identity.Digest) (journal.Entry, string, error) {
			c, err := accept.ParseConflictRecord(b)
			if err == nil && (c.Identity != id || c.SubmittedSHA256 != d) {
				err = accept.ConflictKind.Corrupt("", "it is of %s %s", c.Identity, c.SubmittedSHA256)
			}
			return c.Entry(), c.AuthorityID, err
		},
		count: func(r *Record) *uint64 { return &r.Conflicts },
	}}
}

// prefixEnd is greater than every key of the prefix, which ends in a slash.
func prefixEnd(prefix string) string { return prefix[:len(prefix)-1] + "0" }

// pass lists a family from the cursor on, over the agents whose entries fit into memory.
type pass struct {
	a        *Auditor
	f        family
	r        *Stored
	known    *known
	follower *journal.Follower
	// missing are keys that were listed and of which no entry is known yet.
	missing []string
}

// newPass reads what the journal has of the agents from the given one on.
func (a *Auditor) newPass(ctx context.Context, f family, r *Stored, from string) (*pass, error) {
	k, err := newKnown(a.Rand, from, cmp.Or(a.MaxInMemory, defaultMaxInMemory))
	if err != nil {
		return nil, err
	}
	p := &pass{a: a, f: f, r: r, known: k}
	p.follower, err = journal.NewFollower(journal.FollowerConfig{
		Store: a.Store, Authority: a.Authority, Fan: a.Fan,
		Segment: func(_ context.Context, s *journal.Segment) error { k.add(s.Entries); return nil },
		Folded:  func(_ context.Context, es []journal.Entry) error { k.add(es); return nil },
	})
	if err == nil {
		_, err = p.follower.Poll(ctx)
	}
	return p, err
}

// list goes through the pages, to the end of the family or of the agents in memory.
func (p *pass) list(ctx context.Context) error {
	o := objstore.ListOptions{Prefix: p.f.prefix, StartAfter: max(p.r.Cursor, p.f.prefix)}
	for pages := 1; ; pages++ {
		if err := p.a.pace(ctx); err != nil {
			return err
		}
		page, err := p.a.Store.List(ctx, o)
		if err != nil {
			return err
		}
		ended, last := false, o.StartAfter
		for _, i := range page.Objects {
			if ended, err = p.key(ctx, i.Key); err != nil || ended {
				break
			}
			last = i.Key
		}
		if err != nil {
			return err
		}
		done := page.Next == "" && !ended
		o.StartAfter = last
		if done || ended || pages%pagesPerSave == 0 || len(p.missing) >= journal.MaxSegmentEntries/2 {
			if err := p.resolve(ctx); err != nil {
				return err
			}
			if p.r.Cursor = last; done {
				p.r.Cursor = p.f.end
			}
			if err := p.a.save(ctx, p.r); err != nil {
				return err
			}
		}
		if done || ended {
			return nil
		}
	}
}

func (a *Auditor) pace(ctx context.Context) error {
	if a.Pace == nil {
		return ctx.Err()
	}
	return a.Pace(ctx)
}

// key deals with one key. ended: it is of an agent whose entries are not in memory.
func (p *pass) key(ctx context.Context, key string) (ended bool, err error) {
	id, d, err := p.f.parse(key)
	if err != nil {
		p.r.Foreign++
		if p.a.Foreign != nil {
			p.a.Foreign(key)
		}
		return false, nil
	}
	if p.known.beyond(id.Agent) {
		return true, nil
	}
	*p.f.count(&p.r.Record)++
	sum := sha256.Sum256([]byte(key))
	for i := range sum {
		p.r.Digest[i] ^= sum[i]
	}
	if !p.known.has(id, d) {
		p.missing = append(p.missing, key)
	}
	if p.a.Listed != nil {
		return false, p.a.Listed(ctx, key)
	}
	return false, nil
}

// resolve writes an entry for each key that is missing, after another poll: its collector may have written
// one since the last.
func (p *pass) resolve(ctx context.Context) error {
	if len(p.missing) == 0 {
		return nil
	}
	if _, err := p.follower.Poll(ctx); err != nil {
		return err
	}
	for _, key := range p.missing {
		id, d, err := p.f.parse(key)
		if err != nil {
			return err
		}
		if p.known.has(id, d) {
			continue
		}
		if err := p.journal(ctx, key, id, d); err != nil {
			return err
		}
	}
	for p.a.Writer.Waiting() > 0 {
		if _, _, err := p.a.Writer.Flush(ctx); err != nil {
			return err
		}
	}
	p.missing = p.missing[:0]
	return nil
}

// journal adds the entry of one record.
func (p *pass) journal(ctx context.Context, key string, id identity.Batch, d identity.Digest) error {
	if err := p.a.pace(ctx); err != nil {
		return err
	}
	b, _, err := p.a.Store.Get(ctx, key, objstore.GetOptions{Limit: accept.MaxRecordBytes})
	if errors.Is(err, objstore.ErrNotFound) {
		return nil // an operator deleted it after the listing
	}
	if err != nil && !objstore.Unreadable(err) {
		return err
	}
	var e journal.Entry
	if err == nil {
		var authority string
		if e, authority, err = p.f.entry(b, id, d); err == nil && authority != p.a.Authority {
			err = fmt.Errorf("it is of the authority %.80q", authority)
		}
	}
	if err == nil {
		_, err = p.a.Writer.Add(e)
	}
	if err != nil {
		p.r.Unusable++
		if p.a.Unusable != nil {
			p.a.Unusable(key)
		}
		return nil
	}
	p.r.Journalled++
	return nil
}

// known is what the journal has of a range of agents, as 64-bit fingerprints under a random seed: of 10^7 entries
// one in 10^12 audits takes a manifest that is missing for one that is there, and the next one finds it.
type known struct {
	seed  [16]byte
	limit int

	mu sync.Mutex
	// from and until bound the agents; until is empty where nothing was left out.
	from, until string
	agents      map[string]map[uint64]struct{}
	count       int
}

func newKnown(rand io.Reader, from string, limit int) (*known, error) {
	k := &known{from: from, limit: limit, agents: map[string]map[uint64]struct{}{}}
	_, err := io.ReadFull(rand, k.seed[:])
	return k, err
}

func (k *known) fingerprint(id identity.Batch, d identity.Digest) uint64 {
	b := make([]byte, 0, 160)
	b = append(b, k.seed[:]...)
	b = binary.LittleEndian.AppendUint64(b, id.SeqStart)
	b = binary.LittleEndian.AppendUint64(b, id.SeqEnd)
	b = append(append(b, d[:]...), id.Boot...)
	sum := sha256.Sum256(b)
	return binary.LittleEndian.Uint64(sum[:])
}

// add takes entries. Where there are too many, the last agents are left to another pass.
func (k *known) add(entries []journal.Entry) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for i := range entries {
		e := &entries[i]
		if e.ID.Agent < k.from || k.until != "" && e.ID.Agent >= k.until {
			continue
		}
		var d identity.Digest // that of an accepted batch is left out: the manifest's key has none
		if e.Outcome.Conflict() {
			d = e.SHA256
		}
		m := k.agents[e.ID.Agent]
		if m == nil {
			m = map[uint64]struct{}{}
			k.agents[e.ID.Agent] = m
		}
		n := len(m)
		m[k.fingerprint(e.ID, d)] = struct{}{}
		k.count += len(m) - n
	}
	if k.count > k.limit {
		k.drop()
	}
}

// drop leaves out the last agents until a quarter of the room is free; one agent always stays.
func (k *known) drop() {
	names := slices.Sorted(maps.Keys(k.agents))
	for len(names) > 1 && k.count > k.limit-k.limit/4 {
		last := names[len(names)-1]
		k.count -= len(k.agents[last])
		delete(k.agents, last)
		k.until, names = last, names[:len(names)-1]
	}
}

// beyond reports whether the agent's entries are not in memory.
func (k *known) beyond(agent string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.until != "" && agent >= k.until
}

func (k *known) has(id identity.Batch, d identity.Digest) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	_, ok := k.agents[id.Agent][k.fingerprint(id, d)]
	return ok
}
