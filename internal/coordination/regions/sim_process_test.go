package regions_test

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"strings"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/coordination/folds"
	"lightmetrics.dev/lightmetrics/internal/coordination/regions"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

type simManifest struct{ accept.Manifest }

func (m simManifest) Key() string { return layout.Accepted(m.Identity) }

func manifestOf(r claims.Region, id identity.Batch, hash identity.Digest, s claims.Stamp) simManifest {
	m := accept.Manifest{
		AuthorityID: "authority-" + string(r), Identity: id, FrameSHA256: hash, FrameBytes: 1, RawBlobKey: layout.Blob(hash, 0), AcceptedAt: 1,
		CollectorID: "c", AttemptID: strings.Repeat("0", 32), RecordCount: id.Count(), MinTime: 1, MaxTime: 2,
		HomeRegion: string(r), ClaimEpoch: s.Epoch, ClaimFence: s.Fence,
	}
	if s.IsZero() {
		m.HomeRegion = ""
	}
	return simManifest{m}
}

// client is a collector or reconciler with a coordinator of its own, in one epoch.
type client struct {
	*actor
	g *claims.Group
	o regions.Opened
	// folded are the folds as the coordinator sees them, and folder moves them.
	folded *regions.Folded
	folder folds.Folder
}

// serve opens epochs, and calls fn in each again and again until it is over.
func (a *actor) serve(fn func(*client)) {
	k := a.keeper(a.names...)
	for a.pause() {
		o, err := k.Open(context.Background(), false)
		if err != nil {
			continue
		}
		// Whoever filled it may not know: the last request's answer was lost.
		a.saw(o)
		cfg := claims.DefaultConfig()
		cfg.Cluster = o.Cluster
		c := &client{a, claims.NewGroup(cfg, keys, o.Epoch, o.Revision), o, k.Folded(k.Folder(o.Epoch, o.Retired)), k.Folder(o.Epoch, o.Retired)}
		c.folder.SealAt = 4
		for c.g.Stopped() == nil && a.pause() {
			fn(c)
		}
	}
}

// do does an operation; a claim looks at folds, as a coordinator does for it.
func (c *client) do(op claims.Op) (claims.Answer, error) {
	if op.Kind == claims.DoClaim {
		op.Looked, _ = c.folded.Guess(op.Identity)
	}
	for range 4 {
		a, err := c.once(op)
		if err != nil || a.Outcome != claims.Folded {
			return a, err
		}
		b, looked, err := c.folded.Decide(context.Background(), op, a.Folds)
		if err != nil || b.Outcome != 0 {
			b.Epoch = a.Epoch
			c.decidedByFolds++
			return b, err
		}
		op.Looked = looked
	}
	return claims.Answer{}, claims.ErrBusy
}

func (c *client) once(op claims.Op) (claims.Answer, error) {
	if op.ID.IsZero() {
		c.ids++
		op.ID[0] = 1
		binary.BigEndian.PutUint64(op.ID[8:], c.ids)
	}
	op.Region, op.Epoch = c.region, c.o.Epoch.Number
	t, err := c.g.Submit(c.now, op)
	if err != nil {
		return claims.Answer{}, err
	}
	for {
		f := c.g.Next(c.now)
		res, err := simEtcd{c.actor}.Commit(context.Background(), f.Txn)
		for _, d := range c.g.Land(c.now, f, res, err) {
			if d.Ticket == t {
				cl := d.Answer.Claim
				c.logf("%s in %s (epoch %d): %s %s %.4s %s: %s %s %.4s %s %v %s %v", "client", c.region, c.o.Epoch.Number, op.Kind, op.Identity, op.Hash, op.ID, d.Answer.Outcome, cl.Identity, cl.Hash, cl.State, cl.Stamp, cl.Home, d.Err)
				return d.Answer, d.Err
			}
		}
	}
}

func (a *actor) own() simBucket { return simBucket{a, a.region} }

