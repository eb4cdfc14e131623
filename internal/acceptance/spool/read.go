package spool

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// ErrNotFound says that the batch is not in the spool: it never was, or it has landed.
var ErrNotFound = errors.New("not in the spool")

// List returns the accepted batches that have not landed, in order of acceptance.
// Read the spool before the store: a batch that lands in between is then seen
// twice, under one identity, and never missed.
func (s *Spool) List() []accept.Manifest {
	s.mu.Lock()
	list := make([]*entry, 0, len(s.entries))
	for _, e := range s.entries {
		list = append(list, e)
	}
	s.mu.Unlock()
	slices.SortFunc(list, func(a, b *entry) int { return cmp.Compare(a.order, b.order) })
	out := make([]accept.Manifest, len(list))
	for i, e := range list {
		out[i] = e.manifest
	}
	return out
}

// Ranges calls fn for each accepted batch of one boot that has not landed, in no order.
func (s *Spool) Ranges(b identity.Boot, fn func(start, end uint64)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id := range s.entries {
		if id.BootOf() == b {
			fn(id.SeqStart, id.SeqEnd)
		}
	}
}

// Read returns the exact frame bytes and the manifest of one batch; errors wrap
// ErrNotFound or record.ErrCorrupt.
func (s *Spool) Read(id identity.Batch) ([]byte, accept.Manifest, error) {
	s.mu.Lock()
	e := s.entries[id]
	s.mu.Unlock()
	if e == nil {
		return nil, accept.Manifest{}, fmt.Errorf("read %s: %w", id, ErrNotFound)
	}
	raw, _, err := vfs.ReadFile(s.cfg.FS, s.tree.abs(e.path), 0)
	// It landed between the lookup and the read, or somebody removed its file.
	if errors.Is(err, fs.ErrNotExist) {
		return nil, accept.Manifest{}, fmt.Errorf("read %s: %w", id, ErrNotFound)
	}
	if err != nil {
		return nil, accept.Manifest{}, fmt.Errorf("read %s: %w", id, err)
	}
	h, frame, err := decodeFile(raw)
	if err != nil {
		return nil, accept.Manifest{}, fmt.Errorf("read %s: %w", id, err)
	}
	return frame, h.manifest, nil
}
