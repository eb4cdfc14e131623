package engine

import (
	"errors"
	"fmt"
)

// NamesBody reports whether a record of the log names a body. A body is written before its record, so one that is not named may
// be named a moment later. It is an error while the log has damage that may hide the record.
func (e *Engine) NamesBody(id string) (bool, error) {
	err := e.idx.get(spaceKey(spaceFile, id), func([]byte) error { return nil })
	if err == nil {
		return true, nil
	}
	if !errors.Is(err, ErrNotFound) {
		return false, fmt.Errorf("body %s: %w", id, err)
	}
	if err := e.Uncertain(); err != nil {
		return false, fmt.Errorf("body %s: %w", id, err)
	}
	return false, nil
}

// BodiesAfter gives up to limit bodies that records of the log name, in the order of their ids, from behind one on; the
// empty id is before all.
func (e *Engine) BodiesAfter(after string, limit int) (ids []string, err error) {
	err = e.idx.scanFrom(spaceFile, after+"\x00", func(name, _ []byte) error {
		if len(ids) == limit {
			return errEnough
		}
		ids = append(ids, string(name))
		return nil
	})
	if err != nil && !errors.Is(err, errEnough) {
		return nil, fmt.Errorf("list bodies: %w", err)
	}
	return ids, nil
}

var errEnough = errors.New("enough")
