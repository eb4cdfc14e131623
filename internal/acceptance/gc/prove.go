package gc

import (
	"context"
	"errors"
	"fmt"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// readIdentity reads the frame's identity from its header. The bytes of a hash never
// change, so it may be read at any time before the proof.
func (c *Collector) readIdentity(ctx context.Context, of *Candidate) (identity.Batch, *Kept) {
	k := *of
	head, info, err := c.cfg.Store.Get(ctx, k.Key, objstore.GetOptions{Length: frame.MaxHeaderBytes})
	switch {
	case errors.Is(err, objstore.ErrNotFound):
		return identity.Batch{}, keep(k, Gone, "")
	case objstore.Unreadable(err):
		return identity.Batch{}, keep(k, FrameUnreadable, err.Error())
	case err != nil:
		return identity.Batch{}, keep(k, StoreFailed, err.Error())
	}
	h, err := frame.ParseHeader(head)
	if err != nil {
		return identity.Batch{}, keep(k, FrameUnreadable, err.Error())
	}
	// A blob of another length is truncated or foreign. Its header may be whole, but nothing
	// shows that the bytes have the hash in the key, so the identity proves nothing.
	if uint64(k.Size) != h.FrameLen() {
		return identity.Batch{}, keep(k, FrameUnreadable, fmt.Sprintf("%d bytes, the header says %d", k.Size, h.FrameLen()))
	}
	of.version = info.Version
	return h.Identity, nil
}

// prove searches for a reference to the hash. The frame determines its identity, so only the
// identity's manifest and one quarantine record can refer to it: these two reads are the whole
// proof. Nil means that there is no reference; any error or unusable record keeps the blob.
func (c *Collector) prove(ctx context.Context, of *Candidate, id identity.Batch) *Kept {
	k := *of
	stored, err := c.read(ctx, layout.Accepted(id))
	switch {
	case errors.Is(err, objstore.ErrNotFound):
	case objstore.Unreadable(err):
		return keep(k, RecordUnreadable, err.Error())
	case err != nil:
		return keep(k, StoreFailed, err.Error())
	default:
		m, err := accept.ParseManifest(stored)
		if err == nil && (m.Identity != id || m.AuthorityID != c.cfg.AuthorityID) {
			err = fmt.Errorf("it is of %s and the authority %q", m.Identity, m.AuthorityID)
		}
		if err != nil {
			return keep(k, RecordUnreadable, fmt.Sprintf("%s: %v", layout.Accepted(id), err))
		}
		// A manifest that carries the frame, whose hash was just checked, refers to no blob: whoever found it relies on
		// the manifest alone. So the blob is the orphan of a call that wrote it before it lost to that manifest.
		if m.FrameSHA256 == k.SHA256 && !m.Inline {
			return keep(k, Accepted, layout.Accepted(id))
		}
		of.carried = m.FrameSHA256 == k.SHA256
	}
	// The key alone names identity and hash, so a record of any content is a reference.
	quarantine := layout.Quarantine(id, k.SHA256)
	switch _, err := c.read(ctx, quarantine); {
	case err == nil, objstore.Unreadable(err):
		return keep(k, Quarantined, quarantine)
	case !errors.Is(err, objstore.ErrNotFound):
		return keep(k, StoreFailed, err.Error())
	}
	return nil
}

func (c *Collector) read(ctx context.Context, key string) ([]byte, error) {
	b, _, err := c.cfg.Store.Get(ctx, key, objstore.GetOptions{Limit: accept.MaxObjectBytes})
	return b, err
}

func keep(k Candidate, r Reason, detail string) *Kept { return &Kept{k.Key, r, detail} }
