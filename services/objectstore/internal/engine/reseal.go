package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/cockroachdb/pebble/v2"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/seal"
)

// A body that is not sealed with the current key is sealed again: opened, and written with a new salt, into a record that
// takes the old one's place as reclaiming's copies do. So after a rotation nothing on the disk needs the old key, not
// even for the bytes that somebody has copied since, which wrapping keys in keys could not say.

// Resealed is what a pass over the store has done.
type Resealed struct {
	// Records that were written again, and the bytes of their bodies.
	Records, Bytes int64
	// Left: records whose key was not given, or that are damaged or too large; of these First says why.
	Left  int64
	First error
}

// resealPage is how many records are looked for before they are written: no iterator stays open while bodies are.
const resealPage = 256

// Reseal seals everything with the current key that is not, or, where keys were given and none is current, stores
// everything as it is. pace is called before bytes of a body are written, and may wait. What is written by others
// meanwhile is left to them. One call at a time.
func (e *Engine) Reseal(ctx context.Context, pace func(ctx context.Context, bytes int64) error) (Resealed, error) {
	var out Resealed
	// As in Reclaim: a copy gets a later sequence than lost writes, and would pass for a key's last version.
	if e.opt.Keys == nil || e.Uncertain() != nil {
		return out, nil
	}
	uploads, err := e.uploadKeys()
	if err != nil {
		return out, fmt.Errorf("reseal: %w", err)
	}
	r := &resealer{e: e, pace: pace, uploads: uploads}
	for _, space := range [...]byte{spaceObject, spaceAside} {
		for after := []byte{space}; after != nil; {
			var page []name
			if page, after, err = e.staleRecords(after); err != nil {
				return out, err
			}
			if err := r.records(ctx, page, &out); err != nil {
				return out, fmt.Errorf("reseal: %w", err)
			}
		}
	}
	return out, nil
}

// records writes a page of records again.
func (r *resealer) records(ctx context.Context, page []name, out *Resealed) error {
	for _, name := range page {
		n, err := r.record(ctx, name)
		switch {
		case err == nil:
			out.Records, out.Bytes = out.Records+1, out.Bytes+n
		case errors.Is(err, ErrNotFound), errors.Is(err, ErrPrecondition), errors.Is(err, ErrNoBucket):
			// Written or deleted by somebody else since.
		case errors.Is(err, ErrNoKey), errors.Is(err, ErrCorrupt), errors.Is(err, ErrTooLarge), errors.Is(err, ErrNoUpload):
			if out.Left++; out.First == nil {
				out.First = err
			}
		default:
			return err
		}
	}
	return nil
}

