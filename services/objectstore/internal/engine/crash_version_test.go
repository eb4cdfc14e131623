package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"slices"
)

// modelVersion is a version of a key in a world; the ID of the null version is NullVersion.
type modelVersion struct {
	ID     string
	Marker bool
	stored stored
}

// MarshalJSON has the fields of stored, too, so that two histories are equal when their texts are.
func (m modelVersion) MarshalJSON() ([]byte, error) {
	return json.Marshal([]any{m.ID, m.Marker, m.stored.etag, []byte(m.stored.body), m.stored.tags, m.stored.user})
}

// UnmarshalJSON reads what MarshalJSON writes.
func (m *modelVersion) UnmarshalJSON(b []byte) error {
	var body []byte
	err := json.Unmarshal(b, &[]any{&m.ID, &m.Marker, &m.stored.etag, &body, &m.stored.tags, &m.stored.user})
	m.stored.body = string(body)
	return err
}

const historyPrefix = "\x00h"

// history gives the versions of a key, the newest first.
func (w world) history(key string) (list []modelVersion) {
	if text := w[historyPrefix+key].body; text != "" {
		if err := json.Unmarshal([]byte(text), &list); err != nil {
			panic(err)
		}
	}
	return list
}

// setHistory sets the versions of a key, and what a client sees of it without naming one.
func (w world) setHistory(key string, list []modelVersion) {
	mustKeep(key, w.history(key), list)
	delete(w, key)
	delete(w, historyPrefix+key)
	if len(list) == 0 {
		return
	}
	text, err := json.Marshal(list)
	if err != nil {
		panic(err)
	}
	w[historyPrefix+key] = stored{body: string(text)}
	if !list[0].Marker {
		w[key] = list[0].stored
	}
}

// add makes a version the newest one, as the versioning of the bucket has it.
func (w world) add(key, id string, m modelVersion) {
	list := w.history(key)
	m.ID = orNull(id)
	if m.ID == NullVersion {
		list = slices.DeleteFunc(list, func(o modelVersion) bool { return o.ID == NullVersion })
	}
	w.setHistory(key, append([]modelVersion{m}, list...))
}

func (w world) write(key, id string, x stored) { w.add(key, id, modelVersion{stored: x}) }

// remove deletes a key; marker is the id of the delete marker, if one was made.
func (w world) remove(key, marker string) {
	if marker == "" {
		w.setHistory(key, nil)
		return
	}
	w.add(key, marker, modelVersion{Marker: true})
}

// tag replaces the tags of a version, or of the newest one.
func (w world) tag(key, id, tags string) {
	w.mark(key, id, func(marks string) string { return tags + holdOf(marks) })
}

// mark changes what is set of a version, or of the newest one, without writing its body.
func (w world) mark(key, id string, change func(marks string) string) {
	list := w.history(key)
	for i := range list {
		if id == "" || list[i].ID == id {
			list[i].stored.tags = change(list[i].stored.tags)
			break
		}
	}
	w.setHistory(key, list)
}

// lookVersions adds the versions of all keys, of which it reads the bytes; it counts them, and their bytes.
func lookVersions(e *Engine, w world) (versions, size int64, err error) {
	all, err := e.Versions("bkt", VersionQuery{Max: 100_000})
	if err != nil {
		return 0, 0, err
	}
	lists := map[string][]modelVersion{}
	var paged []VersionBrief
	for q := (VersionQuery{Max: 3}); ; {
		page, err := e.Versions("bkt", q)
		if err != nil {
			return 0, 0, err
		}
		paged = append(paged, page.Versions...)
		if !page.Truncated {
			break
		}
		q.AfterKey, q.AfterVersion = page.NextKey, page.NextVersion
	}
	if !slices.Equal(paged, all.Versions) {
		return 0, 0, fmt.Errorf("in pages of three the versions are %v, in one %v", paged, all.Versions)
	}
	for _, b := range all.Versions {
		m := modelVersion{ID: orNull(b.Version), Marker: b.Marker}
		if b.Latest != (lists[b.Key] == nil) {
			return 0, 0, fmt.Errorf("version %s of %q is listed as latest: %t", b.Version, b.Key, b.Latest)
		}
		h, err := e.GetVersion("bkt", b.Key, m.ID)
		var marker *MarkerError
		switch {
		case errors.As(err, &marker) && b.Marker:
		case err != nil || b.Marker:
			return 0, 0, fmt.Errorf("version %s of %q is listed, but: %w", m.ID, b.Key, err)
		default:
			var body bytes.Buffer
			err = h.Copy(&body, 0, h.Object.Size)
			o := h.Object
			h.Close()
			if err != nil || o.ETag != b.ETag || o.Size != b.Size || int(o.Size) != body.Len() || orNull(o.Version) != m.ID {
				return 0, 0, fmt.Errorf("version %s of %q: GET and the listing differ: %w", m.ID, b.Key, err)
			}
			m.stored = stored{o.ETag, body.String(), marks(&o), fmt.Sprint(o.User)}
		}
		lists[b.Key] = append(lists[b.Key], m)
		versions, size = versions+1, size+b.Size
	}
	for key, list := range lists {
		was, there := w[key]
		w.setHistory(key, list)
		if now, still := w[key]; now != was || still != there {
			return 0, 0, fmt.Errorf("the newest version of %q is not what GET gives", key)
		}
	}
	for _, key := range crashKeys {
		if _, there := w[key]; there && lists[key] == nil {
			return 0, 0, fmt.Errorf("%q is there, and has no version", key)
		}
	}
	return versions, size, nil
}

