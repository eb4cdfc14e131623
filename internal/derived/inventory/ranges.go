package inventory

import (
	"context"
	"crypto/md5" // #nosec G501: see inventory.go
	"encoding/hex"
	"fmt"
	"io"
	"strings"

	"lightmetrics.dev/lightmetrics/internal/objstore"
)

// chunkBytes is how much of a file one GET reads.
const chunkBytes = 8 << 20

// ranges reads a file by ranges, so that a file of any size takes little memory. It remembers the last range.
type ranges struct {
	ctx   context.Context
	store objstore.Getter
	file  file

	at    int64
	chunk []byte
}

// ReadAt is io.ReaderAt; not for concurrent use.
func (r *ranges) ReadAt(p []byte, off int64) (int, error) {
	n := 0
	for n < len(p) {
		if off+int64(n) >= r.file.Size {
			return n, io.EOF
		}
		if err := r.load(off + int64(n)); err != nil {
			return n, err
		}
		n += copy(p[n:], r.chunk[off+int64(n)-r.at:])
	}
	return n, nil
}

// load has the range in memory that the offset lies in.
func (r *ranges) load(off int64) error {
	at := off - off%chunkBytes
	if r.chunk != nil && at == r.at {
		return nil
	}
	want := min(chunkBytes, r.file.Size-at)
	b, _, err := r.store.Get(r.ctx, r.file.Key, objstore.GetOptions{Offset: at, Length: want, Limit: want})
	if objstore.Unreadable(err) {
		return unusable(r.file.Key, "%w", err)
	}
	if err != nil {
		return fmt.Errorf("read an inventory: %w", err)
	}
	if int64(len(b)) != want {
		return unusable(r.file.Key, "it is shorter than its manifest says")
	}
	r.at, r.chunk = at, b
	return nil
}

// verify compares the bytes with the checksum that the manifest has.
func (r *ranges) verify() error {
	h := md5.New() // #nosec G401
	if _, err := io.Copy(h, io.NewSectionReader(r, 0, r.file.Size)); err != nil {
		return err
	}
	if !strings.EqualFold(r.file.MD5, hex.EncodeToString(h.Sum(nil))) {
		return unusable(r.file.Key, "its checksum differs")
	}
	return nil
}
