package engine

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/cockroachdb/pebble/v2"
)

// ListQuery selects a page of a bucket.
type ListQuery struct {
	Prefix    string
	Delimiter string
	// After: only keys greater than this; a common prefix equal to it is left out too.
	After string
	// Max is the largest number of objects and common prefixes together.
	Max int
}

// ListPage is a page in key order (bytes).
type ListPage struct {
	Objects  []Brief
	Prefixes []string
	// Next is the After of the next page when Truncated.
	Next      string
	Truncated bool
	// Uncertain: keys of lost writes may be missing.
	Uncertain bool
}

// List reads one page. A common prefix costs one seek, however many keys it stands for.
func (e *Engine) List(bucket string, q ListQuery) (page ListPage, err error) {
	if _, err := e.Bucket(bucket); err != nil {
		return page, err
	}
	if q.Max <= 0 || isHidden(q.Prefix) {
		return page, nil // no client's key begins like a hidden one
	}
	page.Uncertain = e.Uncertain() != nil
	base := objectKey(bucket, "")
	upper := successor(objectKey(bucket, q.Prefix))
	lower := objectKey(bucket, q.Prefix)
	if q.Prefix == "" {
		lower = append(lower, 1) // behind the hidden keys
	}
	it, err := e.idx.db.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
	if err != nil {
		return page, fmt.Errorf("list %q: %w", bucket, err)
	}
	defer func() {
		if cerr := it.Close(); err == nil && cerr != nil {
			err = fmt.Errorf("list %q: %w", bucket, cerr)
		}
	}()
	ok := it.First()
	if q.After != "" {
		// The appended zero makes the first key that is greater than After.
		ok = it.SeekGE(append(objectKey(bucket, q.After), 0))
	}
	for ok {
		key := string(bytes.TrimPrefix(it.Key(), base))
		if group, grouped := commonPrefix(key, q); grouped {
			if group != q.After {
				if len(page.Objects)+len(page.Prefixes) == q.Max {
					page.Truncated = true
					return page, nil
				}
				page.Prefixes = append(page.Prefixes, group)
				page.Next = group
			}
			// One seek passes all keys of the group, so a listing of few prefixes is fast however
			// many objects they hold.
			next := successor(objectKey(bucket, group))
			if next == nil {
				break
			}
			ok = it.SeekGE(next)
			continue
		}
		if len(page.Objects)+len(page.Prefixes) == q.Max {
			page.Truncated = true
			return page, nil
		}
		x, err := decodeEntry(it.Value())
		if err != nil {
			return page, fmt.Errorf("list %q: %w", bucket, err)
		}
		b := e.describe(&x, bucket, key)
		page.Objects = append(page.Objects, b)
		page.Next = key
		ok = it.Next()
	}
	page.Next = ""
	return page, it.Error()
}

func commonPrefix(key string, q ListQuery) (string, bool) {
	if q.Delimiter == "" {
		return "", false
	}
	i := strings.Index(key[len(q.Prefix):], q.Delimiter)
	if i < 0 {
		return "", false
	}
	return key[:len(q.Prefix)+i+len(q.Delimiter)], true
}

// successor is the first key behind all keys that begin with prefix; nil when there is none.
func successor(prefix []byte) []byte {
	s := append([]byte(nil), prefix...)
	for i := len(s) - 1; i >= 0; i-- {
		if s[i] < 0xff {
			s[i]++
			return s[:i+1]
		}
	}
	return nil
}