// staleRecords gives the next records behind a key of the index that have bytes of another version than the current one,
// and the key behind which to go on; nil: there are no more in this space of the index.
func (e *Engine) staleRecords(after []byte) (page []name, next []byte, err error) {
	it, err := e.idx.db.NewIter(&pebble.IterOptions{LowerBound: after[:1:1], UpperBound: []byte{after[0] + 1}})
	if err != nil {
		return nil, nil, fmt.Errorf("read index: %w", err)
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	for ok := it.SeekGE(append(after[:len(after):len(after)], 0)); ok; ok = it.Next() {
		x, err := decodeEntry(it.Value())
		if err != nil {
			return nil, nil, err
		}
		bucket, record, _ := strings.Cut(string(it.Key()[1:]), "\x00")
		// A version is found under its own key too.
		if !e.isStale(&x) || x.version != "" && !isHidden(record) {
			continue
		}
		if page = append(page, name{bucket, record}); len(page) == resealPage {
			return page, bytes.Clone(it.Key()), nil
		}
	}
	return page, nil, it.Error()
}

// isStale reports whether an entry has bytes that Reseal would write again.
func (e *Engine) isStale(x *entry) bool {
	var current seal.Version
	if k := e.opt.Keys.Current(); k != nil {
		current = k.Version()
	}
	stale := false
	x.eachStored(func(v seal.Version, bytes int64) { stale = stale || bytes > 0 && v != current })
	return stale
}

// StaleBytes are those that Reseal would write again.
func (e *Engine) StaleBytes() (n int64) {
	if e.opt.Keys == nil {
		return 0
	}
	for _, u := range e.KeyUsage() {
		if !u.Current && (u.Key != "" || e.Seals()) {
			n += u.Bytes
		}
	}
	return n
}

// uploadKeys gives the keys of the open uploads by their ids: under these their parts are sealed.
func (e *Engine) uploadKeys() (map[string]string, error) {
	ids := map[string]string{}
	var err error
	for _, b := range e.Buckets() {
		err = errors.Join(err, e.hidden(b.Name, uploadPrefix, "", func(hidden string) (bool, error) {
			if key, id, ok := parseUploadKey(hidden); ok {
				ids[id] = key
			}
			return true, nil
		}))
	}
	return ids, err
}

// resealer writes records again.
type resealer struct {
	e       *Engine
	pace    func(context.Context, int64) error
	uploads map[string]string
}

// record seals the body of a record again, and gives the bytes that it has.
func (r *resealer) record(ctx context.Context, n name) (int64, error) {
	if err := r.e.checkSpace(); err != nil {
		return 0, err // copies may not take the reserve
	}
	key, version := clientKey(n.key)
	if version == "" && !isInternal(n.key) {
		version = NullVersion
	}
	h, err := r.e.GetVersion(n.bucket, key, version)
	if err != nil {
		return 0, err
	}
	defer h.Close()
	if id, _, ok := parsePartKey(n.key); ok {
		if h.of = r.uploads[id]; h.of == "" {
			return 0, fmt.Errorf("a part of upload %s, which has ended: %w", id, ErrNoUpload) // the next sweep removes it
		}
	}
	if len(h.Object.Extents) == 0 {
		return h.Object.Size, r.inline(ctx, h)
	}
	return h.Object.Size, r.files(ctx, h)
}

// replace writes o in the place of the record that h has read.
func (r *resealer) replace(ctx context.Context, h *Handle, o Object, stored []byte) error {
	_, err := r.e.put(ctx, &op{cond: Cond{at: h.entry.pos, atIsSet: true}}, o, stored, flagQuiet)
	return err
}

func (r *resealer) inline(ctx context.Context, h *Handle) error {
	if err := r.pace(ctx, h.Object.Size); err != nil {
		return err
	}
	if err := h.openBody(); err != nil {
		return err
	}
	o, stored := h.Object, h.body
	s, b, err := r.e.newSeal(h.sealName(""))
	if err != nil {
		return err
	}
	if o.Seal = s; b != nil {
		memory := takeMemory(int(seal.Sealed(o.Size)))
		defer returnMemory(memory)
		stored = b.SealWhole((*memory)[:0], stored)
	}
	return r.replace(ctx, h, o, stored)
}

// files writes the files of an object again, each on its own: the sizes of parts stay what they are.
func (r *resealer) files(ctx context.Context, h *Handle) (err error) {
	o := h.Object
	o.Extents = make([]Extent, 0, len(h.Object.Extents))
	var made []*Blob
	defer func() {
		// When it is unknown whether the record was written, it may name them.
		if err != nil && !errors.Is(err, ErrPoisoned) && !errors.Is(err, ErrClosed) {
			for _, b := range made {
				b.Discard()
			}
		}
	}()
	buf := make([]byte, BlockSize)
	for i := range h.Object.Extents {
		x := &h.Object.Extents[i]
		opener, err := h.opener(x)
		if err != nil {
			return err
		}
		b, err := r.e.NewBlob(h.Object.Bucket, h.sealName("").Key)
		if err != nil {
			return err
		}
		made = append(made, b)
		from, err := h.readable(i)
		if err != nil {
			return err
		}
		if err := copyExtent(&pacedWriter{ctx, b, r.pace}, from, x, &h.fine, opener, 0, x.PlainSize(), buf); err != nil {
			return err
		}
		done, err := b.Finish()
		if err != nil {
			return err
		}
		o.Extents = append(o.Extents, done)
	}
	return r.replace(ctx, h, o, nil)
}

// pacedWriter asks pace before every write.
type pacedWriter struct {
	ctx  context.Context
	w    io.Writer
	pace func(context.Context, int64) error
}

func (p *pacedWriter) Write(b []byte) (int, error) {
	if err := p.pace(p.ctx, int64(len(b))); err != nil {
		return 0, err
	}
	return p.w.Write(b)
}
