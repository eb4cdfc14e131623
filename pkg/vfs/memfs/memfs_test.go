package memfs_test

import (
	"testing"

	"lightmetrics.dev/lightmetrics/pkg/vfs"
	"lightmetrics.dev/lightmetrics/pkg/vfs/memfs"
	"lightmetrics.dev/lightmetrics/pkg/vfs/vfstest"
)

func TestFS(t *testing.T) { vfstest.Run(t, func(*testing.T) vfs.FS { return memfs.New() }) }
