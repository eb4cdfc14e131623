package engine

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// ObjectOfBody names a version of an object, or a part of an upload by the key of its record.
type ObjectOfBody struct {
	Bucket, Key, Version string
}

// ObjectsOf gives up to limit objects that name one of some bodies, or lie in a segment that is one. The index is by key, so all of it is read: for an operator's
// question, not for a request.
func (e *Engine) ObjectsOf(ctx context.Context, bodies map[string]bool, limit int) (out []ObjectOfBody, err error) {
	segments := e.segmentsOf(bodies)
	for _, space := range []byte{spaceObject, spaceAside} {
		err := e.idx.scan(space, func(name, value []byte) error {
			if len(out) == limit {
				return errEnough
			}
			if err := ctx.Err(); err != nil {
				return err
			}
			x, err := decodeEntry(value)
			if err != nil {
				return err
			}
			if !segments[x.pos.seg] && !slices.ContainsFunc(x.files, func(f string) bool { return bodies[f] }) {
				return nil
			}
			bucket, record, _ := strings.Cut(string(name), "\x00")
			o := ObjectOfBody{Bucket: bucket}
			if o.Key, o.Version = clientKey(record); isInternal(record) {
				o.Key, o.Version = strings.Trim(strings.ReplaceAll(record, "\x00", " "), " "), "" // a part
			} else if o.Version == "" {
				o.Version = x.version
			}
			out = append(out, o)
			return nil
		})
		if err == errEnough {
			break
		}
		if err != nil {
			return out, fmt.Errorf("objects of bodies: %w", err)
		}
	}
	return out, nil
}

// segmentsOf gives the segments that are one of some bodies.
func (e *Engine) segmentsOf(bodies map[string]bool) map[uint64]bool {
	e.mu.RLock()
	defer e.mu.RUnlock()
	out := map[uint64]bool{}
	for id := range bodies {
		if num, coded := e.codedBy[id]; coded {
			out[num] = true
		}
	}
	return out
}