// stands reads the manifest of an identity in the own region; ok is false where there is none.
func (a *actor) stands(id identity.Batch) (m accept.Manifest, ok bool, err error) {
	b, _, err := a.own().Get(context.Background(), layout.Accepted(id), objstore.GetOptions{})
	if errors.Is(err, objstore.ErrNotFound) {
		return m, false, nil
	}
	if err == nil {
		m, err = accept.ParseManifest(b)
	}
	return m, err == nil, err
}

// affirm says of the manifest that stands that it stands for a claim, too.
func (a *actor) affirm(m accept.Manifest, c claims.Claim) error {
	if m.Stamp().Compare(c.Stamp) >= 0 {
		return nil
	}
	f := accept.Affirmation{AuthorityID: m.AuthorityID, Identity: m.Identity, FrameSHA256: m.FrameSHA256, Stamp: c.Stamp, HomeRegion: string(a.region)}
	_, err := a.own().Create(context.Background(), f.Key(), f.Marshal(), objstore.PutOptions{})
	if errors.Is(err, objstore.ErrExists) {
		err = nil
	}
	return err
}

// entry is one of the region's journal.
func (a *actor) entry(id identity.Batch, hash identity.Digest) bool {
	if !a.pause() || a.region == a.gone {
		return false
	}
	if h, lost := a.lost[id]; lost && h != hash && !a.forgives(id) {
		a.fail("%s was entered as %.4s in %s, and is as %.4s in %s", id, h, a.gone, hash, a.region)
	} else if lost && a.entries[a.region][id] != hash {
		a.again++
	}
	for r, of := range a.entries {
		for other, h := range of {
			switch {
			case other == id && r == a.region && h == hash:
				return true
			case other == id:
				a.fail("%s is entered as %.4s in %s, and as %.4s in %s", id, hash, a.region, h, r)
			case other.Intersects(id):
				a.fail("%s is entered in %s, and meets %s of %s", id, a.region, other, r)
			}
		}
	}
	a.logf("%s: entry %s %.4s", a.region, id, hash)
	if a.former[a.region] {
		a.lost[id] = hash // nobody reads it, but the sender may be told
		return true
	}
	a.entries[a.region][id] = hash
	return true
}

// collect is a collector: docs/protocol/linearizer.md, "A batch".
func (a *actor) collect() {
	a.serve(func(c *client) {
		id, hash := c.next()
		if id.Agent == "" {
			return
		}
		c.accept(id, hash)
	})
}

// next is a batch that an agent sends; in the end each is sent again that was acknowledged.
func (c *client) next() (identity.Batch, identity.Digest) {
	if c.quiet || c.rnd.IntN(4) == 0 {
		var all []identity.Batch
		for id := range c.acked {
			if id.Boot != "old" || c.added {
				all = append(all, id)
			}
		}
		slices.SortFunc(all, identity.Batch.Compare)
		if len(all) == 0 {
			return identity.Batch{}, identity.Digest{}
		}
		id := all[c.rnd.IntN(len(all))]
		return id, c.acked[id]
	}
	from := uint64(c.rnd.IntN(7))
	id := identity.Batch{Agent: "a", Boot: []string{"b", "c"}[c.rnd.IntN(2)], SeqStart: from, SeqEnd: from + uint64(c.rnd.IntN(3))}
	return id, identity.Digest{1 + byte(c.rnd.IntN(2))}
}

