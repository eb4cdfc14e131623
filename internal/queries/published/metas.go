package published

import (
	"runtime"
	"sync"
	"unsafe"
	"weak"

	"github.com/prometheus/prometheus/model/labels"

	"lightmetrics.dev/lightmetrics/pkg/series"
)

// meta is what an index says about a series.
type meta struct {
	labels labels.Labels
	hash   uint64
	typ    series.Type
}

// metas gives the indexes of many hours one copy of the labels of a series. It keeps none of them alone: a copy lives as
// long as an index that has it. It is safe for concurrent use; nil shares nothing.
type metas struct {
	mu    sync.Mutex
	at    map[uint64]weak.Pointer[meta] // by hash
	bytes int64                         // estimate of what lives, or was not collected yet
}

// held is what is known of a meta when it is gone.
type held struct {
	hash  uint64
	bytes int64
}

// of returns the meta with the labels and the type: one that an index has already, or a new one.
func (s *metas) of(ls labels.Labels, typ series.Type) *meta {
	h := ls.Hash()
	if s == nil {
		return &meta{ls, h, typ}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if m := s.at[h].Value(); m != nil && m.typ == typ && labels.Equal(m.labels, ls) {
		return m
	}
	m := &meta{ls, h, typ}
	if s.at == nil {
		s.at = map[uint64]weak.Pointer[meta]{}
	}
	// Of different labels with the same hash the last are shared.
	s.at[h] = weak.Make(m)
	const overhead = int64(unsafe.Sizeof(meta{})) + 64 // with its entry here
	n := int64(ls.ByteSize()) + overhead
	s.bytes += n
	runtime.AddCleanup(m, s.drop, held{h, n})
	return m
}

// drop forgets a meta that is gone, unless another one has taken its place.
func (s *metas) drop(of held) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bytes -= of.bytes
	if p, ok := s.at[of.hash]; ok && p.Value() == nil {
		delete(s.at, of.hash)
	}
}

// Bytes estimates the memory of all labels.
func (s *metas) Bytes() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bytes
}
