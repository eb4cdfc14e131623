package reconciler

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/resolution"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	reconcilerv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/reconciler/v1"
)

// ReasonResolutionStands is the ErrorInfo reason of a decision about something that was decided otherwise.
const ReasonResolutionStands = "RESOLUTION_STANDS"

const (
	// conflictsTimeout bounds a call, which reads the store.
	conflictsTimeout = 30 * time.Second
	// conflictReaders is how many records of one call are read at a time.
	conflictReaders = 16
	// maxOverlapping bounds the boots with overlaps of a first page, and defaultDifferences and maxDifferences those
	// of a comparison.
	maxOverlapping     = 1000
	defaultDifferences = 20
	maxDifferences     = 1000
)

// conflicts lists, compares and settles conflicts.
type conflicts struct {
	log *resolution.Log
	// comparing is held over a comparison, which decodes two frames.
	comparing sync.Mutex
}

// authority reads the id of the bucket and the decisions that are new.
func (g server) authority(ctx context.Context) (string, error) {
	id, err := g.s.journal.authority(ctx)
	if err != nil {
		return "", err
	}
	return id, g.s.conflicts.log.Read(ctx, id)
}

// readConflicts is authority for calls that only look: what was decided before a record that can't be read is shown.
func (g server) readConflicts(ctx context.Context) error {
	_, err := g.authority(ctx)
	if record.Opaque(err) {
		g.s.log.Error("a resolution can't be read", "error", err)
		return nil
	}
	return err
}

// readEach calls do for each of n records, a few at a time, until one fails: one after the other, a page would take longer
// than a call may.
func readEach(ctx context.Context, n int, do func(context.Context, int) error) error {
	e, ctx := errgroup.WithContext(ctx)
	e.SetLimit(conflictReaders)
	for i := range n {
		e.Go(func() error { return do(ctx, i) })
	}
	return e.Wait()
}

// ListConflicts lists the quarantine records, with what was decided and done about each, and then boot clashes.
func (g server) ListConflicts(ctx context.Context, req *reconcilerv1.ListConflictsRequest) (*reconcilerv1.ListConflictsResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, conflictsTimeout)
	defer cancel()
	size, err := pageSize(req.GetPageSize())
	if err != nil {
		return nil, err
	}
	lost, clashed := layout.QuarantinePrefix, layout.ClashPrefix
	if a := req.GetAgentId(); a != "" {
		lost, clashed = layout.OfAgent(lost, a), layout.OfAgent(clashed, a)
	}
	after, err := base64.RawURLEncoding.DecodeString(req.GetPageToken())
	if err != nil || len(after) > 0 && !strings.HasPrefix(string(after), lost) && !strings.HasPrefix(string(after), clashed) {
		return nil, invalid("page_token is not from a response before")
	}
	if err := g.readConflicts(ctx); err != nil {
		return nil, err
	}
	out := &reconcilerv1.ListConflictsResponse{}
	if len(after) == 0 {
		out.Overlaps = g.overlapping(req.GetAgentId())
		for _, r := range g.s.conflicts.log.Senders(req.GetAgentId()) {
			out.Quarantined = append(out.Quarantined, resolutionView(r))
		}
	}
	next := string(after)
	if !strings.HasPrefix(next, clashed) {
		var n int
		if n, next, err = g.listLost(ctx, out, lost, next, size, req.GetUnresolved()); err != nil {
			return nil, err
		}
		if next == "" { // that was the last one
			next = clashed
		}
		size -= n
	}
	if size > 0 && strings.HasPrefix(next, clashed) {
		if next, err = g.listClashes(ctx, out, clashed, next, size); err != nil {
			return nil, err
		}
	}
	if next != "" {
		out.NextPageToken = base64.RawURLEncoding.EncodeToString([]byte(next))
	}
	return out, nil
}

// listLost adds quarantine records to a page. It returns how many keys it has seen, and the one to go on from.
func (g server) listLost(ctx context.Context, out *reconcilerv1.ListConflictsResponse, prefix, after string, size int, unresolved bool) (int, string, error) {
	page, err := g.s.store.List(ctx, objstore.ListOptions{Prefix: prefix, StartAfter: after, Limit: size})
	if err != nil {
		return 0, "", err
	}
	var ids []identity.Batch
	var sums []identity.Digest
	for _, o := range page.Objects {
		id, sum, err := layout.ParseQuarantine(o.Key)
		if err != nil {
			continue // a foreign key; audits report it
		}
		if unresolved && g.s.conflicts.log.Of(id, sum) != nil {
			continue
		}
		ids, sums = append(ids, id), append(sums, sum)
	}
	out.Conflicts = make([]*reconcilerv1.Conflict, len(ids))
	err = readEach(ctx, len(ids), func(ctx context.Context, i int) (err error) {
		out.Conflicts[i], _, err = g.conflict(ctx, ids[i], sums[i])
		return err
	})
	return len(page.Objects), page.Next, err
}

