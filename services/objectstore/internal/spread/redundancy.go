package spread

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/body"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/erasure"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/place"
)

// Coding is how a body is to be coded.
type Coding struct {
	// Policy is the version of the policy; at least 1.
	Policy uint32
	erasure.Params
}

// Fragments gives the names of all shards of a body under a coding.
func (c Coding) Fragments(id string) []erasure.Fragment {
	out := make([]erasure.Fragment, c.K+c.M)
	for i := range out {
		out[i] = erasure.Fragment{Body: id, Policy: c.Policy, K: c.K, M: c.M, Index: i}
	}
	return out
}

// Placed is a fragment that is durable on a place.
type Placed struct {
	Located
	Size   int64        // of the file, bytes
	Digest erasure.Hash // of its blocks' checksums
	// Existed: the file was there, with the same header and footer. Verify reads the rest.
	Existed bool
	Err     error // why it is not there; the rest has no meaning then

	// aside takes a damaged file out of the way, just before the new one gets its name: until then
	// some of its blocks may be needed.
	aside func() error
}

// Places gives the names of the places that take writes, in the order in which a body is kept on
// them.
func (s *Store) Places(id string) (names []string) {
	for _, sl := range s.order(id, s.slots) {
		if sl.err() == nil {
			names = append(names, sl.Name)
		}
	}
	return names
}

// Encode codes a body, and writes shard i to the place targets[i]; an empty name leaves it out. It is
// repeatable: shards that are there are kept, a damaged one is set aside and written again. The error
// is of the body; those of single shards are in the result.
func (s *Store) Encode(ctx context.Context, id string, c Coding, targets []string) ([]Placed, error) {
	if len(targets) != c.K+c.M || c.Policy == 0 {
		return nil, fmt.Errorf("encode body %s under policy %d to %d places: want %d", id, c.Policy, len(targets), c.K+c.M)
	}
	if err := s.setCoded(); err != nil {
		return nil, err
	}
	r, err := s.OpenBody(ctx, id)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	src := erasure.Source{Body: id, Bytes: withContext{ctx, r}, Size: r.Size()}
	if info := r.current().info; info != nil {
		src.Hash = info.BodyHash
	} else if src.Hash, err = erasure.HashBody(src.Bytes, src.Size); err != nil {
		return nil, fmt.Errorf("encode body %s: %w", id, err)
	}
	out := make([]Placed, len(targets))
	writers := make([]place.Writer, len(targets))
	for i, f := range c.Fragments(id) {
		out[i].Located = Located{targets[i], f}
		if targets[i] != "" {
			writers[i] = s.begin(ctx, &out[i], erasure.Generation(f, c.Layout(src.Size), src.Hash))
		}
	}
	infos, failed, err := erasure.Encode(src, c.Policy, c.Params, plain(writers))
	for i, w := range writers {
		if w == nil {
			continue
		}
		if err != nil {
			w.Discard()
			continue
		}
		out[i].finish(w, infos[i], failed[i])
	}
	if err != nil {
		return nil, fmt.Errorf("encode body %s: %w", id, err)
	}
	return out, nil
}

// withContext ends reads when a context does.
type withContext struct {
	ctx context.Context
	io.ReaderAt
}

func (r withContext) ReadAt(p []byte, off int64) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.ReaderAt.ReadAt(p, off)
}

func plain(ws []place.Writer) []io.Writer {
	out := make([]io.Writer, len(ws))
	for i, w := range ws {
		if w != nil {
			out[i] = w
		}
	}
	return out
}

// setCoded notes durably that there may be shards, before the first is written.
func (s *Store) setCoded() error {
	if s.coded.Load() {
		return nil
	}
	s.joining.Lock()
	defer s.joining.Unlock()
	s.members.Coded = true
	if err := s.save(); err != nil {
		s.members.Coded = false
		return err
	}
	s.coded.Store(true)
	return nil
}

// begin opens a writer for a fragment; nil when it is there already, or cannot be written.
func (s *Store) begin(ctx context.Context, to *Placed, generation erasure.Hash) place.Writer {
	p, err := s.slot(to.Place)
	if err != nil {
		to.Err = err
		return nil
	}
	have, err := s.openFragment(ctx, p, to.Place, to.Fragment)
	if err == nil {
		info := have.file.Info()
		_ = have.reader.Close()
		if info.Generation == generation {
			to.Size, to.Digest, to.Existed = info.FileSize(), info.Digest(), true
			return nil
		}
		err = fmt.Errorf("%w: it is of another generation", erasure.ErrCorrupt)
	}
	if to.Err = s.clear(ctx, to, err); to.Err != nil {
		return nil
	}
	w, err := p.Create(ctx, to.Name())
	if err != nil {
		to.Err = err
		return nil
	}
	return w
}

