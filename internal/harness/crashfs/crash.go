package crashfs

import (
	"maps"
	"math/rand/v2"
	"slices"
)

// Model says what a power loss may do to what was not synced.
type Model uint8

// Models.
const (
	// Dropped loses everything that was not synced.
	Dropped Model = iota
	// Kept loses nothing: the power went after everything had been written back.
	Kept
	// Ordered is a journaling file system with data=ordered: changes of names survive as a
	// prefix of their order over all directories, every fsync commits those before it,
	// and a file's unsynced writes survive as a prefix, the last one cut at a sector.
	Ordered
	// Strict promises what POSIX does: each change of a name that its directory's fsync did not
	// cover is lost or kept on its own (a rename may leave both names, or none), and a file's
	// unsynced writes are cut at any byte or survive sector by sector in any order, with zeros or noise in the holes.
	Strict
)

func (m Model) String() string { return [...]string{"dropped", "kept", "ordered", "strict"}[m] }

// SectorSize is what a disk writes whole, bytes.
const SectorSize = 512

// node is a file or a directory of a disk that is at rest. Nothing changes it.
type node struct {
	data []byte
	kids map[string]*node // nil: a file
}

type crash struct {
	rng   *rand.Rand
	model Model
	done  map[*inode]*node
	// odds of ten that an unsynced change of a name is kept
	odds int
}

// crash gives what a power loss leaves.
func (d *disk) crash(m Model, seed uint64) *node {
	rng := rand.New(rand.NewPCG(seed, uint64(m)))
	c := &crash{rng: rng, model: m, done: map[*inode]*node{}, odds: [...]int{0, 1, 5, 9, 10}[rng.IntN(5)]}
	return c.node(d.inodes[0], c.names(d))
}

// names gives a function that decides which names each directory has after the power loss.
func (c *crash) names(d *disk) func(*inode) map[string]*inode {
	switch c.model {
	case Dropped:
		return func(n *inode) map[string]*inode { return n.durable }
	case Kept:
		return func(n *inode) map[string]*inode { return n.live }
	case Strict:
		return c.pick
	}
	// The journal survives as a prefix. Each entry is atomic: a rename is there with both of its names.
	late := map[*inode]map[string]*inode{}
	for _, list := range d.journal[:c.rng.IntN(len(d.journal)+1)] {
		for _, ch := range list {
			if late[ch.dir] == nil {
				late[ch.dir] = maps.Clone(ch.dir.committed)
			}
			late[ch.dir][ch.name] = ch.to
		}
	}
	return func(n *inode) map[string]*inode {
		if l := late[n]; l != nil {
			return l
		}
		return n.committed
	}
}

// pick chooses for each name a state that it had since the directory's last fsync. The names are
// independent of each other, so a rename may leave both names or none.
func (c *crash) pick(n *inode) map[string]*inode {
	if len(n.history) == 0 {
		return n.durable
	}
	names := maps.Clone(n.durable)
	for _, name := range slices.Sorted(maps.Keys(n.history)) {
		for _, to := range n.history[name] {
			if c.rng.IntN(10) < c.odds {
				names[name] = to
			}
		}
	}
	return names
}

func (c *crash) node(n *inode, names func(*inode) map[string]*inode) *node {
	// A file with two names is one node, and its bytes are decided once for both.
	if k := c.done[n]; k != nil {
		return k
	}
	k := &node{}
	c.done[n] = k
	if !n.isDir() {
		k.data = c.bytes(n)
		return k
	}
	k.kids = map[string]*node{}
	list := names(n)
	for _, name := range slices.Sorted(maps.Keys(list)) {
		if list[name] != nil {
			k.kids[name] = c.node(list[name], names)
		}
	}
	return k
}

// bytes decides the content of a file after the power loss.
func (c *crash) bytes(n *inode) []byte {
	switch {
	case len(n.pending) == 0 || c.model == Dropped:
		return n.synced
	case c.model == Kept:
		return slices.Clone(n.data)
	case c.model == Ordered:
		return c.prefix(n, SectorSize)
	}
	switch c.rng.IntN(6) {
	case 0:
		return n.synced
	case 1:
		return slices.Clone(n.data)
	case 2:
		return c.prefix(n, 1)
	case 3:
		return c.prefix(n, SectorSize)
	}
	return c.sectors(n)
}

// version is the content of the file after the first calls of its pending calls.
func (n *inode) version(calls int) []byte {
	b := slices.Clone(n.synced)
	for _, o := range n.pending[:calls] {
		b = o.on(b, len(o.data))
	}
	return b
}

// prefix is the file after some of its pending calls, the last one cut at a multiple of unit.
func (c *crash) prefix(n *inode, unit int64) []byte {
	calls := c.rng.IntN(len(n.pending) + 1)
	b := n.version(calls)
	if calls == len(n.pending) || n.pending[calls].Kind != Write {
		return b
	}
	o := n.pending[calls]
	// Cut at a multiple of unit in the file and not in the call: disks write whole sectors at fixed
	// places.
	cut := (o.off + c.rng.Int64N(int64(len(o.data))+1)) / unit * unit
	if cut <= o.off {
		return b
	}
	return o.on(b, int(cut-o.off))
}

// sectors takes each sector as it was at some time since the last fsync, and the length as it was at
// another. Where the length is ahead of the bytes there are zeros or noise.
func (c *crash) sectors(n *inode) []byte {
	last := len(n.pending)
	versions := [][]byte{n.synced, n.version(c.rng.IntN(last + 1)), n.version(c.rng.IntN(last + 1)), n.data}
	size := len(versions[c.rng.IntN(len(versions))])
	if c.rng.IntN(2) == 0 {
		size = len(n.data)
	}
	out := make([]byte, size)
	noise := c.rng.IntN(2) == 0
	// Drawn once for the file, so that some crashes keep nearly all sectors and others nearly none.
	newest := c.rng.IntN(10) // of ten sectors as they are now
	for at := 0; at < size; at += SectorSize {
		end := min(at+SectorSize, size)
		v := versions[c.rng.IntN(len(versions))]
		if c.rng.IntN(10) < newest {
			v = n.data
		}
		have := 0
		if len(v) > at {
			have = copy(out[at:end], v[at:])
		}
		for i := at + have; i < end && noise; i++ {
			out[i] = byte(c.rng.Uint32())
		}
	}
	return out
}
