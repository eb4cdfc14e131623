package frame

import (
	"bytes"
	"sync/atomic"
)

// The frames of an agent mostly have the same tables one after the other. A reader keeps the encoded resource and
// series of the batch before in its arena: what is equal to that, byte for byte, was read and checked already, and is
// still in the Batch. References go on from table to table, so what follows a table that differs is read again.

// keptTables are what the resource and the series of a Batch were read from. Those of Strings are in arena.table.
type keptTables struct {
	lim      Limits
	resource keptTable
	groups   []keptTable
	read     int // groups of the batch before
	version  uint64
}

// keptTable is one table that was read and checked.
type keptTable struct {
	valid      bool
	encoded    []byte
	refs       int    // labels in it
	next       uint32 // what reference 0 stands for behind it
	histograms bool   // of a group: the kind that its types were checked for
}

// versions numbers tables for TablesVersion, those of all batches of the process.
var versions atomic.Uint64

// TablesVersion is a number that two batches share only if Decode read them one after the other into the same memory
// and their strings, resource labels and series, start times included, are the same. 0 is of no batch that was decoded.
func (b *Batch) TablesVersion() uint64 { return b.arena.kept.version }

// differ ends the tables that are those of the batch before: resource is read again, or only groups from one on.
// References of all of these may be overwritten from now on.
func (r *reader) differ(resource bool, from int) {
	k := &r.b.arena.kept
	r.same, k.version = false, 0
	k.resource.valid = k.resource.valid && !resource
	for i := from; i < len(k.groups); i++ {
		k.groups[i].valid = false
	}
}

// hit reports whether a table is the one that the batch before had in this place, and then takes it as read.
func (r *reader) hit(k *keptTable, encoded []byte) (bool, error) {
	if !r.same || !k.valid || !bytes.Equal(k.encoded, encoded) {
		return false, nil
	}
	r.next = k.next
	// Its references stay where they are. Their place in the arena is passed over, and their memory counts.
	_, err := r.takeRefs(k.refs)
	return true, err
}

// keep notes that a table was read and checked.
func (r *reader) keep(k *keptTable, encoded []byte, refs int, histograms bool) {
	*k = keptTable{true, append(k.encoded[:0], encoded...), refs, r.next, histograms}
}

// number gives the batch a new version unless all tables are those of the batch before.
func (r *reader) number(groups int) {
	k := &r.b.arena.kept
	if groups != k.read || k.version == 0 {
		k.version = versions.Add(1)
	}
	k.read = groups
}
