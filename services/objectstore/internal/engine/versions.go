package engine

import (
	"errors"
	"fmt"
	"strings"

	"github.com/cockroachdb/pebble/v2"
)

// VersionQuery selects a page of a bucket's versions.
type VersionQuery struct {
	Prefix, Delimiter string
	// AfterKey and AfterVersion: only versions behind this one. Without AfterVersion all of AfterKey are left out, and a
	// common prefix equal to it.
	AfterKey, AfterVersion string
	// Max is the largest number of versions and common prefixes together.
	Max int
}

// VersionBrief is what the index knows of a version.
type VersionBrief struct {
	Brief
	Latest bool // the newest of its key
	Marker bool
}

// VersionPage is a page in the order of keys (bytes), and of each key the newest first.
type VersionPage struct {
	Versions []VersionBrief
	Prefixes []string
	// NextKey and NextVersion are AfterKey and AfterVersion of the next page when Truncated.
	NextKey, NextVersion string
	Truncated            bool
	// Uncertain: versions of lost writes may be missing.
	Uncertain bool
}

// Versions reads one page. It merges three parts of the index: versions with ids, null versions that are current, and
// those that are not.
func (e *Engine) Versions(bucket string, q VersionQuery) (page VersionPage, err error) {
	if _, err := e.Bucket(bucket); err != nil {
		return page, err
	}
	if q.AfterVersion != "" && q.AfterVersion != NullVersion && !ValidVersionID(q.AfterVersion) {
		return page, fmt.Errorf("list versions of %q behind %q: %w", bucket, q.AfterVersion, ErrNotFound)
	}
	page.Uncertain = e.Uncertain() != nil
	// No client's key has a zero byte. The names of versions have one between the key and the id, so a prefix with one would
	// reach into the ids.
	if q.Max <= 0 || strings.ContainsRune(q.Prefix, 0) {
		return page, nil
	}
	if key, _, odd := strings.Cut(q.AfterKey, "\x00"); odd {
		q.AfterKey, q.AfterVersion = key, "" // the same keys are behind both
	}
	m, err := e.newVersionMerge(bucket, q.Prefix)
	if err != nil {
		return page, fmt.Errorf("list versions of %q: %w", bucket, err)
	}
	err = m.fill(&page, q)
	if err = errors.Join(err, m.close()); err != nil {
		return page, fmt.Errorf("list versions of %q: %w", bucket, err)
	}
	return page, nil
}

// versionMerge walks the versions of a bucket.
type versionMerge struct {
	e      *Engine
	bucket string
	// snapshot shows the three parts at the same moment.
	snapshot *pebble.Snapshot
	parts    [3]*versionPart
	last     string // key of the last version; its first one was the latest
}

// versionPart is one of the merged parts, at its next version.
type versionPart struct {
	it   *pebble.Iterator
	base int // length of what stands before the record's key
	aim  func(key, id string) []byte
	// The next one; done: there is none.
	done bool
	key  string
	x    entry
}

func (e *Engine) newVersionMerge(bucket, prefix string) (*versionMerge, error) {
	m := &versionMerge{e: e, bucket: bucket, snapshot: e.idx.db.NewSnapshot()}
	plain := func(space byte) func(key, id string) []byte {
		return func(key, _ string) []byte {
			b := objectKey(bucket, key)
			b[0] = space
			if key == "" {
				b = append(b, 1) // behind the hidden keys
			}
			return b
		}
	}
	for i, aim := range [...]func(key, id string) []byte{
		func(key, id string) []byte { return objectKey(bucket, versionPrefix+key+id) },
		plain(spaceObject), plain(spaceAside),
	} {
		// Without a prefix the lower bound is that of the first key that is not hidden, and its successor no upper one.
		upper := successor(aim(prefix, ""))
		if prefix == "" {
			upper = successor(aim("\xff", ""))
		}
		it, err := m.snapshot.NewIter(&pebble.IterOptions{LowerBound: aim(prefix, ""), UpperBound: upper})
		if err != nil {
			return nil, errors.Join(err, m.close())
		}
		m.parts[i] = &versionPart{it: it, base: len(objectKey(bucket, "")), aim: aim}
	}
	return m, nil
}

func (m *versionMerge) close() (err error) {
	for _, p := range m.parts {
		if p != nil {
			err = errors.Join(err, p.it.Error(), p.it.Close())
		}
	}
	return errors.Join(err, m.snapshot.Close())
}

