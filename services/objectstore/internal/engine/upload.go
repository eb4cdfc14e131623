package engine

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// A multipart upload is kept in the log as objects under hidden keys, which begin with a zero byte and so cannot be
// those of a client: one record of the upload, and one of each part. They are written, moved, rebuilt and found damaged
// like all others, and no listing shows them.
//
//	"\x00u" key "\x00" id      an upload; its metadata is that of the object that it will make
//	"\x00p" id "/" number      a part; five digits
//
// A part exists while its upload does. Completing writes the object, which names the files of its parts, and behind it
// the tombstone of the upload in the same batch. The tombstones of the parts follow; what a crash leaves of them is
// removed by SweepUploads. A file that a completed object names is never removed with a part: the index says whose it is.
const (
	hiddenPrefix = "\x00"
	uploadPrefix = "\x00u"
	partPrefix   = "\x00p"
	uploadIDLen  = 32
	maxHiddenLen = maxKeyLen + 2 + 1 + uploadIDLen
	// MaxParts is the highest number of a part.
	MaxParts = 10000
	// fileOfObject is the index's value for a file that a completed object names; other files have none.
	fileOfObject = "o"
)

func isHidden(key string) bool { return strings.HasPrefix(key, hiddenPrefix) }

func uploadKey(key, id string) string { return uploadPrefix + key + "\x00" + id }

func partKey(id string, number int) string { return fmt.Sprintf("%s%s/%05d", partPrefix, id, number) }

// parseUploadKey gives the key and the id of an upload's hidden key.
func parseUploadKey(hidden string) (key, id string, ok bool) {
	rest, ok := strings.CutPrefix(hidden, uploadPrefix)
	i := len(rest) - uploadIDLen - 1
	if !ok || i < 1 || rest[i] != 0 {
		return "", "", false
	}
	return rest[:i], rest[i+1:], true
}

func parsePartKey(hidden string) (id string, number int, ok bool) {
	rest, ok := strings.CutPrefix(hidden, partPrefix)
	if !ok || len(rest) != uploadIDLen+6 {
		return "", 0, false
	}
	number, err := strconv.Atoi(rest[uploadIDLen+1:])
	return rest[:uploadIDLen], number, err == nil
}

// Part is a part of an upload.
type Part struct {
	Number int
	Object // its size, ETag, time, checksum and extents
}

// newUploadID gives ids that sort by time.
func newUploadID(now time.Time) (string, error) {
	var raw [8]byte
	if _, err := rand.Read(raw[:]); err != nil {
		return "", err
	}
	return fmt.Sprintf("%016x", now.UnixNano()) + hex.EncodeToString(raw[:]), nil
}

// ValidUploadID reports whether a text has the form of an upload's id.
func ValidUploadID(id string) bool {
	_, err := hex.DecodeString(id)
	return err == nil && len(id) == uploadIDLen
}

// CreateUpload begins an upload of o, whose Modified is the time of its beginning. Its Checksum has the algorithm and
// the type that the parts and the object will have.
func (e *Engine) CreateUpload(ctx context.Context, o Object) (id string, err error) {
	if err := checkKey(o.Key); err != nil {
		return "", fmt.Errorf("create upload of %q: %w", o.Key, err)
	}
	if id, err = newUploadID(o.Modified); err != nil {
		return "", err
	}
	o.Key = uploadKey(o.Key, id)
	_, err = e.put(ctx, &op{cond: Cond{Absent: true}}, o, nil, flagQuiet)
	return id, err
}

// Upload gives an upload as CreateUpload has got it; ErrNoUpload when there is none.
func (e *Engine) Upload(bucket, key, id string) (Object, error) {
	if len(id) != uploadIDLen || checkKey(key) != nil {
		return Object{}, fmt.Errorf("upload %q: %w", id, ErrNoUpload)
	}
	o, err := e.Stat(bucket, uploadKey(key, id))
	if errors.Is(err, ErrNotFound) || err == nil && e.isFinished(bucket, key, id) {
		err = fmt.Errorf("upload %q: %w", id, ErrNoUpload)
	}
	o.Key = key
	return o, err
}

