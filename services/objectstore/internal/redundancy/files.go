package redundancy

import (
	"context"
	"errors"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/ledger"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/spread"
)

// Errors of Files. A file that is not there is fs.ErrNotExist.
var (
	// ErrAway: the place cannot be asked, or takes no writes, now.
	ErrAway = errors.New("the place is away")
	// ErrDamaged: the file is there, and is not what its name says.
	ErrDamaged = errors.New("the file is damaged")
	// ErrUnreadable: fewer files of the body can be read than it needs.
	ErrUnreadable = errors.New("too few files of the body can be read")
	// ErrNoRoom: the place has no room.
	ErrNoRoom = errors.New("the place has no room")
)

// File is a file of a body at a place.
type File struct {
	ledger.Key
	K, M  uint8
	Place string // identity
}

func fileOf(r ledger.Row) File { return File{Key: r.Key, K: r.K, M: r.M, Place: r.Place} }

// Verified is what reading a file back has told.
type Verified struct {
	BodySize int64  // of the whole body
	Bytes    int64  // of the file
	Checksum uint32 // of the digest of the file, its first bytes
}

// Listed is a file that a listing found.
type Listed struct {
	File
	Bytes int64
}

// PlaceState is how a place is now.
type PlaceState struct {
	Name string
	// ID is who is there; empty when it did not say.
	ID    string
	Local bool
	// Old: it has bodies of the time before places, and gets no more.
	Old bool
	// Err is why it takes no files; nil when it does.
	Err error
	// Free is the room that is left, bytes; -1 when it is not known.
	Free int64
	// State is what is to become of it.
	State spread.State
	// Capacity is how much the settings give it, bytes; 0: no bound.
	Capacity int64
}

// Files is what is done to the files of bodies. Every call may be repeated, and be under way twice.
type Files interface {
	// Status asks every place of the settings.
	Status(ctx context.Context) []PlaceState
	// Make writes files of a body, reading it once from whatever of it can be read, and gives an error for each. Without
	// one the file is durable at its place, also when it was there before. A damaged file of the name is set aside, and
	// not before the new one can take its place.
	Make(ctx context.Context, body string, size int64, p Policy, want []File) []error
	// Verify reads a file back.
	Verify(ctx context.Context, f File) (Verified, error)
	// Stat says that a file is there, by asking its place.
	Stat(ctx context.Context, f File) error
	// Remove deletes a file; no error when it is not there.
	Remove(ctx context.Context, f File) error
	// Tidy removes files of a place that are not finished, and that nobody writes.
	Tidy(ctx context.Context, place string) error
	// List calls fn for the files of a place in the order of their bodies, from behind a body on; the empty id is before all.
	List(ctx context.Context, place, behind string, fn func(Listed) error) error
	// SetState says what is to become of a place of the settings, durably. Errors are spread.StateError.
	SetState(place string, to spread.State) error
	// Writing is how many files are being written to a place of the settings.
	Writing(place string) int
}
