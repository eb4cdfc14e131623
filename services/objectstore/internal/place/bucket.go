package place

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"
)

// BucketOptions say where a bucket is.
type BucketOptions struct {
	// Endpoint is a URL: scheme, host and port. Buckets are addressed by path.
	Endpoint string
	Bucket   string
	// Prefix begins all keys; empty, or with a slash at its end.
	Prefix               string
	Region               string
	AccessKey, SecretKey string
	// Client sends the requests; nil is one with time limits.
	Client *http.Client
}

// Bucket is a place in a bucket of an S3 store that serves conditional writes: another machine, another
// provider. Files are objects, which are there whole or not at all.
type Bucket struct {
	name   string
	prefix string
	s3     *client
	quit   sync.Once

	mu      sync.Mutex
	writing map[string]int // writers that have not ended, by key
}

// OpenBucket makes a place of a bucket, which must be there. It asks nobody.
func OpenBucket(name string, opt BucketOptions) (*Bucket, error) {
	u, err := url.Parse(opt.Endpoint)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || strings.Trim(u.Path, "/") != "" {
		return nil, fmt.Errorf("place %s: %q is no URL of an S3 endpoint", name, opt.Endpoint)
	}
	if opt.Prefix != "" && !strings.HasSuffix(opt.Prefix, "/") {
		return nil, fmt.Errorf("place %s: prefix %q must end with a slash", name, opt.Prefix)
	}
	return &Bucket{name: name, prefix: opt.Prefix, s3: newClient(u, opt), writing: map[string]int{}}, nil
}

const (
	filesPrefix      = filesDir + "/"
	quarantinePrefix = quarantineDir + "/"
)

// Name implements Place.
func (b *Bucket) Name() string { return b.name }

// Local implements Place.
func (b *Bucket) Local() bool { return false }

// Err implements Place. A request that fails says nothing of the next one.
func (b *Bucket) Err() error { return nil }

// Close implements Place.
func (b *Bucket) Close() error {
	b.quit.Do(b.s3.http.CloseIdleConnections)
	return nil
}

// Free implements Place: a bucket has no size.
func (b *Bucket) Free(context.Context) (int64, error) { return -1, nil }

// failed names the place in an error.
func (b *Bucket) failed(op string, err error) error {
	return fmt.Errorf("place %s: %s: %w", b.name, op, err)
}

func (b *Bucket) key(name string) (string, error) {
	if !ValidName(name) {
		return "", fmt.Errorf("place %s: %q is no name of a file: %w", b.name, name, fs.ErrInvalid)
	}
	return b.prefix + filesPrefix + name, nil
}

// Identity implements Place.
func (b *Bucket) Identity(ctx context.Context) (Identity, error) {
	body, _, err := b.s3.get(ctx, b.prefix+identityName, 0, maxIdentity)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Identity{}, b.blank(ctx)
	case err != nil:
		return Identity{}, b.failed("read identity", err)
	}
	id, err := parseIdentity(body)
	if err != nil {
		return id, fmt.Errorf("place %s: %w: %w", b.name, ErrOut, err)
	}
	return id, nil
}

// blank tells an unused prefix from one with files that nobody owns.
func (b *Bucket) blank(ctx context.Context) error {
	page, err := b.s3.list(ctx, b.prefix+filesPrefix, "", 1)
	switch {
	case err != nil:
		return b.failed("list", err)
	case len(page.Contents) > 0:
		return fmt.Errorf("place %s: %w: there are files, and nothing says whose", b.name, ErrForeign)
	}
	return fmt.Errorf("place %s: %w", b.name, ErrBlank)
}

// Claim implements Place.
func (b *Bucket) Claim(ctx context.Context, id Identity) error {
	body, err := id.encode()
	if err == nil {
		err = b.s3.create(ctx, b.prefix+identityName, body)
	}
	if errors.Is(err, fs.ErrExist) {
		// Read back and compare: the request may have been sent again after an answer that was lost.
		if now, rerr := b.Identity(ctx); rerr == nil && now.Place == id.Place {
			return nil
		}
	}
	if err != nil {
		return b.failed("claim", err)
	}
	return nil
}

// Recover implements Place: it tries whether the store can be a place, and ends the uploads that a process before did not.
func (b *Bucket) Recover(ctx context.Context) error {
	if err := b.s3.abortAll(ctx, b.prefix+probePrefix, func(string) bool { return false }); err != nil {
		return b.failed("end unfinished uploads", err)
	}
	if err := b.qualify(ctx); err != nil {
		return err
	}
	b.forgetProbes(ctx)
	return b.Tidy(ctx)
}

// Tidy implements Place. A writer is noted before its upload begins: an upload of a key that nobody writes now, and that was listed
// before, has lost its writer. One whose key is being written again waits for the next call.
func (b *Bucket) Tidy(ctx context.Context) error {
	if err := b.s3.abortAll(ctx, b.prefix+filesPrefix, b.isWriting); err != nil {
		return b.failed("end unfinished uploads", err)
	}
	return nil
}

func (b *Bucket) isWriting(key string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.writing[key] > 0
}

func (b *Bucket) setWriting(key string, on bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if on {
		b.writing[key]++
	} else if b.writing[key]--; b.writing[key] <= 0 {
		delete(b.writing, key)
	}
}