// isFinished reports whether the object of an upload is complete. Its tombstone can be missing then, when the power
// failed within the batch of both.
func (e *Engine) isFinished(bucket, key, id string) bool {
	x, err := e.idx.current(bucket, key)
	if err != nil || x == nil || x.flags&flagUpload == 0 {
		return false
	}
	o, err := e.Stat(bucket, key)
	return err == nil && o.Upload == id
}

// PutPart stores a part, which replaces an earlier one of its number. Its extents are given to the engine as by Put.
func (e *Engine) PutPart(ctx context.Context, bucket, key, id string, p Part) (Part, error) {
	p.Bucket, p.Key = bucket, partKey(id, p.Number)
	err := checkNames(bucket, key, p.Extents)
	if err != nil {
		return p, fmt.Errorf("put part of %q: %w", key, err)
	}
	p.Object, err = e.put(ctx, &op{upload: uploadKey(key, id)}, p.Object, nil, flagQuiet)
	return p, err
}

// Parts gives up to limit parts of an upload with numbers above after, in order, and whether there are more.
func (e *Engine) Parts(bucket, key, id string, after, limit int) (list []Part, more bool, err error) {
	if _, err := e.Upload(bucket, key, id); err != nil {
		return nil, false, err
	}
	err = e.hidden(bucket, partPrefix+id+"/", partKey(id, after), func(hidden string) (bool, error) {
		if len(list) == limit {
			more = true
			return false, nil
		}
		_, number, ok := parsePartKey(hidden)
		if !ok {
			return true, nil
		}
		o, err := e.Stat(bucket, hidden)
		if errors.Is(err, ErrNotFound) {
			return true, nil // gone since the index was read
		}
		list = append(list, Part{number, o})
		return true, err
	})
	return list, more, err
}

