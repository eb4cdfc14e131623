package engine

import (
	"io"

	"lightmetrics.dev/lightmetrics/internal/crashfs"
)

// crashFS puts the crashable file system behind the engine's seam.
type crashFS struct{ *crashfs.FS }

func file(f *crashfs.File, err error) (File, error) {
	if err != nil {
		return nil, err
	}
	return f, nil
}

func (c crashFS) Create(name string) (File, error) { return file(c.FS.Create(name)) }
func (c crashFS) Open(name string) (File, error)   { return file(c.FS.Open(name)) }

func (c crashFS) List(name string) ([]string, error) {
	list, err := c.ReadDir(name)
	names := make([]string, len(list))
	for i, e := range list {
		names[i] = e.Name
	}
	return names, err
}

// Lock makes the file that flock needs.
func (c crashFS) Lock(name string) (io.Closer, error) {
	if _, err := c.FS.Open(name); err != nil {
		if _, err := c.FS.Create(name); err != nil {
			return nil, err
		}
	}
	return c.FS.Lock(name)
}

// Free implements FS: the disk is never full.
func (c crashFS) Free() (int64, error) { return 1 << 40, nil }