// load reads the version at the iterator. Entries of current versions that have an id are passed over: the part of those
// has them.
func (p *versionPart) load(ok bool) (err error) {
	for ; ok; ok = p.it.Next() {
		if p.x, err = decodeEntry(p.it.Value()); err != nil {
			return err
		}
		record := string(p.it.Key()[p.base:])
		if p.key, _ = clientKey(record); p.x.version == "" || isHidden(record) {
			return nil
		}
	}
	p.done = true
	return p.it.Error()
}

// next gives the part with the next version; nil at the end.
func (m *versionMerge) next() (best *versionPart) {
	for _, p := range m.parts {
		if p.done {
			continue
		}
		if best == nil || p.key < best.key || p.key == best.key && p.x.newer(&best.x) {
			best = p
		}
	}
	return best
}

// seek moves all parts to the first version of the first key from key on.
func (m *versionMerge) seek(at func(p *versionPart) []byte) error {
	for _, p := range m.parts {
		if err := p.load(p.it.SeekGE(at(p))); err != nil {
			return err
		}
	}
	return nil
}

// start moves behind the version after which the page begins.
func (m *versionMerge) start(q VersionQuery) error {
	switch {
	case q.AfterKey == "":
		return m.seek(func(p *versionPart) []byte { return p.aim(q.Prefix, "") })
	case q.AfterVersion == "":
		// No key has the byte 1 behind its end and is smaller than the next key.
		return m.seek(func(p *versionPart) []byte { return p.aim(q.AfterKey+"\x00\xff", "") })
	}
	if err := m.seek(func(p *versionPart) []byte { return p.aim(q.AfterKey, "") }); err != nil {
		return err
	}
	var order uint64
	if q.AfterVersion == NullVersion {
		x, err := m.e.idx.record(m.bucket, q.AfterKey)
		if err != nil || x == nil {
			return err // it is gone: the page begins with the newest version of the key again
		}
		order = x.order
	} else {
		order = orderOf(q.AfterVersion)
	}
	first := m.parts[0]
	if err := first.load(first.it.SeekGE(first.aim(q.AfterKey+"\x00", newestFirst(order)+"\xff"))); err != nil {
		return err
	}
	for _, p := range m.parts[1:] {
		if !p.done && p.key == q.AfterKey && (p.x.order >= order) {
			if err := p.load(p.it.Next()); err != nil {
				return err
			}
		}
	}
	m.last = q.AfterKey
	return nil
}

// fill fills a page.
func (m *versionMerge) fill(page *VersionPage, q VersionQuery) error {
	if err := m.start(q); err != nil {
		return err
	}
	group := ListQuery{Prefix: q.Prefix, Delimiter: q.Delimiter}
	for p := m.next(); p != nil; p = m.next() {
		prefix, grouped := commonPrefix(p.key, group)
		if grouped && prefix == q.AfterKey {
			// The page before ended with this group.
		} else if len(page.Versions)+len(page.Prefixes) == q.Max {
			page.Truncated = true
			return nil
		} else if grouped {
			page.Prefixes = append(page.Prefixes, prefix)
			page.NextKey, page.NextVersion = prefix, ""
		}
		var err error
		if grouped {
			err = m.seek(func(p *versionPart) []byte { return p.aim(string(successor([]byte(prefix))), "") })
		} else {
			b := m.e.describe(&p.x, m.bucket, p.key)
			page.Versions = append(page.Versions, VersionBrief{b, p.key != m.last, p.x.isMarker()})
			page.NextKey, page.NextVersion, m.last = p.key, orNull(p.x.version), p.key
			err = p.load(p.it.Next())
		}
		if err != nil {
			return err
		}
	}
	page.NextKey, page.NextVersion = "", ""
	return nil
}

// LatestMarker gives the delete marker that is the newest version of a key; nil when there is none.
func (e *Engine) LatestMarker(bucket, key string) (*MarkerError, error) {
	null, err := e.idx.record(bucket, key)
	if err != nil {
		return nil, err
	}
	x, err := e.idx.newest(bucket, key, null, nil)
	if err != nil || x == nil || !x.isMarker() {
		return nil, err
	}
	return &MarkerError{orNull(x.version), x.brief(key).Modified}, nil
}
