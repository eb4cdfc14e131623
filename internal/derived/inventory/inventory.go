// Package inventory reads the lists of a bucket's keys that S3 Inventory writes each day or week, as CSV or Parquet, in
// place of a listing. An inventory is older than the bucket: it has every object that was created before it was begun, and
// some of those that were created while it was made.
//
// Source of the formats: "Amazon S3 Inventory" in the S3 user guide (manifest version 2016-11-30). Stores that write the
// same files will do. ORC is not read.
package inventory

import (
	"context"
	"crypto/md5" // #nosec G501: the checksum that S3 Inventory has; it finds damage, nobody is kept out by it
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"lightmetrics.dev/lightmetrics/internal/derived/audit"
	"lightmetrics.dev/lightmetrics/internal/objstore"
)

// Config says where inventories are.
type Config struct {
	// Store is the bucket that they are written to, without a prefix.
	Store Store
	// Bucket is that bucket's name. Prefix is where the inventories of one configuration stand:
	// <destination prefix>/<source bucket>/<name of the configuration>/.
	Bucket, Prefix string
	// Source is the bucket that is listed, and SourcePrefix what is cut off its keys; others are left out.
	Source, SourcePrefix string
}

// Store is what reading an inventory needs.
type Store interface {
	objstore.Getter
	objstore.Lister
}

// Errors of inventories, for callers that branch.
var (
	// ErrNone: there is no finished inventory.
	ErrNone = errors.New("no inventory")
	// ErrUnusable: its manifest or a file is damaged, of another bucket, or has no keys that could be read.
	ErrUnusable = errors.New("unusable inventory")
)

func unusable(key, format string, args ...any) error {
	return fmt.Errorf("%w %q: %w", ErrUnusable, key, fmt.Errorf(format, args...))
}

const (
	maxManifest = 16 << 20
	maxFiles    = 100_000
	version     = "2016-11-30"
	// dated is the form of the folders of inventories.
	dated = "2006-01-02T15-04Z"
)

// manifest is manifest.json of an inventory.
type manifest struct {
	SourceBucket      string `json:"sourceBucket"`
	DestinationBucket string `json:"destinationBucket"` // an ARN
	Version           string `json:"version"`
	CreationTimestamp string `json:"creationTimestamp"` // milliseconds; the listing began then
	FileFormat        string `json:"fileFormat"`
	FileSchema        string `json:"fileSchema"`
	Files             []file `json:"files"`
}

type file struct {
	Key  string `json:"key"`
	Size int64  `json:"size"`
	MD5  string `json:"MD5checksum"`
}

// Open reads the manifest under key, or that of the newest inventory for "".
func (c Config) Open(ctx context.Context, key string) (audit.Inventory, error) {
	if key == "" {
		var err error
		if key, err = c.newest(ctx); err != nil {
			return audit.Inventory{}, fmt.Errorf("find the newest inventory: %w", err)
		}
	}
	b, _, err := c.Store.Get(ctx, key, objstore.GetOptions{Limit: maxManifest})
	if objstore.Unreadable(err) {
		err = unusable(key, "%w", err)
	}
	if err != nil {
		return audit.Inventory{}, fmt.Errorf("open an inventory: %w", err)
	}
	if err := c.verify(ctx, key, b); err != nil {
		return audit.Inventory{}, err
	}
	m, at, err := c.parse(key, b)
	if err != nil {
		return audit.Inventory{}, err
	}
	return audit.Inventory{Key: key, At: at, Files: len(m.Files), Read: func(ctx context.Context, i int, each func(string) error) error {
		if i < 0 || i >= len(m.Files) {
			return unusable(key, "it has no file %d", i)
		}
		return c.read(ctx, m, m.Files[i], each)
	}}, nil
}

