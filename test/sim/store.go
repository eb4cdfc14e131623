package main

import (
	"bytes"
	"slices"
	"strconv"
	"strings"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// store is a linearizable map: each method takes effect at one moment.
type store struct {
	objects map[string]object
	// blind: it keeps no checksums, so that a HEAD does not tell the hash.
	blind bool
	// versioned: reads tell the version, which is the object's birth, and a delete of a key would keep the bytes.
	versioned bool
	// page is how many keys a listing's page has; 0 is all.
	page   int
	births uint64
}

type object struct {
	body []byte
	at   time.Time
	// born tells an object from one that was under the key before.
	born uint64
	// rotten at rest: a read of the bytes fails its checksum.
	rotten bool
}

func (s *store) put(key string, body []byte, now time.Time) {
	s.births++
	s.objects[key] = object{body: body, at: now, born: s.births}
}

func (s *store) create(key string, body []byte, sum identity.Digest, now time.Time) error {
	if !sum.IsZero() && identity.Sum(body) != sum {
		return objstore.ErrChecksum
	}
	if _, ok := s.objects[key]; ok {
		return objstore.ErrExists
	}
	s.put(key, body, now)
	return nil
}

func (s *store) replace(key string, body []byte, etag string, now time.Time) error {
	if o, ok := s.objects[key]; !ok || o.etag() != etag {
		return objstore.ErrPreconditionFailed
	}
	s.put(key, body, now)
	return nil
}

func (o object) etag() string { return strconv.FormatUint(o.born, 10) }

func (s *store) info(key string) (objstore.Info, error) {
	o, ok := s.objects[key]
	if !ok {
		return objstore.Info{}, objstore.ErrNotFound
	}
	info := objstore.Info{Key: key, Size: int64(len(o.body)), LastModified: o.at, ETag: o.etag()}
	if s.versioned {
		info.Version = o.etag()
	}
	if !s.blind && strings.HasPrefix(key, layout.RawBlobsPrefix) {
		info.SHA256 = identity.Sum(o.body)
	}
	return info, nil
}

func (s *store) get(key string, o objstore.GetOptions) ([]byte, objstore.Info, error) {
	info, err := s.info(key)
	if err != nil {
		return nil, info, err
	}
	if s.objects[key].rotten {
		return nil, info, objstore.ErrChecksum
	}
	body := s.objects[key].body
	if o.Length > 0 {
		body = body[min(o.Offset, int64(len(body))):min(o.Offset+o.Length, int64(len(body)))]
	}
	if o.Limit > 0 && int64(len(body)) > o.Limit {
		return nil, info, objstore.ErrInvalid
	}
	return slices.Clone(body), info, nil
}

func (s *store) list(prefix string) []string {
	var keys []string
	for key := range s.objects {
		if strings.HasPrefix(key, prefix) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

// pageOf is one page of a listing, and where the next one starts.
func (s *store) pageOf(prefix, after string) (keys []string, next string) {
	keys = s.list(prefix)
	i, found := slices.BinarySearch(keys, after)
	if found {
		i++
	}
	keys = keys[i:]
	if s.page > 0 && len(keys) > s.page {
		return keys[:s.page], keys[s.page-1]
	}
	return keys, ""
}

// good reports whether some generation of d holds its bytes, or a record carries them.
func (s *store) good(d identity.Digest) bool {
	if o, ok := s.objects[layout.Blob(d, 0)]; ok && identity.Sum(o.body) == d {
		return true
	}
	stem := layout.BlobStem(d)
	for key, o := range s.objects {
		if strings.HasPrefix(key, stem) && identity.Sum(o.body) == d {
			return true
		}
		if !o.rotten && carries(key, o.body, d) {
			return true
		}
	}
	return false
}

// carries reports whether the object is a record that carries the frame.
func carries(key string, body []byte, d identity.Digest) bool {
	switch {
	case !bytes.Contains(body[:min(len(body), 64)], []byte(`.v2"`)): // most are not, and this is asked often
		return false
	case strings.HasPrefix(key, layout.AcceptedPrefix):
		m, err := accept.ParseManifest(body)
		return err == nil && m.Inline && m.FrameSHA256 == d
	case strings.HasPrefix(key, layout.QuarantinePrefix):
		c, err := accept.ParseConflictRecord(body)
		return err == nil && c.Inline() && c.SubmittedSHA256 == d
	}
	return false
}
