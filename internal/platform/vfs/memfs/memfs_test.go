package memfs_test

import (
	"testing"

	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
	"lightmetrics.dev/lightmetrics/internal/platform/vfs/memfs"
	"lightmetrics.dev/lightmetrics/internal/platform/vfs/vfstest"
)

func TestFS(t *testing.T) { vfstest.Run(t, func(*testing.T) vfs.FS { return memfs.New() }) }