// newest finds the last folder whose checksum is there: S3 writes it when everything else is.
func (c Config) newest(ctx context.Context) (string, error) {
	var folders []string
	for p, err := range objstore.Groups(ctx, c.Store, objstore.ListOptions{Prefix: c.Prefix, Delimiter: "/"}) {
		if err != nil {
			return "", err
		}
		if _, err := time.Parse(dated, strings.TrimSuffix(strings.TrimPrefix(p, c.Prefix), "/")); err == nil {
			folders = append(folders, p)
		}
	}
	for _, p := range slices.Backward(folders) {
		_, _, err := c.Store.Get(ctx, p+"manifest.checksum", objstore.GetOptions{Limit: 1 << 10})
		if err == nil {
			return p + "manifest.json", nil
		}
		if !errors.Is(err, objstore.ErrNotFound) {
			return "", err
		}
	}
	return "", fmt.Errorf("%w under %q", ErrNone, c.Prefix)
}

// verify compares the manifest with the checksum beside it.
func (c Config) verify(ctx context.Context, key string, b []byte) error {
	sum, _, err := c.Store.Get(ctx, strings.TrimSuffix(key, "json")+"checksum", objstore.GetOptions{Limit: 1 << 10})
	if err != nil {
		return fmt.Errorf("open an inventory: %w", err)
	}
	own := md5.Sum(b) // #nosec G401
	if !strings.EqualFold(strings.TrimSpace(string(sum)), hex.EncodeToString(own[:])) {
		return unusable(key, "its checksum differs")
	}
	return nil
}

func (c Config) parse(key string, b []byte) (manifest, time.Time, error) {
	var m manifest
	if err := json.Unmarshal(b, &m); err != nil {
		return m, time.Time{}, unusable(key, "%w", err)
	}
	ms, err := strconv.ParseInt(m.CreationTimestamp, 10, 64)
	switch {
	case m.Version != version:
		err = fmt.Errorf("version %.40q, want %s", m.Version, version)
	case m.SourceBucket != c.Source:
		err = fmt.Errorf("it is of the bucket %.80q, want %q", m.SourceBucket, c.Source)
	case strings.TrimPrefix(m.DestinationBucket, "arn:aws:s3:::") != c.Bucket:
		err = fmt.Errorf("its files are in the bucket %.80q, want %q", m.DestinationBucket, c.Bucket)
	case len(m.Files) == 0 || len(m.Files) > maxFiles:
		err = fmt.Errorf("%d files, want 1 to %d", len(m.Files), maxFiles)
	case err != nil || ms <= 0:
		err = fmt.Errorf("begun at %.40q", m.CreationTimestamp)
	case m.FileFormat == "CSV":
		_, err = parseColumns(m.FileSchema)
	case m.FileFormat != "Parquet":
		err = fmt.Errorf("format %.40q, want CSV or Parquet", m.FileFormat)
	}
	for _, f := range m.Files {
		if err == nil && (f.Key == "" || f.Size <= 0 || len(f.MD5) != 2*md5.Size) {
			err = fmt.Errorf("file %.80q has %d bytes and the checksum %.40q", f.Key, f.Size, f.MD5)
		}
	}
	if err != nil {
		return m, time.Time{}, unusable(key, "%w", err)
	}
	return m, time.UnixMilli(ms), nil
}

// read calls each with the keys of one file that are ours and stand for an object.
func (c Config) read(ctx context.Context, m manifest, f file, each func(string) error) error {
	r := &ranges{ctx: ctx, store: c.Store, file: f}
	row := func(o object) error {
		if o.bucket != c.Source {
			return unusable(f.Key, "a row of the bucket %.80q", o.bucket)
		}
		key, ours := strings.CutPrefix(o.key, c.SourcePrefix)
		if !ours || o.superseded || o.deleted {
			return nil
		}
		return each(key)
	}
	if m.FileFormat == "CSV" {
		columns, err := parseColumns(m.FileSchema)
		if err != nil {
			return unusable(f.Key, "%w", err)
		}
		return readCSV(r, columns, row)
	}
	return readParquet(r, row)
}

// object is a row.
type object struct {
	bucket, key string
	// superseded: a later version has the key. deleted: the version is a marker of a deletion.
	superseded, deleted bool
}