// finish makes a fragment durable.
func (to *Placed) finish(w place.Writer, info erasure.Info, err error) {
	if err == nil && to.aside != nil {
		err = to.aside()
	}
	if err == nil {
		err = w.Finish()
	}
	switch {
	case errors.Is(err, fs.ErrExist):
		to.Existed = true // somebody else made the same file meanwhile
		w.Discard()
	case err != nil:
		to.Err = err
		w.Discard()
		return
	}
	to.Size, to.Digest = info.FileSize(), info.Digest()
}

// Verify reads all of a fragment's file and gives what it says of itself. Errors wrap fs.ErrNotExist,
// erasure.ErrCorrupt or place.ErrOut.
func (s *Store) Verify(ctx context.Context, l Located) (erasure.Info, error) {
	p, err := s.slot(l.Place)
	if err != nil {
		return erasure.Info{}, err
	}
	f, err := s.openFragment(ctx, p, l.Place, l.Fragment)
	if err != nil {
		return erasure.Info{}, err
	}
	defer f.reader.Close()
	if err := f.file.Verify(ctx); err != nil {
		return f.file.Info(), fmt.Errorf("place %s: %s: %w", l.Place, l.Fragment, err)
	}
	return f.file.Info(), nil
}

// Heal makes a fragment on a place: a copy from anything that has the body, a shard from the others
// of its generation, or by coding the body again. A file that is there and damaged is set aside; one
// that is whole stays. For a shard whose generation is gone, c says how the body was coded.
func (s *Store) Heal(ctx context.Context, l Located, c Coding) (Placed, error) {
	to := Placed{Located: l}
	if info, err := s.Verify(ctx, l); err == nil {
		to.Size, to.Digest, to.Existed = info.FileSize(), info.Digest(), true
		return to, nil
	} else if err := s.clear(ctx, &to, err); err != nil {
		return to, err
	}
	r, err := s.OpenBody(ctx, l.Body)
	if err != nil {
		return to, err
	}
	defer r.Close()
	if l.IsCopy() {
		return s.healCopy(ctx, to, r)
	}
	if src := r.coded(l.Fragment); src != nil {
		return s.healShard(ctx, to, src)
	}
	if c.Policy != l.Policy || c.K != l.K || c.M != l.M {
		return to, fmt.Errorf("heal %s: no shards of its generation are whole, and the policy is not known", l.Fragment)
	}
	targets := make([]string, l.K+l.M)
	targets[l.Index] = l.Place
	out, err := s.Encode(ctx, l.Body, c, targets)
	if err != nil {
		return to, err
	}
	s.counts.repaired.Add(1)
	return out[l.Index], out[l.Index].Err
}

// clear prepares for a file that cannot be used: a damaged one is taken out of the way when the new
// one is whole. What is not known to be damaged stays.
func (s *Store) clear(ctx context.Context, to *Placed, cause error) error {
	if errors.Is(cause, fs.ErrNotExist) {
		return nil
	}
	if !errors.Is(cause, erasure.ErrCorrupt) {
		return cause
	}
	p, err := s.slot(to.Place)
	if err != nil {
		return err
	}
	l := to.Located
	to.aside = func() error {
		where, err := p.SetAside(ctx, l.Name())
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		s.log.Warn("a damaged fragment was set aside", "place", l.Place, "fragment", l.Name(), "at", where, "cause", cause, "error", err)
		return err
	}
	return nil
}

// coded gives the source with the shards of a fragment's policy; nil when there is none.
func (r *Reader) coded(f erasure.Fragment) *source {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.findMore()
	for _, src := range r.sources {
		if src.info != nil && src.info.Policy == f.Policy && src.info.K == f.K && src.info.M == f.M {
			return src
		}
	}
	return nil
}