// hidden calls fn for the hidden keys of a bucket that begin with prefix and are greater than after, until it gives false.
func (e *Engine) hidden(bucket, prefix, after string, fn func(key string) (bool, error)) (err error) {
	base := objectKey(bucket, "")
	it, err := e.idx.db.NewIter(&pebble.IterOptions{LowerBound: objectKey(bucket, prefix), UpperBound: successor(objectKey(bucket, prefix))})
	if err != nil {
		return fmt.Errorf("list %q: %w", bucket, err)
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	ok := it.First()
	if after > prefix {
		ok = it.SeekGE(append(objectKey(bucket, after), 0))
	}
	for ; ok; ok = it.Next() {
		if more, err := fn(string(it.Key()[len(base):])); err != nil || !more {
			return err
		}
	}
	return it.Error()
}

// UploadBrief is what a listing shows of an upload.
type UploadBrief struct {
	Key, ID   string
	Initiated time.Time
	Checksum  Checksum
}

// UploadQuery selects a page of uploads.
type UploadQuery struct {
	Prefix, Delimiter string
	// AfterKey and AfterID: only uploads of greater keys, or of this key with a greater id. Without AfterID all uploads
	// of AfterKey are left out.
	AfterKey, AfterID string
	Max               int
}

// UploadPage is a page by key and time.
type UploadPage struct {
	Uploads         []UploadBrief
	Prefixes        []string
	NextKey, NextID string
	Truncated       bool
}

// Uploads lists the open uploads of a bucket.
func (e *Engine) Uploads(bucket string, q UploadQuery) (page UploadPage, err error) {
	if _, err := e.Bucket(bucket); err != nil || q.Max <= 0 {
		return page, err
	}
	group := ListQuery{Prefix: q.Prefix, Delimiter: q.Delimiter}
	after := ""
	if q.AfterKey != "" {
		after = uploadPrefix + q.AfterKey
	}
	err = e.hidden(bucket, uploadPrefix+q.Prefix, after, func(hidden string) (bool, error) {
		key, id, ok := parseUploadKey(hidden)
		// A prefix with a zero byte reaches into the id of a hidden key.
		if !ok || !strings.HasPrefix(key, q.Prefix) || e.isFinished(bucket, key, id) || key < q.AfterKey || key == q.AfterKey && q.AfterKey != "" && (q.AfterID == "" || id <= q.AfterID) {
			return true, nil
		}
		prefix, grouped := commonPrefix(key, group)
		if grouped && len(page.Prefixes) > 0 && page.Prefixes[len(page.Prefixes)-1] == prefix {
			return true, nil
		}
		if grouped && q.AfterKey != "" && strings.HasPrefix(q.AfterKey, prefix) {
			return true, nil
		}
		if len(page.Uploads)+len(page.Prefixes) == q.Max {
			page.Truncated = true
			return false, nil
		}
		page.NextKey, page.NextID = key, id
		if grouped {
			page.NextKey, page.NextID = prefix, "" // the next page begins behind the group
			page.Prefixes = append(page.Prefixes, prefix)
			return true, nil
		}
		o, err := e.Stat(bucket, hidden)
		if errors.Is(err, ErrNotFound) {
			return true, nil
		}
		page.Uploads = append(page.Uploads, UploadBrief{key, id, o.Modified, o.Checksum})
		return true, err
	})
	return page, err
}

// Complete makes an object of the parts of an upload, and ends the upload, in one step: o has the size, the ETag and
// the checksum of the whole, and gets the files of the parts. ErrNoUpload: the upload is gone; ErrPartChanged: a part
// was replaced since it was read. The condition is decided together with the write.
func (e *Engine) Complete(ctx context.Context, o Object, id string, parts []Part, c Cond) (Object, error) {
	out, err := e.completeOnce(ctx, o, id, parts, c)
	for try := 0; errors.Is(err, ErrPartChanged) && try < completeTries; try++ {
		// Reclaiming, or a rotation of keys, may have written a part again; the client has not.
		var ferr error
		if parts, ferr = e.partsAsTheyAre(o.Bucket, id, parts); ferr != nil {
			return out, ferr
		}
		out, err = e.completeOnce(ctx, o, id, parts, c)
	}
	if err != nil {
		return out, err
	}
	// The object is durable. What is left of the upload is garbage, which SweepUploads removes if this does not.
	if err := e.removeParts(ctx, o.Bucket, id); err != nil {
		e.opt.Log.Warn("remove the parts of a completed upload", "bucket", o.Bucket, "key", o.Key, "error", err)
	}
	return out, nil
}

// completeTries bounds how often a completion is tried again because parts were moved.
const completeTries = 10

func (e *Engine) completeOnce(ctx context.Context, o Object, id string, parts []Part, c Cond) (Object, error) {
	o.Upload, o.PartSizes, o.Extents = id, nil, nil
	w := &op{cond: c, byRule: true, upload: uploadKey(o.Key, id)}
	for _, p := range parts {
		o.PartSizes = append(o.PartSizes, p.Size)
		o.Extents = append(o.Extents, p.Extents...)
		w.parts = append(w.parts, partSeq{partKey(id, p.Number), p.Seq})
	}
	w.then = &op{rec: record{kind: kindDelete, flags: flagQuiet, bucket: o.Bucket, key: w.upload}}
	return e.put(ctx, w, o, nil, 0)
}

// partsAsTheyAre reads parts again. ErrPartChanged: the client has written one of them since.
func (e *Engine) partsAsTheyAre(bucket, id string, parts []Part) ([]Part, error) {
	out := make([]Part, len(parts))
	for i, p := range parts {
		now, err := e.Stat(bucket, partKey(id, p.Number))
		if errors.Is(err, ErrNotFound) || err == nil && (now.ETag != p.ETag || now.Size != p.Size || !now.Modified.Equal(p.Modified)) {
			return nil, fmt.Errorf("part %d of upload %q: %w", p.Number, id, ErrPartChanged)
		}
		if err != nil {
			return nil, err
		}
		out[i] = Part{p.Number, now}
	}
	return out, nil
}

// partSeq is a part and the write of it that was read.
type partSeq struct {
	key string
	seq uint64
}

// decideUpload checks that the upload of an operation is there, and that its parts are those that were read.
func (v *overlay) decideUpload(o *op) error {
	x, err := v.record(o.rec.bucket, o.upload)
	if err != nil {
		return err
	}
	if x == nil {
		if err := v.e.uncertain(nil); err != nil {
			return err
		}
		return ErrNoUpload
	}
	for _, p := range o.parts {
		switch x, err := v.record(o.rec.bucket, p.key); {
		case err != nil:
			return err
		case x == nil || x.seq != p.seq:
			return ErrPartChanged
		}
	}
	if o.then != nil {
		o.then.prev = x
	}
	return nil
}

// endCompleted writes the tombstones of uploads whose object is complete: a crash within the batch of both has left them
// out. It is done before any other write. Later, when the object was replaced or deleted, nothing would tell that the
// upload has ended and that the files of its parts are gone.
func (e *Engine) endCompleted() {
	var batch []*op
	for _, b := range e.Buckets() {
		err := e.hidden(b.Name, uploadPrefix, "", func(hidden string) (bool, error) {
			if key, id, ok := parseUploadKey(hidden); ok && e.isFinished(b.Name, key, id) {
				batch = append(batch, &op{rec: record{kind: kindDelete, flags: flagQuiet, bucket: b.Name, key: hidden}, upload: hidden})
			}
			return true, nil
		})
		if err != nil {
			e.opt.Log.Error("look for uploads that a crash has left", "bucket", b.Name, "error", err)
		}
	}
	if len(batch) == 0 {
		return
	}
	// At most one batch was torn, so these are few.
	e.commit(batch)
	for _, o := range batch {
		if o.err != nil {
			e.opt.Log.Error("end an upload that a crash has left", "bucket", o.rec.bucket, "key", o.rec.key, "error", o.err)
		}
	}
}

// AbortUpload removes an upload and its parts; ErrNoUpload when there is none.
func (e *Engine) AbortUpload(ctx context.Context, bucket, key, id string) error {
	if _, err := e.Upload(bucket, key, id); err != nil && !errors.Is(err, ErrCorrupt) {
		return err
	}
	return e.endUpload(ctx, bucket, key, id)
}

// endUpload removes the record of an upload, and then its parts.
func (e *Engine) endUpload(ctx context.Context, bucket, key, id string) error {
	err := e.submit(ctx, &op{rec: record{kind: kindDelete, flags: flagQuiet, bucket: bucket, key: uploadKey(key, id)}, upload: uploadKey(key, id)})
	if err != nil {
		return fmt.Errorf("end upload %q: %w", id, err)
	}
	return e.removeParts(ctx, bucket, id)
}

// removeParts removes the parts of an upload that is gone.
func (e *Engine) removeParts(ctx context.Context, bucket, id string) error {
	return e.removeHidden(ctx, bucket, partPrefix+id+"/")
}

// SweepUploads removes what crashes have left: uploads whose object is complete, and parts without an upload. It gives
// how many it has removed. Uploads that were begun before olderThan are aborted; zero aborts none.
func (e *Engine) SweepUploads(ctx context.Context, bucket string, olderThan time.Time) (removed int, err error) {
	if e.Uncertain() != nil {
		return 0, nil // a lost record may be the upload of a part
	}
	// The parts before the uploads: a part is only written while its upload is there, so the upload of a part that was seen
	// is seen too, or has ended.
	var withParts []string
	err = e.hidden(bucket, partPrefix, "", func(hidden string) (bool, error) {
		if id, _, ok := parsePartKey(hidden); ok && (len(withParts) == 0 || withParts[len(withParts)-1] != id) {
			withParts = append(withParts, id)
		}
		return true, nil
	})
	if err != nil {
		return 0, err
	}
	type open struct{ key, id string }
	var finished []open
	alive := map[string]bool{}
	err = e.hidden(bucket, uploadPrefix, "", func(hidden string) (bool, error) {
		key, id, ok := parseUploadKey(hidden)
		if !ok {
			return true, nil
		}
		alive[id] = true
		o, err := e.Stat(bucket, hidden)
		if err != nil {
			return true, nil // damaged uploads stay until they are aborted
		}
		if e.isFinished(bucket, key, id) || o.Modified.Before(olderThan) {
			finished = append(finished, open{key, id})
		}
		return true, nil
	})
	if err != nil {
		return 0, err
	}
	for _, u := range finished {
		if err := e.endUpload(ctx, bucket, u.key, u.id); err != nil && !errors.Is(err, ErrNoUpload) {
			return removed, err
		}
		removed++
	}
	for _, id := range withParts {
		if alive[id] {
			continue
		}
		if err = errors.Join(err, e.removeParts(ctx, bucket, id)); err == nil {
			removed++
		}
	}
	return removed, err
}

// checkKey refuses what no client may name.
func checkKey(key string) error {
	if key == "" || len(key) > maxKeyLen || isHidden(key) {
		return ErrTooLarge
	}
	return nil
}
