package crashfs

import "fmt"

// Kind of a call that changes the disk or makes a change durable.
type Kind uint8

// Kinds of calls.
const (
	Create Kind = iota + 1
	Write
	Truncate
	Sync // of a file's bytes and length
	Mkdir
	Link
	Rename
	Remove
	SyncDir // of a directory's names
)

func (k Kind) String() string {
	return [...]string{"?", "create", "write", "truncate", "fsync", "mkdir", "link", "rename", "remove", "fsync-dir"}[k]
}

// Op is one recorded call. Inodes are numbered in the order of their making, so that a
// recorded call can be played again.
type Op struct {
	Kind Kind
	// Path is the name that the caller used; To of a rename and a link.
	Path, To string

	ino, dir, toDir int
	name, toName    string
	off             int64 // of a write; the length of a truncate
	data            []byte
}

func (o Op) String() string {
	switch o.Kind {
	case Write:
		return fmt.Sprintf("write %s [%d, %d)", o.Path, o.off, o.off+int64(len(o.data)))
	case Truncate:
		return fmt.Sprintf("truncate %s to %d", o.Path, o.off)
	case Link, Rename:
		return fmt.Sprintf("%s %s to %s", o.Kind, o.Path, o.To)
	}
	return o.Kind.String() + " " + o.Path
}
