//go:build unix && !linux

package vfs

// Sync implements File.
func (f osFile) Sync() error { return f.File.Sync() }

// Allocate implements File.
func (f osFile) Allocate(off, n int64) error { return WriteZeros(f, off, n) }
