package mirror

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"sync/atomic"

	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
)

// MaxDrives is the largest number of drives of one store.
const MaxDrives = 5

// Files that each drive has for itself.
const (
	// RecordName is the file with the drive's record.
	RecordName = "MEMBER"
	lockName   = "MEMBER.lock"
	storeLock  = "LOCK"
	indexDir   = "index"
	// LedgerDir has the ledger of a store with places: a cache, like the index, and on the same drive.
	LedgerDir = "ledger"
)

// own reports whether a name in the root of a drive is the drive's own, and so is never copied.
func own(name string) bool {
	return name == RecordName || name == lockName || name == storeLock || name == indexDir || name == LedgerDir ||
		len(name) > len(RecordName) && name[:len(RecordName)+1] == RecordName+"."
}

// Drive is a directory on a drive of its own.
type Drive struct {
	Name string // for messages, such as the path
	FS   vfs.FS // of the directory
}

// State of a drive.
type State string

// States.
const (
	Synced  State = "in sync" // has every acknowledged write
	Copying State = "copying" // gets what it lacks, while writes go on
	Waiting State = "waiting" // will get what it lacks
	Missing State = "missing" // cannot be reached; it is looked for again
	Failed  State = "failed"  // a write or fsync failed; it gets nothing until the next start
	Refused State = "refused" // has something else on it, and is left alone
)

// drive is a Drive of an open FS. What is not atomic belongs to Open, and then to FS.mu.
type drive struct {
	Drive
	slot   int
	id     ID
	lock   io.Closer
	state  State
	cause  error // why it is not in sync
	jobs   chan *order
	idle   atomic.Int32
	errors atomic.Int64 // calls that failed
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func newID() ID {
	var b [16]byte
	_, _ = rand.Read(b[:]) // it never fails: crypto/rand ends the process instead
	return ID(hex.EncodeToString(b[:]))
}

// encode gives the file of a record: one line of JSON, and one with its CRC32C.
func (r Record) encode() ([]byte, error) {
	b, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	return fmt.Appendf(b, "\n%08x\n", crc32.Checksum(b, castagnoli)), nil
}

// errRecord means that the file is there and is no record.
var errRecord = errors.New("the drive's record is damaged")

func decodeRecord(b []byte) (r Record, err error) {
	line, sum, ok := bytes.Cut(b, []byte("\n"))
	if !ok || string(sum) != fmt.Sprintf("%08x\n", crc32.Checksum(line, castagnoli)) {
		return r, errRecord
	}
	in := json.NewDecoder(bytes.NewReader(line))
	// A field that this release does not know may change what the others mean.
	in.DisallowUnknownFields()
	if err := in.Decode(&r); err != nil {
		return r, fmt.Errorf("%w: %w", errRecord, err)
	}
	if !valid(r.Store) || !valid(r.Drive) || len(r.InSync) > MaxDrives {
		return r, errRecord
	}
	return r, nil
}

func valid(id ID) bool {
	_, err := hex.DecodeString(string(id))
	return err == nil && len(id) == 32
}

// largestRecord bounds what is read of a record's file, bytes.
const largestRecord = 64 << 10

// readRecord gives the record of a drive; fs.ErrNotExist where it has none.
func readRecord(fsys vfs.FS) (Record, error) {
	b, _, err := vfs.ReadFile(fsys, RecordName, 0)
	if err != nil {
		return Record{}, err
	}
	if len(b) > largestRecord {
		return Record{}, errRecord
	}
	return decodeRecord(b)
}

// keep makes a record durable on the drive, as its own.
func (d *drive) keep(r Record) error {
	r.Drive = d.id
	b, err := r.encode()
	if err == nil {
		err = vfs.ReplaceFile(d.FS, RecordName, b)
	}
	if err != nil {
		d.errors.Add(1)
		return fmt.Errorf("keep the membership on %s: %w", d.Name, err)
	}
	return nil
}

// blank reports whether a drive without a record has nothing that could be a store's.
func blank(fsys vfs.FS) (bool, error) {
	list, err := fsys.List(".")
	if errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	for _, e := range list {
		if !own(e.Name) && e.Name != "lost+found" {
			return false, err
		}
	}
	return true, err
}
