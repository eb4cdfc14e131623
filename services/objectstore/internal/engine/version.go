package engine

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"strings"
)

// A bucket may keep the versions of its objects. Each version has a record of its own, under a key of its own:
//
//	"\x00v" key "\x00" id      a version with an id, or a delete marker
//	key                        the null version: written before versioning was on, or while it is suspended
//
// So records are found, moved, replaced, rebuilt, found damaged and repaired like those of all other keys, and a bucket
// without versions has the records that it always had. Which version is the current one follows from the order in which
// they were made: the newest. The index has its entry under the client's key, where reads and listings look, and nothing
// there when it is a delete marker. See docs/adr/0059-versions-in-the-log.md.
const (
	versionPrefix = "\x00v"
	// versionIDLen is that of a version's id: the sequence that made it, inverted so that the newest sorts first, and a
	// random half, so that no id is ever given twice, not even by a store that was restored from a copy.
	versionIDLen = 32
	// NullVersion names the version without an id.
	NullVersion = "null"
)

// Versioning is the state of a bucket's versioning.
type Versioning string

// A bucket begins Unversioned, and never comes back to it.
const (
	Unversioned Versioning = ""
	Enabled     Versioning = "Enabled"
	Suspended   Versioning = "Suspended"
)

// settingVersioning is the setting of a bucket that has its Versioning.
const settingVersioning = "versioning"

// Versioning gives the state of the bucket's versioning.
func (b *Bucket) Versioning() Versioning {
	switch v := Versioning(b.Settings[settingVersioning]); v {
	case Enabled, Suspended:
		return v
	}
	return Unversioned
}

func newVersionID(seq uint64) string {
	var random [8]byte
	_, _ = rand.Read(random[:]) // it never fails
	return newestFirst(seq) + hex.EncodeToString(random[:])
}

// newestFirst is the first half of the id of a version that the write with sequence seq made.
func newestFirst(seq uint64) string {
	var raw [8]byte
	binary.BigEndian.PutUint64(raw[:], ^seq)
	return hex.EncodeToString(raw[:])
}

// ValidVersionID reports whether a text has the form of a version's id.
func ValidVersionID(id string) bool {
	if len(id) != versionIDLen {
		return false
	}
	for i := range len(id) {
		if c := id[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// orderOf gives the sequence that made a version, from its id.
func orderOf(id string) uint64 {
	var raw [8]byte
	if _, err := hex.Decode(raw[:], []byte(id[:16])); err != nil {
		return 0
	}
	return ^binary.BigEndian.Uint64(raw[:])
}

// recordKey gives the key of a version's record; an empty id is the null version.
func recordKey(key, id string) string {
	if id == "" {
		return key
	}
	return versionPrefix + key + "\x00" + id
}

// clientKey gives the client's key and the version's id from the key of a record. Of the null version, and of records of
// uploads and parts, it gives the key as it is.
func clientKey(record string) (key, id string) {
	rest, ok := strings.CutPrefix(record, versionPrefix)
	if !ok {
		return record, ""
	}
	i := len(rest) - versionIDLen - 1
	if i < 1 || rest[i] != 0 || !ValidVersionID(rest[i+1:]) {
		return record, ""
	}
	return rest[:i], rest[i+1:]
}

// isInternal reports whether the key of a record is that of an upload or a part, and not that of an object.
func isInternal(record string) bool {
	return isHidden(record) && !strings.HasPrefix(record, versionPrefix)
}

func (e *entry) isMarker() bool { return e.flags&flagMarker != 0 }

// newer orders the versions of a key.
func (e *entry) newer(than *entry) bool { return than == nil || e.order > than.order }

// made is the sequence of the write that made the version. Tags and reclaiming write its record again, with later ones.
func (e *entry) made() uint64 {
	if e.order != 0 {
		return e.order
	}
	return e.seq
}

// visible gives what clients see of a key whose newest version is x: nothing of a delete marker.
func visible(x *entry) *entry {
	if x != nil && x.isMarker() {
		return nil
	}
	return x
}

// become turns the operation of a client on a key into that on the record which the bucket's versioning asks for. The
// sequence of the record is set.
func (o *op) become() {
	if o.rec.kind == kindDelete {
		o.rec.kind, o.rec.flags = kindPut, o.rec.flags|flagMarker
	}
	if o.versioning == Enabled {
		o.obj.Version = newVersionID(o.rec.seq)
		o.rec.key = recordKey(o.rec.key, o.obj.Version)
	} else {
		o.obj.Order = o.rec.seq
	}
	switch {
	case o.rec.flags&flagMarker != 0:
		o.rec.meta = encodeMeta(&o.obj)
	case o.obj.Order != 0:
		o.rec.meta = appendOrder(o.rec.meta, o.obj.Order)
	}
}