// listClashes adds boot clashes to a page, and returns the key to go on from.
func (g server) listClashes(ctx context.Context, out *reconcilerv1.ListConflictsResponse, prefix, after string, size int) (string, error) {
	page, err := g.s.store.List(ctx, objstore.ListOptions{Prefix: prefix, StartAfter: after, Limit: size})
	if err != nil {
		return "", err
	}
	found := make([]*reconcilerv1.BootClash, len(page.Objects))
	err = readEach(ctx, len(found), func(ctx context.Context, i int) (err error) {
		found[i], err = g.clash(ctx, page.Objects[i].Key)
		return err
	})
	for _, c := range found {
		if c != nil {
			out.Clashes = append(out.Clashes, c)
		}
	}
	return page.Next, err
}

// clash reads one record of a boot clash, and whom the boot belongs to; nil for a foreign key, which fsck reports.
func (g server) clash(ctx context.Context, key string) (*reconcilerv1.BootClash, error) {
	boot, _, err := layout.ParseClash(key)
	if err != nil {
		return nil, nil
	}
	c := &reconcilerv1.BootClash{AgentId: boot.Agent, BootId: boot.Boot, ClashKey: key}
	body, _, err := g.s.store.Get(ctx, key, objstore.GetOptions{Limit: int64(resolution.ClashKind.MaxBytes)})
	var rec resolution.Clash
	if err == nil {
		rec, err = resolution.ParseClash(key, body)
	}
	switch {
	case err == nil:
		c.SpoolId, c.ObservedAtUnixNs, c.CollectorId, c.Peer = rec.SpoolID, rec.ObservedAt, rec.CollectorID, rec.Peer
	case record.Opaque(err):
		c.Error = err.Error()
	default:
		return nil, err
	}
	body, _, err = g.s.store.Get(ctx, layout.Boot(boot), objstore.GetOptions{Limit: accept.MaxRecordBytes})
	switch {
	case err == nil:
		if owner, err := accept.ParseBootRecord(body); err == nil {
			c.OwnerSpoolId, c.OwnerSeenAtUnixNs, c.OwnerCollectorId = owner.SpoolID, owner.FirstSeen, owner.CollectorID
		}
	case errors.Is(err, objstore.ErrNotFound), objstore.Unreadable(err): // a collector with a local spool has the claim
	default:
		return nil, err
	}
	return c, nil
}

// overlapping lists the boots in which identities overlap, as far as the journal was read.
func (g server) overlapping(agent string) (out []*reconcilerv1.OverlappingBoot) {
	set, _, _ := g.s.journal.status()
	var after identity.Boot
	for {
		list := set.After(after, agent, maxPage)
		for _, l := range list {
			if o := l.Overlaps(maxRanges); len(o) > 0 {
				out = append(out, &reconcilerv1.OverlappingBoot{AgentId: l.Boot().Agent, BootId: l.Boot().Boot, Overlaps: ranges(o)})
			}
			after = l.Boot()
		}
		if len(list) < maxPage || len(out) >= maxOverlapping {
			return out[:min(len(out), maxOverlapping)]
		}
	}
}

