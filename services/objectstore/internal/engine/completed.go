package engine

import (
	"errors"
	"fmt"
	"slices"
	"sync"
)

// completedVersions bounds how many versions of a key CompletedBy looks at.
const completedVersions = 1000

// rememberedCompletions bounds how many completions are remembered after their objects; with the longest names they take
// about 6 MiB.
const rememberedCompletions = 4096

// completions remembers what the last uploads have made: who repeats a complete gets its answer also when the object was
// replaced or deleted meanwhile.
type completions struct {
	mu   sync.Mutex
	made map[string]Object // by upload
	ids  []string          // from the oldest on, where next is the oldest
	next int
}

// add is called by the committer before anyone can see that the upload has ended.
func (c *completions) add(o *Object) {
	brief := Object{Bucket: o.Bucket, Key: o.Key, Size: o.Size, ETag: o.ETag, Checksum: o.Checksum, Upload: o.Upload, Version: o.Version}
	if o.Sealed() { // which one extent tells, of up to 10,000
		brief.Extents, brief.Seal = slices.Clone(o.Extents[:min(1, len(o.Extents))]), o.Seal
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.made == nil {
		c.made = map[string]Object{}
	}
	if len(c.ids) < rememberedCompletions {
		c.ids = append(c.ids, o.Upload)
	} else {
		delete(c.made, c.ids[c.next])
		c.ids[c.next] = o.Upload
		c.next = (c.next + 1) % rememberedCompletions
	}
	c.made[o.Upload] = brief
}

func (c *completions) find(bucket, key, id string) (Object, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	o, ok := c.made[id]
	return o, ok && o.Bucket == bucket && o.Key == key
}

// CompletedBy gives what is known of the object that an upload has made: Bucket, Key, Size, ETag, Checksum, Version and
// whether it was sealed. The last rememberedCompletions of this process are known whatever became of their objects. Of
// others it looks at the current version, the null version and the newest completedVersions of the others, which may have
// newer ones above them; ErrNotFound: none of them is of the upload.
func (e *Engine) CompletedBy(bucket, key, id string) (Object, error) {
	if o, ok := e.completed.find(bucket, key, id); ok {
		return o, nil
	}
	if len(id) == uploadIDLen && checkKey(key) == nil {
		for _, version := range []string{"", NullVersion} {
			if o, ok, err := e.madeBy(bucket, key, version, id); ok || err != nil {
				return o, err
			}
		}
		looked := 0
		var found Object
		err := e.hidden(bucket, versionPrefix+key+"\x00", "", func(record string) (bool, error) {
			if looked++; looked > completedVersions {
				return false, nil
			}
			_, version := clientKey(record)
			o, ok, err := e.madeBy(bucket, key, version, id)
			if ok {
				found = o
			}
			return !ok, err
		})
		if err != nil || found.Upload != "" {
			return found, err
		}
	}
	return Object{}, fmt.Errorf("object of upload %q: %w", id, ErrNotFound)
}

// madeBy gives a version, and whether it is of an upload. What cannot be read is not.
func (e *Engine) madeBy(bucket, key, version, id string) (Object, bool, error) {
	x, err := e.idx.find(bucket, key, version)
	if err != nil || x == nil || x.flags&flagUpload == 0 {
		return Object{}, false, err
	}
	o, err := e.StatVersion(bucket, key, version)
	switch {
	case errors.Is(err, ErrNotFound), errors.Is(err, ErrCorrupt):
		return o, false, nil
	case err != nil:
		return o, false, err
	}
	return o, o.Upload == id, nil
}