// Create implements Place.
func (b *Bucket) Create(ctx context.Context, name string) (Writer, error) {
	key, err := b.key(name)
	if err != nil {
		return nil, err
	}
	b.setWriting(key, true)
	return &bucketWriter{b: b, ctx: ctx, name: name, key: key}, nil
}

// tailRead is what Open reads from the end of a file: its footer, and all of a small file.
const tailRead = 64 << 10

// Open implements Place. The end of the file is read at once, since whoever opens it begins there.
func (b *Bucket) Open(ctx context.Context, name string) (Reader, error) {
	key, err := b.key(name)
	if err != nil {
		return nil, err
	}
	tail, size, err := b.s3.tail(ctx, key, tailRead)
	if err != nil {
		return nil, b.failed("open "+name, err)
	}
	// The context of the reads that follow: the one of Open may end before them.
	return &bucketReader{b: b, ctx: context.WithoutCancel(ctx), name: name, key: key, size: size, tail: tail}, nil
}

// Stat implements Place.
func (b *Bucket) Stat(ctx context.Context, name string) (File, error) {
	key, err := b.key(name)
	if err != nil {
		return File{}, err
	}
	size, modified, err := b.s3.head(ctx, key)
	if err != nil {
		return File{}, b.failed("stat "+name, err)
	}
	return File{Name: name, Size: size, Modified: modified}, nil
}

// Remove implements Place. S3 says nothing of a key that was not there, so it is asked first.
func (b *Bucket) Remove(ctx context.Context, name string) error {
	if _, err := b.Stat(ctx, name); err != nil {
		return err
	}
	if err := b.s3.remove(ctx, b.prefix+filesPrefix+name); err != nil {
		return b.failed("remove "+name, err)
	}
	return nil
}

// SetAside implements Place: the object is copied to quarantine/ by the other store, and removed.
func (b *Bucket) SetAside(ctx context.Context, name string) (string, error) {
	key, err := b.key(name)
	if err != nil {
		return "", err
	}
	// Nothing that was set aside is overwritten.
	to := quarantinePrefix + name + "." + time.Now().UTC().Format("20060102t150405.000000000")
	if err := b.s3.copy(ctx, key, b.prefix+to); err != nil {
		return "", b.failed("set aside "+name, err)
	}
	if err := b.s3.remove(ctx, key); err != nil {
		return "", b.failed("set aside "+name, err)
	}
	return b.name + ":" + to, nil
}

// List implements Place. S3 lists in the order of the keys.
func (b *Bucket) List(ctx context.Context, prefix, after string, fn func(File) error) error {
	root := b.prefix + filesPrefix
	if after != "" {
		after = root + after
	}
	for {
		page, err := b.s3.list(ctx, root+prefix, after, maxPage)
		if err != nil {
			return b.failed("list", err)
		}
		for _, o := range page.Contents {
			name := strings.TrimPrefix(o.Key, root)
			if !ValidName(name) {
				continue
			}
			if err := fn(File{Name: name, Size: o.Size, Modified: o.LastModified}); err != nil {
				return err
			}
		}
		if !page.IsTruncated || len(page.Contents) == 0 {
			return nil
		}
		after = page.Contents[len(page.Contents)-1].Key
	}
}

// maxPage is the most keys of one answer to a list.
const maxPage = 1000

// listPage is an answer to ListObjectsV2.
type listPage struct {
	XMLName     xml.Name `xml:"ListBucketResult"`
	IsTruncated bool
	Contents    []struct {
		Key          string
		Size         int64
		LastModified time.Time
	}
}

func (c *client) list(ctx context.Context, prefix, after string, most int) (page listPage, err error) {
	q := url.Values{"list-type": {"2"}, "prefix": {prefix}, "max-keys": {strconv.Itoa(most)}}
	if after != "" {
		q.Set("start-after", after)
	}
	err = c.askXML(ctx, request{method: http.MethodGet, query: q}, &page)
	return page, err
}

// uploadPage is an answer to ListMultipartUploads.
type uploadPage struct {
	XMLName            xml.Name `xml:"ListMultipartUploadsResult"`
	IsTruncated        bool
	NextKeyMarker      string
	NextUploadIDMarker string `xml:"NextUploadIdMarker"`
	Upload             []struct {
		Key      string
		UploadID string `xml:"UploadId"`
	}
}

// abortAll ends the uploads of keys with a prefix, but for those of keys that are kept.
func (c *client) abortAll(ctx context.Context, prefix string, keep func(key string) bool) error {
	q := url.Values{"uploads": {""}, "prefix": {prefix}}
	for range math.MaxInt16 { // a store that never ends its list must not keep the start for ever
		var page uploadPage
		if err := c.askXML(ctx, request{method: http.MethodGet, query: q}, &page); err != nil {
			return err
		}
		for _, u := range page.Upload {
			if keep(u.Key) {
				continue
			}
			if err := c.abort(ctx, u.Key, u.UploadID); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		if !page.IsTruncated {
			return nil
		}
		q.Set("key-marker", page.NextKeyMarker)
		q.Set("upload-id-marker", page.NextUploadIDMarker)
	}
	return fmt.Errorf("%w: its list of uploads does not end", ErrOut)
}