// accept has a batch accepted, or tells its sender something else, or to send it again.
func (c *client) accept(id identity.Batch, sent identity.Digest) {
	hash := sent // that the collector claims for
	answer, err := c.do(claims.Op{Kind: claims.DoClaim, Identity: id, Hash: hash})
	for range 6 {
		if err != nil || c.dead {
			return
		}
		c.kinds[answer.Outcome]++
		cl := answer.Claim
		switch answer.Outcome {
		case claims.Held:
			if cl.Home != c.region || cl.Hash != hash {
				c.fail("%s holds %+v for %.4s", c.region, cl, hash)
				return
			}
			answer, hash, err = c.write(cl)
		case claims.Pending:
			// One that asks for a recovered claim is refused.
			if c.rnd.IntN(2) == 0 {
				return
			}
			answer, err = c.do(claims.Op{Kind: claims.DoTakeOver, Identity: id, Hash: hash, Expect: cl.ID})
		case claims.Decided:
			c.decided(cl, sent)
			return
		case claims.Conflict:
			c.conflict(id, hash, sent)
			return
		case claims.RangeConflict:
			if _, ok := c.acked[id]; ok && hash == sent && !c.forgives(id) {
				c.fail("%s was acknowledged, and has a range conflict", id)
			}
			c.ranged[id] = true
			c.answers++
			return
		default:
			return
		}
	}
}

// write brings the manifest of a claim into the bucket, and completes the claim.
func (c *client) write(cl claims.Claim) (claims.Answer, identity.Digest, error) {
	m := manifestOf(c.region, cl.Identity, cl.Hash, cl.Stamp)
	_, err := c.own().Create(context.Background(), m.Key(), m.Marshal(), objstore.PutOptions{})
	if errors.Is(err, objstore.ErrExists) {
		there, ok, err := c.stands(cl.Identity)
		if err != nil || !ok {
			return claims.Answer{}, cl.Hash, errors.Join(err, errNone)
		}
		if there.FrameSHA256 != cl.Hash {
			if cl.Recovered || cl.Bound {
				return claims.Answer{}, cl.Hash, errNone
			}
			a, err := c.do(claims.Op{Kind: claims.DoReplace, Identity: cl.Identity, Hash: there.FrameSHA256, ID: cl.ID})
			return a, there.FrameSHA256, err
		}
		if err := c.affirm(there, cl); err != nil {
			return claims.Answer{}, cl.Hash, err
		}
	} else if err != nil {
		return claims.Answer{}, cl.Hash, err
	}
	a, err := c.do(claims.Op{Kind: claims.DoComplete, Identity: cl.Identity, Hash: cl.Hash, ID: cl.ID})
	return a, cl.Hash, err
}

// decided: the home's journal has the batch before anybody is told.
func (c *client) decided(cl claims.Claim, sent identity.Digest) {
	id := cl.Identity
	if c.o.Epoch.Retired(cl.Home) {
		c.fail("%s is decided in %s, which was retired before epoch %d", id, cl.Home, c.o.Epoch.Number)
	}
	if cl.State != claims.Settled && cl.Home != c.region {
		return // the sender tries again
	}
	if cl.Home == c.region {
		m, ok, err := c.stands(id)
		if err != nil {
			return
		}
		if !ok || m.FrameSHA256 != cl.Hash {
			c.fail("%s is decided as %.4s in %s, whose manifest is %v %.4s", id, cl.Hash, c.region, ok, m.FrameSHA256)
			return
		}
		if !c.entry(id, cl.Hash) {
			return
		}
	}
	if cl.Hash != sent {
		c.conflict(id, sent, sent)
	} else {
		c.ack(id, sent)
	}
	if cl.State == claims.Durable && c.rnd.IntN(2) == 0 {
		_, _ = c.do(claims.Op{Kind: claims.DoSettle, Identity: id, Hash: cl.Hash, ID: cl.ID})
	}
}

// ack: the sender is told that its batch is accepted, or was before.
func (c *client) ack(id identity.Batch, hash identity.Digest) {
	c.answers++
	if was, ok := c.acked[id]; ok && was != hash && !c.forgives(id) {
		c.fail("%s was acknowledged as %.4s and as %.4s", id, was, hash)
	}
	for other := range c.acked {
		if other != id && other.Intersects(id) && !c.forgiven[other] {
			c.fail("%s was acknowledged, and meets %s, which was too", id, other)
		}
	}
	if (slices.Contains(c.refused[id], hash) || c.ranged[id]) && !c.forgives(id) {
		c.fail("%s was acknowledged as %.4s after it was refused", id, hash)
	}
	_, entered := c.lost[id]
	entered = entered || c.alone[id] == hash
	for _, of := range c.entries {
		h, ok := of[id]
		entered = entered || ok && h == hash
	}
	if !entered {
		c.fail("%s was acknowledged as %.4s, and no journal has it", id, hash)
	}
	c.acked[id] = hash
}

