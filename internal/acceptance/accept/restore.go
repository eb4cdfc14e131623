package accept

import (
	"context"
	"errors"
	"fmt"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/lru"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Reference is a record that stands for a frame: an identity manifest, or the quarantine record of a frame that lost.
type Reference struct {
	// Key of the record, ID and SHA256 of the frame.
	Key    string
	ID     identity.Batch
	SHA256 identity.Digest
	// Bytes of the frame; 0 where the record does not say.
	Bytes uint64
	// FrameKey is where a reader looks first. Inline: that is the record itself.
	FrameKey string
	Inline   bool
	// Quarantined: the frame lost a conflict.
	Quarantined bool

	hour timegrid.Hour
}

// ReadReference reads the record under key. Errors wrap the store's, record.ErrCorrupt or record.ErrNewerVersion: nothing
// is concluded from a record that can't be read, is another identity's or another authority's.
func ReadReference(ctx context.Context, g objstore.Getter, authority, key string) (Reference, error) {
	body, _, err := g.Get(ctx, key, objstore.GetOptions{Limit: MaxObjectBytes})
	if err != nil {
		return Reference{}, err
	}
	if id, err := layout.ParseAccepted(key); err == nil {
		m, err := ParseManifest(body)
		if err == nil && (m.Identity != id || m.AuthorityID != authority) {
			err = ManifestKind.Corrupt(key, "it is of %s and the authority %q", m.Identity, m.AuthorityID)
		}
		return Reference{Key: key, ID: id, SHA256: m.FrameSHA256, Bytes: m.FrameBytes, FrameKey: m.FrameKey(), Inline: m.Inline, hour: timegrid.HourOfNS(m.MaxTime)}, ManifestKind.Wrap(key, err)
	}
	id, sum, err := layout.ParseQuarantine(key)
	if err != nil {
		return Reference{}, err
	}
	c, err := ParseConflictRecord(body)
	if err == nil && (c.Identity != id || c.SubmittedSHA256 != sum || c.AuthorityID != authority) {
		err = ConflictKind.Corrupt(key, "it is of %s %s and the authority %q", c.Identity, c.SubmittedSHA256, c.AuthorityID)
	}
	return Reference{Key: key, ID: id, SHA256: sum, Bytes: c.SubmittedBytes, FrameKey: c.FrameKey(), Inline: c.Inline(), Quarantined: true}, ConflictKind.Wrap(key, err)
}

// ErrOtherBytes says that bytes are not those of the frame that a record stands for.
var ErrOtherBytes = errors.New("the bytes are not the frame's")

// ErrRecordHasFrame says that a record carries its frame, which nothing can mend: records are never written again.
var ErrRecordHasFrame = errors.New("the record carries its frame itself")

// Restored is what Restore has done.
type Restored struct {
	// Key of the generation that holds the frame and is not condemned.
	Key string
	// Written: this call created it. Otherwise it was there.
	Written bool
	// Skipped generations that can't be relied on, and stay as they are.
	Skipped int
}

// Restore puts a frame back whose blob is damaged or gone: as a duplicate does whose sender has the bytes, but it believes no
// checksum that the store has noted of what exists, and compares bytes. The record under key is read first, and names the
// hash that the bytes must have. No record is written, no object is overwritten or deleted: generations are created, from the
// first on that is neither damaged, gone nor condemned; why that is safe is said in docs/protocol/acceptance.md.
func Restore(ctx context.Context, c Config, key string, frame []byte) (out Restored, err error) {
	ref, err := ReadReference(ctx, c.Store, c.AuthorityID, key)
	if err != nil {
		return out, fmt.Errorf("restore: %w", err)
	}
	if ref.Inline {
		return out, fmt.Errorf("restore %s: %w", key, ErrRecordHasFrame)
	}
	if identity.Sum(frame) != ref.SHA256 || ref.Bytes > 0 && ref.Bytes != uint64(len(frame)) {
		return out, fmt.Errorf("restore %s: %w", key, ErrOtherBytes)
	}
	if c.Policy == (Policy{}) {
		c.Policy = DefaultPolicy()
	}
	p := &Protocol{store: c.Store, authorityID: c.AuthorityID, collectorID: c.CollectorID, clock: c.Clock, policy: c.Policy, boots: lru.New[identity.Boot, string](1)}
	created := map[string]bool{}
	p.events = Events{
		BlobCreated:       func(key string, _ int) { created[key] = true },
		GenerationSkipped: func(string, Skip) { out.Skipped++ },
	}
	b := blob{p: p, frame: frame, sha: ref.SHA256, id: ref.ID, hour: ref.hour, found: !ref.Quarantined, deep: true}
	if err := b.ensure(ctx); err != nil {
		return out, err
	}
	// After the reference and the generation, as on the path of a duplicate.
	if err := b.verifyNotCondemned(ctx); err != nil {
		return out, err
	}
	out.Key = layout.Blob(b.sha, b.gen)
	out.Written = created[out.Key]
	return out, nil
}
