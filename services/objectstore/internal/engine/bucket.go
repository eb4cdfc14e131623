package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// maxBuckets bounds the list of buckets, which is one record.
const maxBuckets = 100

// maxPolicyBytes bounds a bucket policy; AWS has the same limit.
const maxPolicyBytes = 20 << 10

type bucketJSON struct {
	Name     string            `json:"name"`
	Created  int64             `json:"created_unix_ns"`
	Policy   []byte            `json:"policy,omitempty"`
	Settings map[string][]byte `json:"settings,omitempty"`
}

func encodeBuckets(m map[string]Bucket) ([]byte, error) {
	list := []bucketJSON{}
	for _, name := range slices.Sorted(maps.Keys(m)) {
		b := m[name]
		list = append(list, bucketJSON{name, b.Created.UnixNano(), b.Policy, b.Settings})
	}
	return json.Marshal(list)
}

func decodeBuckets(b []byte) (map[string]Bucket, error) {
	var list []bucketJSON
	if err := json.Unmarshal(b, &list); err != nil {
		return nil, fmt.Errorf("%w: list of buckets: %w", ErrCorrupt, err)
	}
	m := make(map[string]Bucket, len(list))
	for _, j := range list {
		m[j.Name] = Bucket{j.Name, time.Unix(0, j.Created), j.Policy, j.Settings}
	}
	return m, nil
}

// changeBuckets applies fn to the list of buckets in the committer and makes the result durable.
func (e *Engine) changeBuckets(ctx context.Context, what, name string, fn func(map[string]Bucket) error) error {
	err := e.submit(ctx, &op{rec: record{kind: kindBuckets}, change: fn})
	if err != nil {
		return fmt.Errorf("%s %q: %w", what, name, err)
	}
	return nil
}

// decideBuckets applies a change to a copy of the list. It runs in the committer, alone in its
// batch, so no object is written to a bucket while the bucket is deleted.
func (e *Engine) decideBuckets(o *op) error {
	e.mu.RLock()
	m := maps.Clone(e.buckets)
	e.mu.RUnlock()
	if err := o.change(m); err != nil {
		return err
	}
	body, err := encodeBuckets(m)
	if err != nil {
		return err
	}
	o.rec.body, o.rec.bodyLen, o.rec.bodyCRC = body, uint32(len(body)), crc32.Checksum(body, castagnoli)
	return nil
}

// CreateBucket makes a bucket; ErrBucketExists when it is there.
func (e *Engine) CreateBucket(ctx context.Context, name string, now time.Time) error {
	return e.CreateBucketWith(ctx, Bucket{Name: name, Created: now})
}

// CreateBucketWith is CreateBucket with the policy and the settings of the bucket.
func (e *Engine) CreateBucketWith(ctx context.Context, b Bucket) error {
	name := b.Name
	if name == "" || len(name) > maxBucketLen || strings.ContainsRune(name, 0) {
		return fmt.Errorf("create bucket %q: %w", name, ErrTooLarge)
	}
	return e.changeBuckets(ctx, "create bucket", name, func(m map[string]Bucket) error {
		if _, ok := m[name]; ok {
			return ErrBucketExists
		}
		if len(m) >= maxBuckets {
			return fmt.Errorf("%w: there are %d buckets", ErrTooLarge, len(m))
		}
		m[name] = b
		return nil
	})
}

// DeleteBucket removes an empty bucket.
func (e *Engine) DeleteBucket(ctx context.Context, name string) error {
	if err := e.abortAll(ctx, name); err != nil {
		return fmt.Errorf("delete bucket %q: %w", name, err)
	}
	return e.changeBuckets(ctx, "delete bucket", name, func(m map[string]Bucket) error {
		if _, ok := m[name]; !ok {
			return ErrNoBucket
		}
		page, err := e.List(name, ListQuery{Max: 1})
		if err != nil {
			return err
		}
		if len(page.Objects) > 0 {
			return ErrBucketNotEmpty
		}
		// Uploads would come back with a new bucket of the name.
		if err := e.hidden(name, hiddenPrefix, "", func(string) (bool, error) { return false, ErrBucketNotEmpty }); err != nil {
			return err
		}
		// A lost write may have put an object into the bucket, which only seems to be empty.
		if err := e.Uncertain(); err != nil {
			return err
		}
		delete(m, name)
		return nil
	})
}

// abortAll aborts the uploads of a bucket that has no objects.
func (e *Engine) abortAll(ctx context.Context, bucket string) error {
	page, err := e.List(bucket, ListQuery{Max: 1})
	if err != nil || len(page.Objects) > 0 || e.Uncertain() != nil {
		return nil // decided by the delete itself, which does not delete such a bucket
	}
	// The uploads first: a part exists while its upload does.
	for _, prefix := range []string{uploadPrefix, partPrefix} {
		if err := e.removeHidden(ctx, bucket, prefix); err != nil {
			return err
		}
	}
	return nil
}

