package crashfs

import (
	"io/fs"
	"maps"
	"slices"
)

// inode is a file or a directory: what the process sees, what is durable, and the changes in between.
type inode struct {
	id int

	// Of a file. synced shares nothing with data.
	data, synced []byte
	pending      []Op // writes and truncations since the last fsync

	// Of a directory.
	live      map[string]*inode
	durable   map[string]*inode   // after the last fsync of this directory
	committed map[string]*inode   // after the last commit of the journal
	history   map[string][]*inode // what a name was since the last fsync, nil for absent
}

func (n *inode) isDir() bool { return n.live != nil }

func (n *inode) mode() fs.FileMode {
	if n.isDir() {
		return fs.ModeDir
	}
	return 0
}

// change is what happens to one name.
type change struct {
	dir  *inode
	name string
	to   *inode
}

// disk is the state after some calls.
type disk struct {
	inodes  []*inode
	journal [][]change // uncommitted changes of names, in order; each is atomic
}

// newDisk has only what is durable.
func newDisk(base *node) *disk {
	d := &disk{}
	d.adopt(base, map[*node]*inode{})
	return d
}

func (d *disk) adopt(n *node, seen map[*node]*inode) *inode {
	if i := seen[n]; i != nil {
		return i
	}
	i := d.make(n.kids != nil)
	seen[n] = i
	i.data, i.synced = slices.Clone(n.data), n.data
	for _, name := range slices.Sorted(maps.Keys(n.kids)) {
		kid := d.adopt(n.kids[name], seen)
		i.live[name], i.durable[name], i.committed[name] = kid, kid, kid
	}
	return i
}

func (d *disk) make(dir bool) *inode {
	i := &inode{id: len(d.inodes)}
	if dir {
		i.live, i.durable, i.committed = map[string]*inode{}, map[string]*inode{}, map[string]*inode{}
		i.history = map[string][]*inode{}
	}
	d.inodes = append(d.inodes, i)
	return i
}

// apply plays a call, which must have been possible.
func (d *disk) apply(o Op) {
	switch o.Kind {
	case Create, Mkdir:
		d.change(change{d.inodes[o.dir], o.name, d.make(o.Kind == Mkdir)})
	case Link:
		d.change(change{d.inodes[o.toDir], o.toName, d.inodes[o.ino]})
	case Rename:
		d.change(change{d.inodes[o.toDir], o.toName, d.inodes[o.ino]}, change{d.inodes[o.dir], o.name, nil})
	case Remove:
		d.change(change{d.inodes[o.dir], o.name, nil})
	case Write, Truncate:
		n := d.inodes[o.ino]
		n.data = o.on(n.data, len(o.data))
		n.pending = append(n.pending, o)
	case Sync:
		n := d.inodes[o.ino]
		if len(n.pending) > 0 {
			n.synced, n.pending = slices.Clone(n.data), nil
		}
		d.commit()
	case SyncDir:
		n := d.inodes[o.ino]
		n.durable = maps.Clone(n.live)
		clear(n.history)
		d.commit()
	}
}

// on applies the first n bytes of a write, or a truncation, to b.
func (o Op) on(b []byte, n int) []byte {
	size := int(o.off)
	if o.Kind == Truncate && size < len(b) {
		return b[:size]
	}
	if o.Kind == Write {
		size += n
	}
	if grow := size - len(b); grow > 0 && (n > 0 || o.Kind == Truncate) {
		old := len(b)
		b = slices.Grow(b, grow)[:size]
		clear(b[old:])
	}
	if o.Kind == Write {
		copy(b[o.off:], o.data[:n])
	}
	return b
}

func (d *disk) change(list ...change) {
	for _, c := range list {
		if c.to == nil {
			delete(c.dir.live, c.name)
		} else {
			c.dir.live[c.name] = c.to
		}
		c.dir.history[c.name] = append(c.dir.history[c.name], c.to)
	}
	d.journal = append(d.journal, list)
}

// commit makes the changes of names in the journal durable, as any fsync does on a journaling file
// system.
func (d *disk) commit() {
	for _, list := range d.journal {
		for _, c := range list {
			if c.to == nil {
				delete(c.dir.committed, c.name)
			} else {
				c.dir.committed[c.name] = c.to
			}
		}
	}
	d.journal = nil
}
