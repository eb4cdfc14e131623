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
	// What decodeHead would refuse must never be written: the list could not be read back.
	if len(body) > maxInlineBytes {
		return fmt.Errorf("%w: the list of buckets, with their settings, has %d bytes", ErrTooLarge, len(body))
	}
	o.rec.body, o.rec.bodyLen, o.rec.bodyCRC = body, uint32(len(body)), crc32.Checksum(body, castagnoli)
	return nil
}

// CreateBucket makes a bucket; ErrBucketExists when it is there.
func (e *Engine) CreateBucket(ctx context.Context, name string, now time.Time) error {
	return e.CreateBucketWith(ctx, Bucket{Name: name, Created: now})
}

// CreateBucketWith is CreateBucket with the policy and the settings of the bucket. One with object lock has versioning.
func (e *Engine) CreateBucketWith(ctx context.Context, b Bucket) error {
	name := b.Name
	if name == "" || len(name) > maxBucketLen || strings.ContainsRune(name, 0) {
		return fmt.Errorf("create bucket %q: %w", name, ErrTooLarge)
	}
	if b.Settings[SettingLock] != nil {
		b.Settings = maps.Clone(b.Settings)
		b.Settings[settingVersioning] = []byte(Enabled)
	}
	return e.changeBuckets(ctx, "create bucket", name, func(m map[string]Bucket) error {
		if _, ok := m[name]; ok {
			return ErrBucketExists
		}
		if len(m) >= maxBuckets {
			return fmt.Errorf("%w: there are %d buckets", ErrTooLarge, len(m))
		}
		m[name], _ = e.marked(b)
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
		if err := e.checkEmpty(name); err != nil {
			return err
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

// checkEmpty gives ErrBucketNotEmpty for a bucket with objects, older versions or delete markers.
func (e *Engine) checkEmpty(bucket string) error {
	page, err := e.Versions(bucket, VersionQuery{Max: 1})
	if err == nil && len(page.Versions) > 0 {
		return ErrBucketNotEmpty
	}
	return err
}

// abortAll aborts the uploads of a bucket that has no objects.
func (e *Engine) abortAll(ctx context.Context, bucket string) error {
	if e.checkEmpty(bucket) != nil || e.Uncertain() != nil {
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
	var ops []*op
	err := e.hidden(bucket, prefix, "", func(hidden string) (bool, error) {
		ops = append(ops, &op{rec: record{kind: kindDelete, flags: flagQuiet, bucket: bucket, key: hidden}})
		return true, nil
	})
	e.deleteAll(ctx, ops, func(_ int, derr error) { err = errors.Join(err, derr) })
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

// maxSettingBytes bounds one setting of a bucket. The largest are 1,000 lifecycle rules; all settings of all buckets
// together are bounded by the record of the list.
const maxSettingBytes = 1 << 20

// SetSetting keeps a setting with a bucket; nil removes it.
func (e *Engine) SetSetting(ctx context.Context, name, setting string, value []byte) error {
	return e.changeSetting(ctx, name, setting, value, func(*Bucket) error { return nil })
}

// changeSetting is SetSetting if the bucket, at the moment of the change, passes a check.
func (e *Engine) changeSetting(ctx context.Context, name, setting string, value []byte, check func(*Bucket) error) error {
	if len(value) > maxSettingBytes {
		return fmt.Errorf("set %s of %q: %w", setting, name, ErrTooLarge)
	}
	return e.changeBuckets(ctx, "set "+setting+" of", name, func(m map[string]Bucket) error {
		b, ok := m[name]
		if !ok {
			return ErrNoBucket
		}
		if err := check(&b); err != nil {
			return err
		}
		m[name] = b.with(setting, value)
		return nil
	})
}

// with gives the bucket with a setting; nil removes it.
func (b Bucket) with(setting string, value []byte) Bucket {
	b.Settings = maps.Clone(b.Settings) // readers hold the old one
	if value == nil {
		delete(b.Settings, setting)
		return b
	}
	if b.Settings == nil {
		b.Settings = map[string][]byte{}
	}
	b.Settings[setting] = value
	return b
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
	`"Action":["s3:PutObject","s3:DeleteObject","s3:DeleteObjectVersion"],"Resource":"arn:aws:s3:::%s/*"}]}`

// recoverBuckets finds objects whose bucket is not in the list. The list was lost then, and with
// it an unknown part of the log.
func (e *Engine) recoverBuckets() (found bool, err error) {
	if err := e.recoverVersioning(); err != nil {
		return false, err
	}
	it, err := e.idx.db.NewIter(&pebble.IterOptions{LowerBound: []byte{spaceObject}, UpperBound: []byte{spaceObject + 1}})
	if err != nil {
		return false, fmt.Errorf("read index: %w", err)
	}
	buckets := maps.Clone(e.buckets)
	for ok := it.First(); ok; {
		name, _, _ := strings.Cut(string(it.Key()[1:]), "\x00")
		if _, known := buckets[name]; !known {
			found = true
			buckets[name] = Bucket{Name: name, Created: time.Unix(0, 0), Policy: fmt.Appendf(nil, recoveredPolicy, name), Settings: e.versioningFound(name)}
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

// recoverVersioning turns versioning on in buckets that have versions although their list does not say so: it was lost,
// and an older one counts. Without it a write would be taken for one from before all versions. Of other buckets it forgets
// that they may have versions.
func (e *Engine) recoverVersioning() error {
	changed := false
	for bucket := range e.versioned {
		b, known := e.buckets[bucket]
		if b.Versioning() != Unversioned {
			continue
		}
		has, err := e.hasVersions(bucket)
		if err != nil {
			return err
		}
		if !has {
			delete(e.versioned, bucket)
			if err := e.idx.db.Delete(spaceKey(spaceVersioned, bucket), pebble.NoSync); err != nil {
				return fmt.Errorf("update index: %w", err)
			}
			continue
		}
		if known {
			changed = true
			b.Settings = maps.Clone(b.Settings)
			if b.Settings == nil {
				b.Settings = map[string][]byte{}
			}
			b.Settings[settingVersioning] = []byte(Enabled)
			e.buckets[bucket] = b
			e.opt.Log.Error("a bucket has versions, and its list does not say so: versioning is on", "bucket", bucket)
		}
	}
	if !changed {
		return nil
	}
	body, err := encodeBuckets(e.buckets)
	if err != nil {
		return err
	}
	return e.idx.db.Set([]byte{spaceBuckets}, body, pebble.NoSync)
}

// versioningFound gives the settings of a bucket that was recovered from its objects.
func (e *Engine) versioningFound(bucket string) map[string][]byte {
	if !e.versioned[bucket] {
		return nil
	}
	return map[string][]byte{settingVersioning: []byte(Enabled)}
}

// hasVersions reports whether a bucket has versions with ids, or delete markers, or null versions that are not current.
func (e *Engine) hasVersions(bucket string) (found bool, err error) {
	err = e.idx.eachVersion(bucket, "", "", func(_, _ []byte) (bool, error) {
		found = true
		return false, nil
	})
	if err != nil || found {
		return found, err
	}
	it, err := e.idx.db.NewIter(&pebble.IterOptions{LowerBound: asideKey(bucket, ""), UpperBound: successor(asideKey(bucket, ""))})
	if err != nil {
		return false, fmt.Errorf("read index: %w", err)
	}
	found = it.First()
	return found, errors.Join(it.Error(), it.Close())
}

// SetVersioning turns the versioning of a bucket on, or suspends it. ErrLockOn: it has object lock, and keeps its versions.
func (e *Engine) SetVersioning(ctx context.Context, name string, v Versioning) error {
	return e.changeSetting(ctx, name, settingVersioning, []byte(v), func(b *Bucket) error {
		if b.Settings[SettingLock] != nil && v != Enabled {
			return ErrLockOn
		}
		return nil
	})
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