func (e *Engine) removeHidden(ctx context.Context, bucket, prefix string) error {
	var keys []Deletion
	err := e.hidden(bucket, prefix, "", func(hidden string) (bool, error) {
		keys = append(keys, Deletion{Key: hidden})
		return true, nil
	})
	e.deleteMany(ctx, bucket, keys, flagQuiet)
	for _, k := range keys {
		err = errors.Join(err, k.Err)
	}
	return err
}

// SetPolicy keeps a policy with a bucket; nil removes it.
func (e *Engine) SetPolicy(ctx context.Context, name string, policy []byte) error {
	if len(policy) > maxPolicyBytes {
		return fmt.Errorf("set policy of %q: %w", name, ErrTooLarge)
	}
	return e.changeBuckets(ctx, "set policy of", name, func(m map[string]Bucket) error {
		b, ok := m[name]
		if !ok {
			return ErrNoBucket
		}
		b.Policy = policy
		m[name] = b
		return nil
	})
}

// maxSettingBytes bounds one setting of a bucket.
const maxSettingBytes = 64 << 10

// SetSetting keeps a setting with a bucket; nil removes it.
func (e *Engine) SetSetting(ctx context.Context, name, setting string, value []byte) error {
	if len(value) > maxSettingBytes {
		return fmt.Errorf("set %s of %q: %w", setting, name, ErrTooLarge)
	}
	return e.changeBuckets(ctx, "set "+setting+" of", name, func(m map[string]Bucket) error {
		b, ok := m[name]
		if !ok {
			return ErrNoBucket
		}
		b.Settings = maps.Clone(b.Settings) // readers hold the old one
		if value == nil {
			delete(b.Settings, setting)
		} else {
			if b.Settings == nil {
				b.Settings = map[string][]byte{}
			}
			b.Settings[setting] = value
		}
		m[name] = b
		return nil
	})
}

// Bucket gives a bucket; ErrNoBucket when there is none.
func (e *Engine) Bucket(name string) (Bucket, error) {
	e.mu.RLock()
	defer e.mu.RUnlock()
	b, ok := e.buckets[name]
	if !ok {
		return b, fmt.Errorf("bucket %q: %w", name, ErrNoBucket)
	}
	return b, nil
}

// Buckets gives all buckets by name.
func (e *Engine) Buckets() []Bucket {
	e.mu.RLock()
	defer e.mu.RUnlock()
	list := slices.Collect(maps.Values(e.buckets))
	slices.SortFunc(list, func(a, b Bucket) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// recoveredPolicy is the policy of buckets that were recovered from their objects. What their own
// policy denied is lost, so everything that changes objects is denied.
const recoveredPolicy = `{"Version":"2012-10-17","Statement":[{"Effect":"Deny","Principal":"*",` +
	`"Action":["s3:PutObject","s3:DeleteObject"],"Resource":"arn:aws:s3:::%s/*"}]}`

// recoverBuckets finds objects whose bucket is not in the list. The list was lost then, and with
// it an unknown part of the log.
func (e *Engine) recoverBuckets() (found bool, err error) {
	it, err := e.idx.db.NewIter(&pebble.IterOptions{LowerBound: []byte{spaceObject}, UpperBound: []byte{spaceObject + 1}})
	if err != nil {
		return false, fmt.Errorf("read index: %w", err)
	}
	buckets := maps.Clone(e.buckets)
	for ok := it.First(); ok; {
		name, _, _ := strings.Cut(string(it.Key()[1:]), "\x00")
		if _, known := buckets[name]; !known {
			found = true
			buckets[name] = Bucket{Name: name, Created: time.Unix(0, 0), Policy: fmt.Appendf(nil, recoveredPolicy, name)}
			e.quarantine(Damage{File: logDir, Bucket: name, Reason: "the bucket of objects is not in the list of buckets",
				First: 1, Last: max(1, e.head.nextSeq-1)})
		}
		// Skip the bucket's other objects: 1 is the first byte above the zero behind its name.
		ok = it.SeekGE(append(objectKey(name, "")[:len(name)+1], 1))
	}
	if err := errors.Join(it.Error(), it.Close()); err != nil || !found {
		return found, err
	}
	body, err := encodeBuckets(buckets)
	if err != nil {
		return found, err
	}
	e.buckets = buckets
	return found, e.idx.db.Set([]byte{spaceBuckets}, body, pebble.NoSync)
}

// loadBuckets reads the list of buckets from the index.
func (e *Engine) loadBuckets() error {
	err := e.idx.get([]byte{spaceBuckets}, func(v []byte) (err error) {
		e.buckets, err = decodeBuckets(v)
		return err
	})
	if errors.Is(err, ErrNotFound) {
		e.buckets = map[string]Bucket{}
		return nil
	}
	return err
}
