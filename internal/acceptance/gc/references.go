package gc

import (
	"context"
	"strings"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// References tells which frames are known to be named by an accepted batch or a quarantine
// record. It selects candidates and proves nothing: what it does not know costs a proof, and
// what it wrongly knows keeps an orphan.
type References interface {
	// Named reports for each of the blobs, which are given in key order, whether a reference to its hash
	// is known. An error means that the references could not be read: then there is no plan.
	Named(ctx context.Context, blobs []objstore.Info) ([]bool, error)
}

// ReverseReferences are the derived keys accepted-by-blob and quarantine-by-blob, which a
// reconciler writes where derived is objects. They are listed beside the blobs: both are ordered by hash.
type ReverseReferences struct{ Store objstore.Lister }

// Named implements References.
func (r ReverseReferences) Named(ctx context.Context, blobs []objstore.Info) ([]bool, error) {
	named := make([]bool, len(blobs))
	if len(blobs) == 0 {
		return named, nil
	}
	for _, family := range []string{layout.AcceptedByBlobPrefix, layout.QuarantineByBlobPrefix} {
		// Without it the references of each part of the blobs would be listed from the beginning. The stem
		// without its generation sorts before all references of the same hash.
		refs := cursor{store: r.Store, prefix: family, after: family + stem(strings.TrimPrefix(blobs[0].Key, layout.RawBlobsPrefix))}
		for i, b := range blobs {
			found, err := refs.seek(ctx, family+stem(strings.TrimPrefix(b.Key, layout.RawBlobsPrefix))+"/")
			if err != nil {
				return nil, err
			}
			named[i] = named[i] || found
		}
	}
	return named, nil
}

// JournalReferences are the entries of the journal: of accepted batches, of duplicates and of
// conflicts. Nothing else is written for each batch where derived is segments.
type JournalReferences struct {
	Store     journal.FollowerStore
	Authority string
}

// Named implements References by one reading of the whole journal, however many the blobs are;
// so plans of many blobs cost less than many plans.
func (j JournalReferences) Named(ctx context.Context, blobs []objstore.Info) ([]bool, error) {
	of := make(map[identity.Digest]bool, len(blobs))
	for _, b := range blobs {
		if d, _, err := layout.ParseBlob(b.Key); err == nil {
			of[d] = false
		}
	}
	mark := func(entries []journal.Entry) {
		for i := range entries {
			if _, asked := of[entries[i].SHA256]; asked {
				of[entries[i].SHA256] = true
			}
		}
	}
	f, err := journal.NewFollower(journal.FollowerConfig{
		Store: j.Store, Authority: j.Authority,
		Segment: func(_ context.Context, s *journal.Segment) error { mark(s.Entries); return nil },
		Folded:  func(_ context.Context, e []journal.Entry) error { mark(e); return nil },
	})
	if err != nil {
		return nil, err
	}
	if _, err := f.Poll(ctx); err != nil {
		return nil, err
	}
	named := make([]bool, len(blobs))
	for i, b := range blobs {
		if d, _, err := layout.ParseBlob(b.Key); err == nil {
			named[i] = of[d]
		}
	}
	return named, nil
}

// stem cuts generation and extension off a blob key. Stems sort like the hashes.
func stem(key string) string {
	slash := strings.LastIndexByte(key, '/')
	if dot := strings.IndexByte(key[slash+1:], '.'); dot >= 0 {
		return key[:slash+1+dot]
	}
	return key
}

// cursor reads a listing page by page.
type cursor struct {
	store         objstore.Lister
	prefix, after string
	page          []objstore.Info
	at            int
	done          bool
}

func (k *cursor) peek(ctx context.Context) (objstore.Info, bool, error) {
	for k.at == len(k.page) {
		if k.done {
			return objstore.Info{}, false, nil
		}
		page, err := k.store.List(ctx, objstore.ListOptions{Prefix: k.prefix, StartAfter: k.after})
		if err != nil {
			return objstore.Info{}, false, err
		}
		k.page, k.at, k.after, k.done = page.Objects, 0, page.Next, page.Next == ""
	}
	return k.page[k.at], true, nil
}

// seek skips keys less than prefix and reports whether the key that it stops at begins with it. That key stays unread, because several generations of one blob ask for it.
func (k *cursor) seek(ctx context.Context, prefix string) (bool, error) {
	for {
		info, ok, err := k.peek(ctx)
		if err != nil || !ok {
			return false, err
		}
		if info.Key >= prefix {
			return strings.HasPrefix(info.Key, prefix), nil
		}
		k.at++
	}
}