// versioningCall turns versioning on, or suspends it.
func versioningCall(v Versioning) call {
	return call{
		func(e *Engine) error { return e.SetVersioning(context.Background(), "bkt", v) },
		func(w world) { w[""] = stored{body: w[""].body, user: string(v), tags: w[""].tags} },
	}
}

// deleteVersionCall removes one version.
func deleteVersionCall(key, id string) call {
	return call{
		func(e *Engine) error {
			_, err := e.Delete(context.Background(), "bkt", Deletion{Key: key, Version: id})
			return err
		},
		func(w world) {
			w.setHistory(key, slices.DeleteFunc(w.history(key), func(m modelVersion) bool { return m.ID == id }))
		},
	}
}

func tagVersionCall(key, id, value string) call {
	tags := []Pair{{"t", value}}
	return call{
		func(e *Engine) error {
			_, err := e.SetTags(context.Background(), "bkt", key, id, tags)
			var marker *MarkerError
			if errors.Is(err, ErrNotFound) || errors.As(err, &marker) {
				return fs.ErrNotExist
			}
			return err
		},
		func(w world) { w.tag(key, id, fmt.Sprint(tags)) },
	}
}

// versionStep does something of versions.
func versionStep(s *session, rng *rand.Rand, key, etag func() string) (calls []call) {
	k := key()
	list := s.now().history(k)
	some := func() string {
		if len(list) == 0 || rng.IntN(6) == 0 {
			return NullVersion
		}
		return list[rng.IntN(len(list))].ID
	}
	if s.now()[""].user == "" {
		return []call{versioningCall(Enabled)}
	}
	switch rng.IntN(8) {
	case 0:
		if s.now()[""].user == string(Enabled) {
			return []call{versioningCall(Suspended)}
		}
		return []call{versioningCall(Enabled)}
	case 1: // of one key, all at once: the newest are deleted, and others race to create it
		for i, m := range list {
			if i < 2 {
				calls = append(calls, deleteVersionCall(k, m.ID))
			}
		}
		calls = append(calls, putCall(k, pattern(60, 1), etag(), Cond{Absent: true}), deleteCall(k),
			putCall(k, pattern(61, 2), etag(), Cond{Absent: true}), putCall(k, pattern(62, 3), etag(), Cond{Absent: true}))
		rng.Shuffle(len(calls), func(i, j int) { calls[i], calls[j] = calls[j], calls[i] })
		return calls
	case 2:
		return []call{deleteCall(k), deleteCall(key()), deleteCall(key())}
	case 3:
		return []call{tagVersionCall(k, some(), etag())}
	case 4:
		return []call{deleteVersionCall(k, some()), deleteVersionCall(k, some()), deleteVersionCall(k, newVersionID(1))}
	case 5: // from the newest on
		for _, m := range list {
			calls = append(calls, deleteVersionCall(k, m.ID))
		}
		return calls
	}
	for range 1 + rng.IntN(3) {
		calls = append(calls, putCall(k, pattern(rng.IntN(2500), byte(rng.Uint32())), etag(), Cond{}))
	}
	return calls
}
