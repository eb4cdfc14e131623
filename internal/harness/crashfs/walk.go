package crashfs

import (
	"encoding/binary"
	"hash/maphash"
	"maps"
	"slices"
)

// Walker goes along the calls that an FS recorded.
type Walker struct {
	fs    *FS
	trace []Op
	at    int
	disk  *disk
}

// Walk begins before the first call. Calls recorded later are not seen.
func (f *FS) Walk() *Walker {
	f.mu.Lock()
	defer f.mu.Unlock()
	return &Walker{fs: f, trace: slices.Clone(f.trace), disk: newDisk(f.base)}
}

// At is the number of calls behind the walker.
func (w *Walker) At() int { return w.at }

// Len is the number of calls.
func (w *Walker) Len() int { return len(w.trace) }

// Step goes over the next call; false at the end.
func (w *Walker) Step() bool {
	if w.at == len(w.trace) {
		return false
	}
	w.disk.apply(w.trace[w.at])
	w.at++
	return true
}

// Last gives up to n calls before the walker, oldest first: the readable end of a trace.
func (w *Walker) Last(n int) []Op { return slices.Clone(w.trace[max(0, w.at-n):w.at]) }

// Crash gives the disk after a power loss here. The same model and seed give the same disk.
func (w *Walker) Crash(m Model, seed uint64) *FS {
	return newFS(w.disk.crash(m, seed), w.fs.Lie)
}

// Kill gives the disk as the next process finds it when only the process died here:
// nothing is lost yet, and what was not synced is as unsynced as before.
func (w *Walker) Kill() *FS {
	// The calls are played again from the base and not crashed: the cache of the kernel survives its
	// process.
	f := newFS(w.fs.base, w.fs.Lie)
	f.trace = slices.Clone(w.trace[:w.at])
	for _, o := range f.trace {
		f.disk.apply(o)
	}
	return f
}

// PowerLoss gives the disk after a power loss now.
func (f *FS) PowerLoss(m Model, seed uint64) *FS {
	f.mu.Lock()
	defer f.mu.Unlock()
	return newFS(f.disk.crash(m, seed), f.Lie)
}

// Restart gives the disk as the next process finds it when this one dies now.
func (f *FS) Restart() *FS {
	w := f.Walk()
	for w.Step() {
	}
	return w.Kill()
}

// hashSeed is the same for all disks of the process.
var hashSeed = maphash.MakeSeed()

// Fingerprint tells disks apart by what is durable on them when nothing was written since.
func (f *FS) Fingerprint() uint64 {
	var h maphash.Hash
	h.SetSeed(hashSeed)
	var visit func(*node)
	visit = func(n *node) {
		for _, name := range slices.Sorted(maps.Keys(n.kids)) {
			k := n.kids[name]
			_, _ = h.WriteString(name + "\x00")
			if k.kids != nil {
				_ = h.WriteByte('/')
				visit(k)
				_ = h.WriteByte('\\')
				continue
			}
			_, _ = h.Write(binary.AppendUvarint(nil, uint64(len(k.data))))
			_, _ = h.Write(k.data)
		}
	}
	visit(f.base)
	return h.Sum64()
}