// conflict: the sender is told that the identity is another frame's.
func (c *client) conflict(id identity.Batch, claimed, sent identity.Digest) {
	if claimed != sent {
		return // the frame that stood in the way is refused itself: the sender tries again
	}
	c.answers++
	if was, ok := c.acked[id]; ok && was == sent && !c.forgives(id) {
		c.fail("%s was acknowledged as %.4s, and then refused", id, sent)
	}
	c.refused[id] = append(c.refused[id], sent)
}

// reconcile is the reconciler of a region: it goes on with the claims that nobody else does, and folds.
func (a *actor) reconcile() {
	after := ""
	a.serve(func(c *client) {
		v, err := c.g.BeginScan(claims.Scan{Home: c.region, States: []claims.State{claims.Claimed, claims.Durable}, Before: c.now.UnixNano() + 1, After: after, Limit: 4})
		if err != nil {
			return
		}
		res, err := simEtcd{c.actor}.Commit(context.Background(), v.Txn)
		page, _, err := c.g.EndScan(v, res, err)
		if err != nil {
			return
		}
		after = page.Next
		for _, cl := range page.Claims {
			c.goOn(cl)
		}
		if c.rnd.IntN(3) == 0 && !c.quiet {
			id := identity.Batch{Agent: "a", Boot: []string{"b", "c", "old"}[c.rnd.IntN(3)]}
			c.fold(id)
		}
	})
}

// fold folds what is settled of a boot, or forgets the boot where nothing of it is left in etcd.
func (c *client) fold(id identity.Batch) {
	n, _, m, err := c.folder.Boot(context.Background(), id.BootOf(), folds.Due{Before: c.now.UnixNano(), Least: 1 + c.rnd.IntN(2)}, c.once)
	if c.folds += n; n > 0 {
		c.folded.Moved(m)
	}
	if n > 0 || err != nil || c.rnd.IntN(3) > 0 {
		return
	}
	a, err := c.once(claims.Op{Kind: claims.DoFoldable, Identity: id})
	if err == nil && a.Folds.Modified > 0 {
		a, err = c.once(claims.Op{Kind: claims.DoForget, Identity: id, Base: a.Folds.Modified})
		if err == nil && a.Outcome == claims.Applied {
			c.forgotten++
		}
	}
}

func (c *client) goOn(cl claims.Claim) {
	// Sometimes the collector is left to it.
	if !c.quiet && c.rnd.IntN(3) > 0 {
		return
	}
	m, ok, err := c.stands(cl.Identity)
	op := claims.Op{Identity: cl.Identity, Hash: cl.Hash, ID: cl.ID}
	switch {
	case err != nil:
		return
	case cl.State == claims.Durable:
		if !ok || m.FrameSHA256 != cl.Hash {
			c.fail("%+v is durable, and its manifest is %v %.4s", cl, ok, m.FrameSHA256)
			return
		}
		if !c.entry(cl.Identity, cl.Hash) {
			return
		}
		op.Kind = claims.DoSettle
	case ok && m.FrameSHA256 == cl.Hash:
		if c.affirm(m, cl) != nil {
			return
		}
		op.Kind = claims.DoComplete
	case ok && !cl.Recovered && !cl.Bound:
		op.Kind, op.Hash = claims.DoReplace, m.FrameSHA256
	default:
		// Of a recovered one possible only for what a copy of etcd has: the next request finds that it is one.
		op.Kind = claims.DoRelease
	}
	_, _ = c.do(op)
}