// conflict reads one quarantine record, and what was decided and done. A record that can't be read is a part of the
// answer: it must not hide the others.
func (g server) conflict(ctx context.Context, id identity.Batch, sum identity.Digest) (*reconcilerv1.Conflict, *accept.ConflictRecord, error) {
	c := &reconcilerv1.Conflict{AgentId: id.Agent, BootId: id.Boot, SeqStart: id.SeqStart, SeqEnd: id.SeqEnd, SubmittedSha256: sum.String(),
		QuarantineKey: layout.Quarantine(id, sum), ParkedId: layout.SeqName(id.SeqStart, id.SeqEnd) + "-" + sum.String()[:16]}
	body, _, err := g.s.store.Get(ctx, c.QuarantineKey, objstore.GetOptions{Limit: accept.MaxObjectBytes})
	var rec accept.ConflictRecord
	if err == nil {
		rec, err = accept.ParseConflictRecord(body)
	}
	switch {
	case err == nil:
		c.AcceptedSha256, c.ObservedAtUnixNs, c.CollectorId = rec.AcceptedSHA256.String(), rec.ObservedAt, rec.CollectorID
		c.AcceptedManifestKey, c.AcceptedBlobKey, c.SubmittedBlobKey = rec.ManifestKey(), cmp.Or(rec.AcceptedBlobKey, rec.ManifestKey()), rec.FrameKey()
		if rec.Met != (identity.Batch{}) {
			c.AcceptedSeqStart, c.AcceptedSeqEnd = &rec.Met.SeqStart, &rec.Met.SeqEnd
		}
	case record.Opaque(err):
		c.Error = err.Error()
	default:
		return nil, nil, err
	}
	if c.ParkedAt, err = g.parkedAt(ctx, id, sum, c.GetParkedId()); err != nil {
		return nil, nil, err
	}
	d := g.s.conflicts.log.Of(id, sum)
	if d == nil {
		return c, &rec, nil
	}
	c.Resolution = resolutionView(d)
	key := layout.Settled(id, sum)
	switch body, _, err := g.s.store.Get(ctx, key, objstore.GetOptions{Limit: int64(resolution.SettledKind.MaxBytes)}); {
	case errors.Is(err, objstore.ErrNotFound):
	case err != nil && !objstore.Unreadable(err):
		return nil, nil, err
	default:
		c.Settlement = &reconcilerv1.Settlement{}
		if s, err := resolution.ParseSettled(key, body); err == nil {
			c.Settlement = &reconcilerv1.Settlement{SettledAtUnixNs: s.SettledAt, CollectorId: s.CollectorID, KeptBootId: s.KeptBootID, KeptSeqEnd: s.KeptSeqEnd}
		}
	}
	return c, &rec, nil
}

// parkedAt is where an agent says that it has the frame; nil where none has said so.
func (g server) parkedAt(ctx context.Context, id identity.Batch, sum identity.Digest, parkedID string) (*reconcilerv1.ParkedAt, error) {
	key := layout.Parked(id, sum)
	body, _, err := g.s.store.Get(ctx, key, objstore.GetOptions{Limit: int64(resolution.ParkedKind.MaxBytes)})
	var p resolution.Parked
	if err == nil {
		p, err = resolution.ParseParked(key, body)
	}
	switch {
	case err == nil:
	case errors.Is(err, objstore.ErrNotFound), record.Opaque(err):
		return nil, nil
	default:
		return nil, err
	}
	at := &reconcilerv1.ParkedAt{Host: p.Host, Page: p.Page, Peer: p.Peer, ObservedAtUnixNs: p.ObservedAt, CollectorId: p.CollectorID}
	if p.Directory != "" {
		at.File = p.Directory + "/" + parkedID + ".lmbatch"
	}
	return at, nil
}

// GetConflict compares both frames of a conflict.
func (g server) GetConflict(ctx context.Context, req *reconcilerv1.GetConflictRequest) (*reconcilerv1.GetConflictResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, conflictsTimeout)
	defer cancel()
	id, sum, err := nameOf(req.GetAgentId(), req)
	if err != nil {
		return nil, err
	}
	limit := int(req.GetDifferences())
	if limit <= 0 {
		limit = defaultDifferences
	}
	if err := g.readConflicts(ctx); err != nil {
		return nil, err
	}
	c, rec, err := g.conflict(ctx, id, sum)
	if errors.Is(err, objstore.ErrNotFound) {
		return nil, notAConflict(id, sum)
	}
	if err != nil {
		return nil, err
	}
	out := &reconcilerv1.GetConflictResponse{Conflict: c, Accepted: &reconcilerv1.FrameSide{}, Submitted: &reconcilerv1.FrameSide{}}
	if c.GetError() != "" {
		return out, nil
	}
	g.s.conflicts.comparing.Lock()
	defer g.s.conflicts.comparing.Unlock()
	var a, b frame.Batch
	aOK, err := g.winner(ctx, rec, &a, out.GetAccepted())
	if err != nil {
		return nil, err
	}
	bOK, err := g.loser(ctx, rec, &b, out.GetSubmitted())
	if err != nil || !aOK || !bOK {
		return out, err
	}
	d := resolution.Compare(&a, &b, min(limit, maxDifferences))
	out.Same, out.Different, out.OnlyAccepted, out.OnlySubmitted = d.Same, d.Different, d.OnlyAccepted, d.OnlySubmitted
	for _, r := range d.Differences {
		out.Differences = append(out.Differences, &reconcilerv1.RecordDifference{Series: r.Series, TimeUnixNs: r.Time,
			AcceptedSeq: r.AcceptedSeq, SubmittedSeq: r.SubmittedSeq, Accepted: r.Accepted, Submitted: r.Submitted})
	}
	return out, nil
}

