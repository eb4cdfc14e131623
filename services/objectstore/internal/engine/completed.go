package engine

import (
	"errors"
	"fmt"
)

// completedVersions bounds how many versions of a key CompletedBy looks at.
const completedVersions = 1000

// CompletedBy gives the object that an upload has made, also where newer versions stand above it. It looks at the current
// version, the null version and the newest completedVersions of the others; ErrNotFound: none of them is of the upload.
func (e *Engine) CompletedBy(bucket, key, id string) (Object, error) {
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
