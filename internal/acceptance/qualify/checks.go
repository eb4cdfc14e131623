package qualify

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// freshness is how many keys the consistency checks write and read.
const freshness = 4

// readAfterWrite reads each key before it writes it too: a store or proxy that caches "not found" fails the read after it.
func readAfterWrite(ctx context.Context, p *probe) error {
	for i := range freshness {
		key, body := p.key("read-"+strconv.Itoa(i)), p.body("read "+strconv.Itoa(i))
		if _, _, err := p.store.Get(ctx, key, objstore.GetOptions{}); !errors.Is(err, objstore.ErrNotFound) {
			return refused("a get before the write", err, objstore.ErrNotFound)
		}
		if err := p.create(ctx, key, body); err != nil {
			return err
		}
		if err := p.holds(ctx, key, body); err != nil {
			return fmt.Errorf("read after write: %w", err)
		}
		info, err := p.store.Head(ctx, key)
		if err != nil {
			return fmt.Errorf("read after write: %w", err)
		}
		if info.Size != int64(len(body)) {
			return fmt.Errorf("read after write: %q has %d bytes, want %d", key, info.Size, len(body))
		}
		if info.SHA256 != identity.Sum(body) {
			return fmt.Errorf("read after write: %q has SHA-256 %s, want %s: the store keeps no checksum", key, info.SHA256, identity.Sum(body))
		}
	}
	return nil
}

func listAfterWrite(ctx context.Context, p *probe) error {
	prefix := layout.ProbePrefix + p.opts.RunID + "/list/"
	var want []string
	for i := range freshness {
		key := p.key("list/" + strconv.Itoa(i))
		want = append(want, key)
		if err := p.create(ctx, key, p.body(key)); err != nil {
			return err
		}
		// In pages of two, so that order and continuation are checked too.
		var got []string
		for after, more := "", true; more; {
			page, err := p.store.List(ctx, objstore.ListOptions{Prefix: prefix, StartAfter: after, Limit: 2})
			if err != nil {
				return err
			}
			for _, o := range page.Objects {
				got = append(got, o.Key)
			}
			// A store that repeats pages for ever must fail this check and not hang it.
			if len(got) > len(want) {
				break
			}
			after, more = page.Next, page.Next != ""
		}
		if strings.Join(got, " ") != strings.Join(want, " ") {
			return fmt.Errorf("list after write: listed %q, want %q", got, want)
		}
	}
	return nil
}

func conditionalReplace(ctx context.Context, p *probe) error {
	key, first, second := p.key("replace"), p.body("first"), p.body("second")
	const foreign = `"0123456789abcdef0123456789abcdef"`
	_, err := p.store.Replace(ctx, key, first, foreign, objstore.PutOptions{})
	if err := refused("a replace of an absent key", err, objstore.ErrPreconditionFailed); err != nil {
		return err
	}
	if err := p.create(ctx, key, first); err != nil {
		return err
	}
	info, err := p.store.Head(ctx, key)
	if err != nil {
		return err
	}
	_, err = p.store.Replace(ctx, key, second, foreign, objstore.PutOptions{})
	if err := refused("a replace with a wrong ETag", err, objstore.ErrPreconditionFailed, objstore.ErrConflict); err != nil {
		return err
	}
	if err := p.holds(ctx, key, first); err != nil {
		return fmt.Errorf("after a refused replace: %w", err)
	}
	if _, err := p.store.Replace(ctx, key, second, info.ETag, objstore.PutOptions{}); err != nil {
		return fmt.Errorf("a replace with the right ETag: %w", err)
	}
	_, err = p.store.Replace(ctx, key, first, info.ETag, objstore.PutOptions{})
	if err := refused("a replace with the old ETag", err, objstore.ErrPreconditionFailed, objstore.ErrConflict); err != nil {
		return err
	}
	return p.holds(ctx, key, second)
}

func checksumRefusal(ctx context.Context, p *probe) error {
	key, body, wrong := p.key("checksum"), p.body("checksum"), identity.Sum([]byte("other bytes"))
	_, err := p.store.Create(ctx, key, body, objstore.PutOptions{SHA256: wrong})
	if err := refused("a create whose hash is wrong", err, objstore.ErrChecksum); err != nil {
		return err
	}
	p.detail = "payload hash"
	if m, ok := p.back.(Mismatcher); ok {
		err := m.CreateMismatched(ctx, key, body, wrong)
		if err := refused("a create whose checksum alone is wrong", err, objstore.ErrChecksum); err != nil {
			return err
		}
		p.detail = "payload hash and checksum header"
	}
	_, err = p.store.Head(ctx, key)
	return refused("a head after the refused bodies", err, objstore.ErrNotFound)
}

// readAfterDelete is for garbage collection: a deleted object is gone, and its key can be created again.
func readAfterDelete(ctx context.Context, p *probe) error {
	key := p.key("delete")
	if err := p.create(ctx, key, p.body("first")); err != nil {
		return err
	}
	// The second delete is of a key that no longer exists: it must succeed as well, because a delete
	// with a lost answer is repeated.
	for range 2 {
		if err := p.store.Delete(ctx, key); err != nil {
			return err
		}
	}
	_, _, err := p.store.Get(ctx, key, objstore.GetOptions{})
	if err := refused("a get after the delete", err, objstore.ErrNotFound); err != nil {
		return err
	}
	return p.create(ctx, key, p.body("second"))
}

// cleanUp removes the probe's objects after all other checks.
func cleanUp(ctx context.Context, p *probe) error {
	var errs []error
	for _, key := range p.keys {
		if err := p.store.Delete(ctx, key); err != nil {
			errs = append(errs, err)
		}
	}
	p.detail = fmt.Sprintf("%d keys", len(p.keys))
	return errors.Join(errs...)
}
