package frames

import (
	"sync"

	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Arrived keeps frames that collectors sent when their batches arrived, until they are packed: those that came last,
// within a bound of bytes. It is safe for concurrent use.
type Arrived struct {
	most int64
	// size is given the bytes that are kept, after each change.
	size func(bytes float64)

	mu    sync.Mutex
	kept  map[identity.Digest][]byte
	order []identity.Digest // the oldest first
	bytes int64
}

// NewArrived keeps so many bytes of frames.
func NewArrived(most int64, size func(bytes float64)) *Arrived {
	return &Arrived{most: most, size: size, kept: map[identity.Digest][]byte{}}
}

// Put keeps a frame whose hash was compared, in place of the oldest ones.
func (a *Arrived) Put(sum identity.Digest, raw []byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.kept[sum] != nil || int64(len(raw)) > a.most {
		return
	}
	a.kept[sum] = raw
	a.order = append(a.order, sum)
	a.bytes += int64(len(raw))
	for a.bytes > a.most {
		a.bytes -= int64(len(a.kept[a.order[0]]))
		delete(a.kept, a.order[0])
		a.order = a.order[1:]
	}
	a.size(float64(a.bytes))
}

// Has reports whether a frame is kept.
func (a *Arrived) Has(sum identity.Digest) bool { return a.get(sum) != nil }

// get returns a frame, to be read only; nil if it is not kept.
func (a *Arrived) get(sum identity.Digest) []byte {
	if a == nil {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.kept[sum]
}