func (s *Store) healShard(ctx context.Context, to Placed, src *source) (Placed, error) {
	p, err := s.slot(to.Place)
	if err != nil {
		return to, err
	}
	w, err := p.Create(ctx, to.Name())
	if err != nil {
		return to, err
	}
	out := make([]io.Writer, to.K+to.M)
	out[to.Index] = w
	failed, err := src.set.Rebuild(out)
	if err == nil {
		err = failed[to.Index]
	}
	info := *src.info
	info.Index = to.Index
	to.finish(w, info, err)
	if to.Err == nil {
		s.counts.repaired.Add(1)
	}
	return to, to.Err
}

func (s *Store) healCopy(ctx context.Context, to Placed, r *Reader) (Placed, error) {
	p, err := s.slot(to.Place)
	if err != nil {
		return to, err
	}
	w, err := p.Create(ctx, to.Name())
	if err != nil {
		return to, err
	}
	info, err := writeCopy(w, to.Body, withContext{ctx, r}, r.Size())
	if known := r.current().info; err == nil && known != nil && known.BodyHash != info.BodyHash {
		err = fmt.Errorf("%w: body %s comes out with another hash", erasure.ErrCorrupt, to.Body)
	}
	to.finish(w, info, err)
	if to.Err == nil {
		s.counts.repaired.Add(1)
	}
	return to, to.Err
}

// writeCopy writes a body as a copy.
func writeCopy(w io.Writer, id string, r io.ReaderAt, size int64) (erasure.Info, error) {
	sums, err := erasure.NewCopy(id)
	if err != nil {
		return erasure.Info{}, err
	}
	if err := write(w, sums.Header()); err != nil {
		return erasure.Info{}, err
	}
	buf := make([]byte, body.BlockSize)
	for off := int64(0); off < size; off += int64(len(buf)) {
		b := buf[:min(int64(len(buf)), size-off)]
		if n, err := r.ReadAt(b, off); n < len(b) {
			return erasure.Info{}, errors.Join(io.ErrUnexpectedEOF, err)
		}
		sums.Add(b)
		if err := write(w, b); err != nil {
			return erasure.Info{}, err
		}
	}
	foot, info := sums.Footer()
	return info, write(w, foot)
}

// copyFrom writes a copy that another place has, verified.
func (s *Store) copyFrom(p place.Place, info erasure.Info, w io.Writer) error {
	f, err := s.openFragment(context.Background(), p, p.Name(), info.Fragment)
	if err != nil {
		return err
	}
	defer f.reader.Close()
	set, err := erasure.NewSet([]*erasure.File{f.file})
	if err != nil {
		return err
	}
	got, err := writeCopy(w, info.Fragment.Body, erasure.NewReader(set, nil), info.Layout.Size)
	if err == nil && got.BodyHash != info.BodyHash {
		err = fmt.Errorf("%w: %s comes out with another hash", erasure.ErrCorrupt, info.Fragment)
	}
	return err
}

// RemoveFile removes one file of a body.
func (s *Store) RemoveFile(ctx context.Context, l Located) error {
	p, err := s.slot(l.Place)
	if err != nil {
		return err
	}
	return p.Remove(ctx, l.Name())
}

// StatFile asks the place whether it has a file of a body.
func (s *Store) StatFile(ctx context.Context, l Located) error {
	p, err := s.slot(l.Place)
	if err != nil {
		return err
	}
	_, err = p.Stat(ctx, l.Name())
	return err
}

// Find gives the fragments of a body on all places that are there. The error names places that are
// out or could not be listed; what was found is given all the same.
func (s *Store) Find(ctx context.Context, id string) ([]Located, error) {
	found, errs := s.list(ctx, id)
	return found, errors.Join(append(errs, s.outs())...)
}

// Tidy removes what writers of a place have left that have ended.
func (s *Store) Tidy(ctx context.Context, name string) error {
	if s.opt.ReadOnly {
		return nil
	}
	p, err := s.slot(name)
	if err != nil {
		return err
	}
	return p.Tidy(ctx)
}

// Files lists the fragments of one place in the order of their names, from after on.
func (s *Store) Files(ctx context.Context, name, after string, fn func(l Located, size int64) error) error {
	p, err := s.slot(name)
	if err != nil {
		return err
	}
	return p.List(ctx, "", after, func(f place.File) error {
		if fr, ok := erasure.Parse(f.Name); ok {
			return fn(Located{name, fr}, f.Size)
		}
		return nil
	})
}
