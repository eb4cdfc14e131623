package spread

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"slices"

	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/place"
)

// membersName is the file of the store's directory that says which places belong to the store.
const membersName = "PLACES"

// maxMembers bounds that file, bytes.
const maxMembers = 1 << 20

// Members are the places of a store.
type Members struct {
	Format int    `json:"format"`
	Store  string `json:"store"` // 32 hex digits
	// Coded: shards may have been written.
	Coded  bool     `json:"coded"`
	Places []Member `json:"places"`
}

// Member is a place that belongs to the store.
type Member struct {
	Name string `json:"name"` // in the settings
	ID   string `json:"id"`   // of its identity
	// Claimed: the place has its identity. One that has not may be blank; one that has been claimed
	// and is blank is another drive, or none.
	Claimed bool `json:"claimed"`
	// State is what is to become of it.
	State State `json:"state,omitempty"`
}

// HasMembers reports whether a store has bodies on places, so that it cannot be opened without them.
func HasMembers(fsys vfs.FS) (bool, error) {
	_, err := fsys.Stat(membersName)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// loadMembers reads the file; without one the store is new.
func loadMembers(fsys vfs.FS) (Members, error) {
	m := Members{Format: 1, Store: place.NewID()}
	b, _, err := vfs.ReadFile(fsys, membersName, maxMembers)
	if errors.Is(err, fs.ErrNotExist) {
		return m, nil
	}
	if err != nil {
		return m, fmt.Errorf("read %s: %w", membersName, err)
	}
	line, rest, _ := bytes.Cut(b, []byte("\n"))
	if string(rest) != checksum(line) {
		return m, fmt.Errorf("read %s: checksum mismatch; restore it from a backup of the directory", membersName)
	}
	if err := json.Unmarshal(line, &m); err != nil || m.Format != 1 {
		return m, fmt.Errorf("read %s: format %d, which a later release wrote: %w", membersName, m.Format, err)
	}
	return m, nil
}

func checksum(line []byte) string {
	return fmt.Sprintf("crc32c %08x\n", crc32.Checksum(line, castagnoli))
}

func (m Members) save(fsys vfs.FS) error {
	line, err := json.Marshal(m)
	if err == nil {
		err = vfs.ReplaceFile(fsys, membersName, slices.Concat(line, []byte("\n"), []byte(checksum(line))))
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", membersName, err)
	}
	return nil
}

func (m Members) named(name string) *Member {
	for i := range m.Places {
		if m.Places[i].Name == name {
			return &m.Places[i]
		}
	}
	return nil
}

func (m Members) withID(id string) *Member {
	for i := range m.Places {
		if m.Places[i].ID == id {
			return &m.Places[i]
		}
	}
	return nil
}

// Replace says that a place was replaced by a blank one: the next start claims it, instead of
// refusing it as a drive that is not mounted. The store must not be running. What the old one had
// is made again from the others.
func Replace(fsys vfs.FS, name string) error {
	there, err := HasMembers(fsys)
	if err != nil {
		return err
	}
	if !there {
		return fmt.Errorf("replace place %s: the store has no places", name)
	}
	m, err := loadMembers(fsys)
	if err != nil {
		return err
	}
	p := m.named(name)
	if p == nil {
		return fmt.Errorf("replace place %s: the store has none of that name", name)
	}
	p.ID, p.Claimed, p.State = place.NewID(), false, InUse
	return m.save(fsys)
}