// winner reads the accepted frame.
func (g server) winner(ctx context.Context, rec *accept.ConflictRecord, b *frame.Batch, side *reconcilerv1.FrameSide) (bool, error) {
	body, _, err := g.s.store.Get(ctx, rec.ManifestKey(), objstore.GetOptions{Limit: accept.MaxObjectBytes})
	if errors.Is(err, objstore.ErrNotFound) && g.s.cfg.Region != "" {
		side.Error = fmt.Sprintf("%s is not in this bucket: another region has accepted it, which lmctl identity trace tells", rec.ManifestKey())
		return false, nil
	}
	if err == nil {
		var m accept.Manifest
		if m, err = accept.ParseManifest(body); err == nil {
			// With several regions the key may have the frame that lost, which would then be compared with itself.
			if m.FrameSHA256 != rec.AcceptedSHA256 {
				side.Error = fmt.Sprintf("the accepted frame %s is not the one that this bucket's manifest has, %s: another region has it", rec.AcceptedSHA256, m.FrameSHA256)
				return false, nil
			}
			side.AtUnixNs, side.CollectorId = m.AcceptedAt, m.CollectorID
			body, err = accept.ReadFrame(ctx, g.s.store, m.FrameKey(), m.FrameSHA256, m.FrameBytes)
		}
	}
	return decodeSide(body, err, b, side)
}

// loser reads the frame that lost.
func (g server) loser(ctx context.Context, rec *accept.ConflictRecord, b *frame.Batch, side *reconcilerv1.FrameSide) (bool, error) {
	side.AtUnixNs, side.CollectorId = rec.ObservedAt, rec.CollectorID
	body, err := accept.ReadFrame(ctx, g.s.store, rec.FrameKey(), rec.SubmittedSHA256, objstore.DefaultGetLimit)
	return decodeSide(body, err, b, side)
}

// decodeSide decodes a frame and describes it; what is wrong with its bytes is a part of the description, and an
// error only that the store does not answer.
func decodeSide(body []byte, err error, b *frame.Batch, side *reconcilerv1.FrameSide) (bool, error) {
	var gone *accept.FrameError
	switch {
	case err == nil:
		err = frame.Decode(body, b, frame.Limits{})
	case errors.As(err, &gone), errors.Is(err, objstore.ErrNotFound), record.Opaque(err):
	default:
		return false, err
	}
	if err != nil {
		side.Error = err.Error()
		return false, nil
	}
	side.FrameBytes, side.Records = uint64(len(body)), b.Records()
	for _, p := range b.Groups {
		side.Series += uint64(len(p.Series))
	}
	side.MinTimeUnixNs, side.MaxTimeUnixNs = frame.TimeRange(b)
	return true, nil
}

// named is what names a parked batch.
type named interface {
	GetBootId() string
	GetSeqStart() uint64
	GetSeqEnd() uint64
	GetSubmittedSha256() string
}

func nameOf(agent string, n named) (identity.Batch, identity.Digest, error) {
	id := identity.Batch{Agent: agent, Boot: n.GetBootId(), SeqStart: n.GetSeqStart(), SeqEnd: n.GetSeqEnd()}
	sum, err := identity.ParseDigest(n.GetSubmittedSha256())
	if err == nil {
		err = id.Validate()
	}
	if err != nil {
		return id, sum, invalid(err.Error())
	}
	return id, sum, nil
}

func notAConflict(id identity.Batch, sum identity.Digest) error {
	return rpc.Failure{Code: codes.NotFound, Reason: rpc.ReasonNotFound, Message: fmt.Sprintf("there is no quarantine record %s", layout.Quarantine(id, sum))}.Err()
}

