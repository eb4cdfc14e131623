package inventory

import (
	"compress/gzip"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
)

// columns are the places of what we read in a row.
type columns struct {
	bucket, key, latest, deleted int
	count                        int
}

// parseColumns reads the schema of CSV files: "Bucket, Key, VersionId, IsLatest, IsDeleteMarker, Size, …".
func parseColumns(schema string) (columns, error) {
	c := columns{bucket: -1, key: -1, latest: -1, deleted: -1}
	names := strings.Split(schema, ",")
	c.count = len(names)
	for i, n := range names {
		switch strings.ToLower(strings.ReplaceAll(strings.TrimSpace(n), "_", "")) {
		case "bucket":
			c.bucket = i
		case "key":
			c.key = i
		case "islatest":
			c.latest = i
		case "isdeletemarker":
			c.deleted = i
		}
	}
	if c.bucket < 0 || c.key < 0 {
		return c, fmt.Errorf("the schema %.200q has no bucket and key", schema)
	}
	return c, nil
}

// maxRecord bounds a row of a CSV file: no store has keys of so many bytes.
const maxRecord = 64 << 10

var errLongRow = errors.New("a row is too long")

// rowLimit fails when a row is read that is too long, so that a damaged or hostile file takes no memory. What the CSV reader
// has read ahead counts for the next row.
type rowLimit struct {
	r    io.Reader
	left int
}

func (l *rowLimit) Read(p []byte) (int, error) {
	if l.left <= 0 {
		return 0, errLongRow
	}
	n, err := l.r.Read(p[:min(len(p), l.left)])
	l.left -= n
	return n, err
}

// readCSV reads a gzipped file without a header, whose keys are URL-encoded.
func readCSV(r *ranges, c columns, each func(object) error) error {
	bad := func(err error) error {
		// Errors of the store come through the readers; they say nothing about the file.
		if errors.Is(err, ErrUnusable) || r.ctx.Err() != nil || !isFormat(err) {
			return err
		}
		return unusable(r.file.Key, "%w", err)
	}
	if err := r.verify(); err != nil {
		return err
	}
	z, err := gzip.NewReader(io.NewSectionReader(r, 0, r.file.Size))
	if err != nil {
		return bad(err)
	}
	limit := &rowLimit{r: z}
	rows := csv.NewReader(limit)
	rows.FieldsPerRecord, rows.ReuseRecord = c.count, true
	for {
		limit.left = maxRecord
		row, err := rows.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return bad(err)
		}
		key, err := url.QueryUnescape(row[c.key])
		if err != nil {
			return unusable(r.file.Key, "%w", err)
		}
		o := object{bucket: row[c.bucket], key: key}
		if c.latest >= 0 {
			o.superseded = row[c.latest] == "false"
		}
		if c.deleted >= 0 {
			o.deleted = row[c.deleted] == "true"
		}
		if err := each(o); err != nil {
			return err
		}
	}
}

// isFormat: the error is one of what the bytes are, and not of how they were read.
func isFormat(err error) bool {
	var parse *csv.ParseError
	return errors.As(err, &parse) || errors.Is(err, errLongRow) || errors.Is(err, gzip.ErrChecksum) || errors.Is(err, gzip.ErrHeader) ||
		errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) || strings.HasPrefix(err.Error(), "flate:")
}
