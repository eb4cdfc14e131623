package inventory

import (
	"errors"
	"fmt"
	"io"

	"github.com/parquet-go/parquet-go"

	"lightmetrics.dev/lightmetrics/internal/objstore"
)

// rowsAtOnce of a Parquet file are decoded together.
const rowsAtOnce = 1024

// readParquet reads a file with the columns bucket, key and, where versions are listed, is_latest and is_delete_marker. Its keys
// are as they are.
func readParquet(r *ranges, each func(object) error) (err error) {
	if err := r.verify(); err != nil {
		return err
	}
	// The library panics at some damaged files. Their checksum holds, so whoever wrote them did it wrong.
	defer func() {
		if p := recover(); p != nil {
			err = unusable(r.file.Key, "%v", p)
		}
	}()
	f, err := parquet.OpenFile(r, r.file.Size, parquet.SkipPageIndex(true), parquet.SkipBloomFilters(true), parquet.ReadBufferSize(1<<20))
	if err != nil {
		return r.format(err)
	}
	// No two rows have the same key and version, so a row takes at least a byte, however well it is compressed. Columns
	// of nothing could have rows without end.
	if n := f.NumRows(); n < 0 || n > r.file.Size {
		return unusable(r.file.Key, "%d rows in %d bytes", n, r.file.Size)
	}
	c, err := leafColumns(f.Schema())
	if err != nil {
		return unusable(r.file.Key, "%w", err)
	}
	buf := make([]parquet.Row, rowsAtOnce)
	for _, g := range f.RowGroups() {
		if g.NumRows() > f.NumRows() {
			return unusable(r.file.Key, "a group of %d rows of %d", g.NumRows(), f.NumRows())
		}
		if err := r.group(g, c, buf, each); err != nil {
			return err
		}
	}
	return nil
}

// leafColumns finds the columns; each must be a leaf of the type that S3 writes.
func leafColumns(s *parquet.Schema) (columns, error) {
	c := columns{bucket: -1, key: -1, latest: -1, deleted: -1}
	for name, want := range map[string]struct {
		at   *int
		kind parquet.Kind
	}{
		"bucket": {&c.bucket, parquet.ByteArray}, "key": {&c.key, parquet.ByteArray},
		"is_latest": {&c.latest, parquet.Boolean}, "is_delete_marker": {&c.deleted, parquet.Boolean},
	} {
		leaf, ok := s.Lookup(name)
		if !ok {
			continue
		}
		if !leaf.Node.Leaf() || leaf.Node.Type().Kind() != want.kind || leaf.Node.Repeated() {
			return c, fmt.Errorf("the column %s is %s", name, leaf.Node)
		}
		*want.at = leaf.ColumnIndex
	}
	if c.bucket < 0 || c.key < 0 {
		return c, errors.New("there are no columns bucket and key")
	}
	return c, nil
}

func (r *ranges) group(g parquet.RowGroup, c columns, buf []parquet.Row, each func(object) error) error {
	rows := g.Rows()
	defer rows.Close()
	for {
		n, err := rows.ReadRows(buf)
		for _, row := range buf[:n] {
			var o object
			for _, v := range row {
				switch v.Column() {
				case c.bucket:
					o.bucket = string(v.ByteArray())
				case c.key:
					o.key = string(v.ByteArray())
				case c.latest:
					o.superseded = !v.IsNull() && !v.Boolean()
				case c.deleted:
					o.deleted = !v.IsNull() && v.Boolean()
				}
			}
			if err := each(o); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return r.format(err)
		}
	}
}

// format tells an error of the store from one of the file.
func (r *ranges) format(err error) error {
	for _, e := range []error{ErrUnusable, objstore.ErrUnavailable, objstore.ErrNotFound, objstore.ErrDenied, objstore.ErrNoBucket, objstore.ErrUnknown} {
		if errors.Is(err, e) || r.ctx.Err() != nil {
			return err
		}
	}
	return unusable(r.file.Key, "%w", err)
}