// ResolveConflicts decides about parked batches.
func (g server) ResolveConflicts(ctx context.Context, req *reconcilerv1.ResolveConflictsRequest) (*reconcilerv1.ResolveConflictsResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, conflictsTimeout)
	defer cancel()
	r := resolution.Resolution{Action: resolution.Action(req.GetAction()), AgentID: req.GetAgentId(), Note: req.GetNote()}
	if !r.Action.Settles() {
		return nil, invalid(fmt.Sprintf("action is %.64q: want %s or %s", r.Action, resolution.AcceptExisting, resolution.KeepBoth))
	}
	if n := len(req.GetConflicts()); n == 0 || n > resolution.MaxConflicts {
		return nil, invalid(fmt.Sprintf("%d conflicts: want 1 to %d", n, resolution.MaxConflicts))
	}
	for _, n := range req.GetConflicts() {
		id, sum, err := nameOf(req.GetAgentId(), n)
		if err != nil {
			return nil, err
		}
		r.Conflicts = append(r.Conflicts, resolution.Conflict{BootID: id.Boot, SeqStart: id.SeqStart, SeqEnd: id.SeqEnd, SubmittedSHA256: sum})
	}
	err := readEach(ctx, len(r.Conflicts), func(ctx context.Context, i int) error {
		// Only what is kept in quarantine may be dropped.
		id, sum := r.Conflicts[i].Of(r.AgentID), r.Conflicts[i].SubmittedSHA256
		_, err := g.s.store.Head(ctx, layout.Quarantine(id, sum))
		if errors.Is(err, objstore.ErrNotFound) {
			return notAConflict(id, sum)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	stands, wrote, err := g.decide(ctx, r)
	if err != nil {
		return nil, err
	}
	return &reconcilerv1.ResolveConflictsResponse{Resolution: resolutionView(stands), Decided: wrote}, nil
}

// SetQuarantine decides about a sender.
func (g server) SetQuarantine(ctx context.Context, req *reconcilerv1.SetQuarantineRequest) (*reconcilerv1.SetQuarantineResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, conflictsTimeout)
	defer cancel()
	r := resolution.Resolution{Action: resolution.Quarantine, AgentID: req.GetAgentId(), BootID: req.GetBootId(), Note: req.GetNote()}
	if req.GetRelease() {
		r.Action = resolution.Release
	}
	stands, wrote, err := g.decide(ctx, r)
	if err != nil {
		return nil, err
	}
	return &reconcilerv1.SetQuarantineResponse{Resolution: resolutionView(stands), Decided: wrote}, nil
}

// decide adds the decision of who asks to the log.
func (g server) decide(ctx context.Context, r resolution.Resolution) (*resolution.Resolution, bool, error) {
	p, ok := rpc.PrincipalFrom(ctx)
	if !ok || p.Name == "" {
		p.Name = "anonymous"
	}
	var err error
	if r.AuthorityID, err = g.authority(ctx); err != nil {
		return nil, false, err
	}
	r.Principal, r.DecidedAt, r.AttemptID = p.Name, max(g.s.now().UnixNano(), 0), rand.Text()
	if err := r.Check(); err != nil {
		return nil, false, invalid(err.Error())
	}
	stands, wrote, err := g.s.conflicts.log.Decide(ctx, r)
	var other *resolution.StandingError
	switch {
	case errors.As(err, &other):
		return nil, false, rpc.Failure{Code: codes.FailedPrecondition, Reason: ReasonResolutionStands,
			Message: fmt.Sprintf("%v since %s", other, time.Unix(0, other.By.DecidedAt).UTC().Format(time.RFC3339))}.Err()
	case errors.Is(err, resolution.ErrNotHeld):
		return nil, false, rpc.Failure{Code: codes.NotFound, Reason: rpc.ReasonNotFound, Message: err.Error()}.Err()
	case errors.Is(err, resolution.ErrFull):
		return nil, false, rpc.Failure{Code: codes.ResourceExhausted, Reason: rpc.ReasonOverloaded, Message: err.Error()}.Err()
	case err != nil:
		return nil, false, err
	}
	if wrote {
		g.s.log.Info("decided", "resolution", stands.Number, "action", string(stands.Action), "agent_id", stands.AgentID, "boot_id", stands.BootID,
			"conflicts", len(r.Conflicts), "principal", stands.Principal, "note", stands.Note)
	}
	return stands, wrote, nil
}

func resolutionView(r *resolution.Resolution) *reconcilerv1.Resolution {
	return &reconcilerv1.Resolution{Number: r.Number, Action: string(r.Action), AgentId: r.AgentID, BootId: r.BootID, Principal: r.Principal, DecidedAtUnixNs: r.DecidedAt, Note: r.Note}
}
