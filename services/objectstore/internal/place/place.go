// Package place keeps files that never change where they outlive a drive: in a local directory, or
// in a bucket of another S3 endpoint.
//
// A place promises little, so that a bucket can promise it too: a file is written once under a name
// of its own, is there whole or not at all, and is durable when Finish has returned. What the
// files are, and which of them belong together, is the business of packages above.
package place

import (
	"context"
	"errors"
	"io"
	"time"
)

var (
	// ErrOut: the place cannot be used now. It is absent, poisoned by a failed fsync, of another
	// store, or it does not answer.
	ErrOut = errors.New("the place is out")
	// ErrPoisoned: an fsync of the place failed. It takes no more writes before the next start. It
	// comes with ErrOut.
	ErrPoisoned = errors.New("an fsync failed, and what is durable is unknown")
	// ErrBlank: nobody has claimed the place; it has no identity and no files.
	ErrBlank = errors.New("the place is blank")
	// ErrForeign: the place has files, or an identity, that are not of this store.
	ErrForeign = errors.New("the place is not of this store")
	// ErrUnknown: the answer to a write was lost. The file may be there, whole, or not.
	ErrUnknown = errors.New("it is unknown whether the file is there")
)

// Place keeps files. All methods may be called at the same time. Errors wrap fs.ErrNotExist for a
// file that is not there, fs.ErrExist for a name that is taken, syscall.ENOSPC or EDQUOT for lack of
// room, and ErrOut where the place itself is the reason.
type Place interface {
	// Name is the name in the settings.
	Name() string
	// Local: the files lie on a drive of this machine, and Finish means that they were fsynced.
	Local() bool
	// Identity gives who the place is: ErrBlank where nobody has claimed it, ErrForeign where there
	// are files without an identity. It reads the place, so it also tells whether it answers.
	Identity(ctx context.Context) (Identity, error)
	// Claim gives a blank place its identity, durably. fs.ErrExist when it has one.
	Claim(ctx context.Context, id Identity) error
	// Recover is called once, after Identity and before everything below. It makes durable what List
	// will give, and removes unfinished files.
	Recover(ctx context.Context) error
	// Tidy removes what writers have left that have ended and could not remove it, however short ago
	// that was. Files that are being written stay.
	Tidy(ctx context.Context) error

	// Create begins a file. The name may be taken: Finish decides.
	Create(ctx context.Context, name string) (Writer, error)
	// Open opens a file. A local file can be read to its end even when it is removed meanwhile; one
	// of a bucket cannot.
	Open(ctx context.Context, name string) (Reader, error)
	// Stat describes a file.
	Stat(ctx context.Context, name string) (File, error)
	// Remove deletes a file. A loss of power may bring it back.
	Remove(ctx context.Context, name string) error
	// SetAside takes a file out of the place and keeps its bytes for inspection. It gives where they
	// are; fs.ErrNotExist when there is no such file.
	SetAside(ctx context.Context, name string) (where string, err error)
	// List calls fn for the files whose names begin with prefix and are greater than after, in the
	// order of their names, until fn fails. fn may remove the file that it is given.
	List(ctx context.Context, prefix, after string, fn func(File) error) error

	// Free is the room that is left, bytes; -1 when it is not known.
	Free(ctx context.Context) (int64, error)
	// Err says why the place takes no writes; nil while it does. It asks nobody.
	Err() error
	// Close gives the place back. Open files stay usable.
	Close() error
}

// File describes a file.
type File struct {
	Name     string
	Size     int64     // bytes
	Modified time.Time // zero where the place does not know it
}

// Writer writes one file. End it with Finish or Discard.
type Writer interface {
	io.Writer
	// Finish makes the file durable under its name, in one step and without replacing: fs.ErrExist
	// when the name is taken. ErrUnknown: the file may be there.
	Finish() error
	// Discard removes what was written, unless Finish has succeeded.
	Discard()
}

// Reader reads one file.
type Reader interface {
	io.ReaderAt
	io.Closer
	// Size is the length of the file, bytes.
	Size() int64
}

// maxName is the longest name of a file, bytes.
const maxName = 200

// ValidName reports whether a place can keep a file of that name: 2 to 200 lower-case letters,
// digits, dots and dashes, of which the first two are letters or digits.
func ValidName(name string) bool {
	for i := range len(name) {
		c := name[i]
		if !(c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || i > 1 && (c == '.' || c == '-')) {
			return false
		}
	}
	return len(name) >= 2 && len(name) <= maxName
}
