package inventory

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/md5"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/parquet-go/parquet-go"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/derived/audit"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

const (
	csvSchema     = "Bucket, Key, VersionId, IsLatest, IsDeleteMarker, Size, LastModifiedDate, ETag, StorageClass"
	parquetSchema = "message s3.inventory { required binary bucket (UTF8); required binary key (UTF8); … }"
	folder        = "lists/metrics/daily/"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func put(t testing.TB, s objstore.Putter, key string, b []byte) {
	t.Helper()
	_, err := s.Put(context.Background(), key, b, objstore.PutOptions{})
	must(t, err)
}

func sum(b []byte) string {
	h := md5.Sum(b)
	return hex.EncodeToString(h[:])
}

// write puts an inventory into a store, as S3 does: the files, the manifest, its checksum.
func write(t testing.TB, s objstore.Putter, at time.Time, format, schema string, files ...[]byte) (key string) {
	t.Helper()
	m := manifest{SourceBucket: "metrics", DestinationBucket: "arn:aws:s3:::lists", Version: version,
		CreationTimestamp: fmt.Sprint(at.UnixMilli()), FileFormat: format, FileSchema: schema}
	for _, b := range files {
		f := file{Key: folder + "data/" + sum(b), Size: int64(len(b)), MD5: sum(b)}
		put(t, s, f.Key, b)
		m.Files = append(m.Files, f)
	}
	b, err := json.Marshal(m)
	must(t, err)
	key = folder + at.UTC().Format(dated) + "/manifest.json"
	put(t, s, key, b)
	put(t, s, strings.TrimSuffix(key, "json")+"checksum", []byte(sum(b)+"\n"))
	return key
}

func config(s Store) Config {
	return Config{Store: s, Bucket: "lists", Prefix: folder, Source: "metrics", SourcePrefix: "prod/"}
}

func fixture(t testing.TB, name string) []byte {
	b, err := os.ReadFile("testdata/" + name)
	must(t, err)
	return b
}

func keys(t testing.TB, inv audit.Inventory) (out []string) {
	t.Helper()
	for i := range inv.Files {
		must(t, inv.Read(context.Background(), i, func(key string) error { out = append(out, key); return nil }))
	}
	slices.Sort(out)
	return out
}

var day = time.Date(2026, 11, 22, 1, 0, 0, 0, time.UTC)

// Files of other writers: Parquet of arrow-rs, CSV of Python. Of versions, the last counts, and none that deletes.
func TestReadsFilesOfOtherWriters(t *testing.T) {
	want := []string{"raw-blobs/v1/sha256/aa"}
	for i := range 30 {
		want = append(want, layout.Accepted(identity.Batch{Agent: fmt.Sprint("host", i%3), Boot: "boot", SeqStart: uint64(i / 3 * 10), SeqEnd: uint64(i/3*10 + 9)}))
	}
	slices.Sort(want)
	for name, f := range map[string][2]string{"arrow.parquet": {"Parquet", parquetSchema}, "python.csv.gz": {"CSV", csvSchema}} {
		s := mem.New(time.Now)
		write(t, s, day, f[0], f[1], fixture(t, name))
		inv, err := config(s).Open(t.Context(), "")
		must(t, err)
		if got := keys(t, inv); !slices.Equal(got, want) {
			t.Errorf("%s: %d keys, want %d: %q", name, len(got), len(want), got)
		}
		if !inv.At.Equal(day) || inv.Files != 1 {
			t.Errorf("%s: %+v", name, inv)
		}
	}
}

type parquetRow struct {
	Bucket       string    `parquet:"bucket"`
	Key          string    `parquet:"key"`
	Size         *int64    `parquet:"size,optional"`
	LastModified time.Time `parquet:"last_modified_date,timestamp(millisecond)"`
}

func parquetFile(t testing.TB, keys ...string) []byte {
	var b bytes.Buffer
	w := parquet.NewGenericWriter[parquetRow](&b, parquet.Compression(&parquet.Snappy), parquet.MaxRowsPerRowGroup(100))
	for _, k := range keys {
		_, err := w.Write([]parquetRow{{Bucket: "metrics", Key: "prod/" + k}})
		must(t, err)
	}
	must(t, w.Close())
	return b.Bytes()
}

func csvFile(t testing.TB, rows ...string) []byte {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	for _, r := range rows {
		_, err := z.Write([]byte(r + "\n"))
		must(t, err)
	}
	must(t, z.Close())
	return b.Bytes()
}

func TestTheNewestFinishedOneIsOpened(t *testing.T) {
	s := mem.New(time.Now)
	c := config(s)
	if _, err := c.Open(t.Context(), ""); !errors.Is(err, ErrNone) {
		t.Errorf("%v", err)
	}
	older := write(t, s, day, "Parquet", parquetSchema, parquetFile(t, "a"))
	newer := write(t, s, day.Add(24*time.Hour), "Parquet", parquetSchema, parquetFile(t, "b"))
	put(t, s, folder+"hive/dt=2027-01-01-00-00/symlink.txt", nil)
	open := func(key, want string) {
		t.Helper()
		inv, err := c.Open(t.Context(), key)
		must(t, err)
		if inv.Key != want {
			t.Errorf("%s, want %s", inv.Key, want)
		}
	}
	open("", newer)
	open(older, older)
	// S3 is not done with it.
	must(t, s.Delete(t.Context(), strings.TrimSuffix(newer, "json")+"checksum"))
	open("", older)
}

func TestBadInventoriesAreRefused(t *testing.T) {
	good := parquetFile(t, "a", "b")
	row := `"metrics","prod/a"`
	for name, c := range map[string]struct {
		format, schema string
		file           []byte
		change         func(s *mem.Store, key string)
	}{
		"another format":    {format: "ORC", file: good},
		"no key column":     {format: "CSV", schema: "Bucket, Size", file: csvFile(t, row)},
		"no Parquet":        {format: "Parquet", file: []byte("PAR1 and something else PAR1")},
		"other columns":     {format: "Parquet", file: otherColumns(t)},
		"no gzip":           {format: "CSV", schema: "Bucket, Key", file: []byte(row)},
		"a cut gzip":        {format: "CSV", schema: "Bucket, Key", file: csvFile(t, row, row)[:30]},
		"too few fields":    {format: "CSV", schema: "Bucket, Key, Size", file: csvFile(t, row)},
		"a row without end": {format: "CSV", schema: "Bucket, Key", file: csvFile(t, `"metrics","`+strings.Repeat("x\n", 1<<20))},
		"a key of no URL":   {format: "CSV", schema: "Bucket, Key", file: csvFile(t, `"metrics","%zz"`)},
		"of another bucket": {format: "CSV", schema: "Bucket, Key", file: csvFile(t, `"other","prod/a"`)},
		"a damaged file": {format: "Parquet", file: good, change: func(s *mem.Store, _ string) {
			put(t, s, folder+"data/"+sum(good), append(slices.Clone(good[:len(good)-1]), 'x'))
		}},
		"a shorter file":     {format: "Parquet", file: good, change: func(s *mem.Store, _ string) { put(t, s, folder+"data/"+sum(good), good[:100]) }},
		"a damaged manifest": {format: "Parquet", file: good, change: func(s *mem.Store, key string) { put(t, s, key, []byte("{}")) }},
	} {
		s := mem.New(time.Now)
		key := write(t, s, day, c.format, c.schema, c.file)
		if c.change != nil {
			c.change(s, key)
		}
		inv, err := config(s).Open(t.Context(), "")
		if err == nil {
			err = inv.Read(t.Context(), 0, func(string) error { return nil })
		}
		if !errors.Is(err, ErrUnusable) {
			t.Errorf("%s: %v", name, err)
		}
	}
	s := mem.New(time.Now)
	write(t, s, day, "Parquet", parquetSchema, good)
	for _, c := range []Config{{Store: s, Bucket: "lists", Prefix: folder, Source: "others"}, {Store: s, Bucket: "others", Prefix: folder, Source: "metrics"}} {
		if _, err := c.Open(t.Context(), ""); !errors.Is(err, ErrUnusable) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	// What the caller does, and a store that is away, say nothing about the inventory.
	inv, err := config(s).Open(t.Context(), "")
	must(t, err)
	stop := errors.New("stop")
	if err := inv.Read(t.Context(), 0, func(string) error { return stop }); !errors.Is(err, stop) || errors.Is(err, ErrUnusable) {
		t.Error(err)
	}
	inv, err = config(away{s}).Open(t.Context(), "")
	must(t, err)
	if err := inv.Read(t.Context(), 0, func(string) error { return nil }); !errors.Is(err, objstore.ErrUnavailable) || errors.Is(err, ErrUnusable) {
		t.Error(err)
	}
}

func otherColumns(t testing.TB) []byte {
	var b bytes.Buffer
	w := parquet.NewGenericWriter[struct {
		Bucket string  `parquet:"bucket"`
		Key    float64 `parquet:"key"`
	}](&b)
	must(t, w.Close())
	return b.Bytes()
}

// away is a store whose data files can't be read.
type away struct{ *mem.Store }

func (a away) Get(ctx context.Context, key string, o objstore.GetOptions) ([]byte, objstore.Info, error) {
	if strings.Contains(key, "/data/") {
		return nil, objstore.Info{}, &objstore.Error{Op: "get", Key: key, Err: objstore.ErrUnavailable}
	}
	return a.Store.Get(ctx, key, o)
}

// An audit of an inventory finds what one of a listing finds, in files that are in no order, and says how old it is.
func TestAuditOfAnInventory(t *testing.T) {
	ctx := t.Context()
	s := mem.New(func() time.Time { return day.Add(5 * time.Hour) })
	auditor := func(seed byte) *audit.Auditor {
		rnd := rand.NewChaCha8([32]byte{seed})
		w, err := journal.NewWriter(journal.WriterConfig{Store: s, Rand: rnd, Clock: func() int64 { return 1 },
			Opening: journal.Opening{Writer: "r", Role: journal.RoleReconciler, Authority: "authority"}})
		must(t, err)
		return &audit.Auditor{Store: s, Rand: rnd, Authority: "authority", By: "r", Writer: w, Shards: 3, MaxInMemory: 8, Inventory: config(s).Open}
	}
	files := make([][]string, 5)
	accepted := func(i int) string {
		id := identity.Batch{Agent: fmt.Sprint("host-", i%7), Boot: "boot", SeqStart: uint64(i * 10), SeqEnd: uint64(i*10 + 9)}
		d := identity.Sum([]byte(id.String()))
		m := accept.Manifest{AuthorityID: "authority", Identity: id, FrameSHA256: d, FrameBytes: 9, RawBlobKey: layout.Blob(d, 0), AcceptedAt: 1e18,
			CollectorID: "c", WireVersion: 1, FrameVersion: 1, AttemptID: fmt.Sprintf("%032x", i), RecordCount: 10, MinTime: 1, MaxTime: 2}
		put(t, s, layout.Accepted(id), m.Marshal())
		return layout.Accepted(id)
	}
	for i := range 40 {
		files[(i*7)%5] = append(files[(i*7)%5], accepted(i))
	}
	var data [][]byte
	for _, f := range files {
		slices.Reverse(f)
		data = append(data, parquetFile(t, append(f, "raw-blobs/v1/x", "authority/v1/id.json")...))
	}
	write(t, s, day, "Parquet", parquetSchema, data...)
	first, last := auditor(1), auditor(2)
	inv, err := first.Inventory(ctx, "")
	must(t, err)
	r, err := first.BeginInventory(ctx, inv)
	must(t, err)
	accepted(40) // too late for the inventory
	done, err := first.Work(ctx, &r)
	if err != nil || !done || r.Manifests != 40 || r.Journalled != 40 || r.Foreign != 0 || r.InventoryAt != day.Unix() || r.ShardCount() != 3 {
		t.Fatalf("%v, %v, %+v", done, err, r.Record)
	}
	// It can't say that the journal is complete.
	if begun, err := journal.IsComplete(ctx, s); begun || err != nil {
		t.Error(begun, err)
	}
	again, err := last.BeginInventory(ctx, inv)
	must(t, err)
	if done, err := last.Work(ctx, &again); err != nil || !done || again.Journalled != 0 || again.Digest != r.Digest {
		t.Errorf("%v, %v, %+v", done, err, again.Record)
	}
	listed, err := last.Begin(ctx, 0)
	must(t, err)
	if done, err := last.Work(ctx, &listed); err != nil || !done || listed.Journalled != 1 || listed.Manifests != 41 {
		t.Errorf("%v, %v, %+v", done, err, listed.Record)
	}
	// A reconciler that knows no inventories leaves it to others.
	other := auditor(3)
	other.Inventory = nil
	r, err = last.BeginInventory(ctx, inv)
	must(t, err)
	if done, err := other.Work(ctx, &r); done || err != nil {
		t.Errorf("%v, %v", done, err)
	}
}

// Whatever the bytes of a file are, reading it ends, and an error says that the file is unusable.
func FuzzFiles(f *testing.F) {
	for _, name := range []string{"arrow.parquet", "python.csv.gz"} {
		f.Add(fixture(f, name), strings.HasSuffix(name, "gz"))
	}
	f.Add(parquetFile(f, "a", "b"), false)
	f.Add(csvFile(f, `"metrics","prod/a"`), true)
	f.Fuzz(func(t *testing.T, b []byte, isCSV bool) {
		if len(b) == 0 {
			return
		}
		s := mem.New(time.Now)
		format, schema := "Parquet", parquetSchema
		if isCSV {
			format, schema = "CSV", csvSchema
		}
		write(t, s, day, format, schema, b)
		inv, err := config(s).Open(t.Context(), "")
		must(t, err)
		if err := inv.Read(t.Context(), 0, func(string) error { return nil }); err != nil && !errors.Is(err, ErrUnusable) {
			t.Error(err)
		}
	})
}
