// Package body keeps the bodies of objects that are too large for the engine's log.
//
// The log decides which objects exist: an object exists when a record of the log names its
// bodies. A body is written under a new id, made durable, and only then named by a record; it
// never changes. A body that no record names is garbage, which the engine removes. So a Store
// needs neither transactions nor an order among bodies, and another way to keep bytes (several
// drives, erasure codes, buckets) is another Store.
package body

import (
	"errors"
	"io"
)

// BlockSize is the unit in which bodies are written and verified, bytes.
const BlockSize = 1 << 20

// ErrUnsynced means that a sync failed, so that it is unknown what is durable. The engine takes no
// more writes until it is opened again, which begins with Store.Recover.
var ErrUnsynced = errors.New("a body may not be durable")

// ErrUnavailable means that a body cannot be read or written now, because places of the store do not
// answer. Nothing is known to be lost.
var ErrUnavailable = errors.New("places of the store do not answer")

// ErrDamaged means that a body is there and cannot be read, from anywhere.
var ErrDamaged = errors.New("the body is damaged")

// Store keeps bodies. All methods but Recover may be called at the same time, for one body
// too. Ids are 32 hex digits. Errors wrap fs.ErrNotExist for a body that is not there, and
// syscall.ENOSPC or EDQUOT for lack of room, after which the store goes on.
type Store interface {
	// Recover is called once, before every other method. It makes durable what List will give, and
	// removes unfinished bodies.
	Recover() error
	// Create begins a body.
	Create(id string) (Writer, error)
	// Open opens a finished body. What is open can be read to its end, even when the body
	// is removed meanwhile.
	Open(id string) (Reader, error)
	// Remove deletes a finished body.
	Remove(id string) error
	// List calls fn for each finished body, in no order, until fn fails. fn may remove the
	// body that it is given. After a crash there may be bodies whose Finish had not returned.
	List(fn func(id string) error) error
	// SetAside takes a body out of the store and keeps its bytes for inspection; it gives the
	// place, and the empty string when there is no such body.
	SetAside(id string) (place string, err error)
}

// Writer writes one body. End it with Finish or Discard.
type Writer interface {
	// Write appends a block: BlockSize bytes, or fewer at the end of the body.
	io.Writer
	// Finish makes the body durable under its id. An error that is not ErrUnsynced says
	// that the body is not there, or will be gone after Discard.
	Finish() error
	// Discard removes what was written, also after Finish.
	Discard()
}

// Reader reads one body.
type Reader interface {
	// ReadAt gives the stored bytes. The engine verifies each block against the checksums in its
	// record and reports a difference as damage, so a Store with redundancy must find and correct
	// damage itself before it returns bytes.
	io.ReaderAt
	io.Closer
}

// Name is what reports of damage call a body, and where Files keeps it below the store's directory.
func Name(id string) string { return Dir + "/" + id[:min(2, len(id))] + "/" + id }

// Dir begins every Name.
const Dir = "blobs"
