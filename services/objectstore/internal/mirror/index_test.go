package mirror

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/platform/vfs/errorfs"
)

// TestMirrorTellsOfALostIndex: the drive with the index fails when it is to note that another drive has joined. It is put out, and
// whoever has the index open is told.
func TestMirrorTellsOfALostIndex(t *testing.T) {
	d := newDisks(4)
	f := d.open(t)
	write(t, f, "a", "text")
	must(t, f.Close())

	d.fail(3, errors.New("no such device"))
	f = d.open(t)
	if f.IndexSlot() != 0 {
		t.Fatalf("the index is on drive %d", f.IndexSlot())
	}
	write(t, f, "b", "text")
	record := func(op errorfs.Op) (fault errorfs.Fault) {
		if strings.HasPrefix(op.Name, RecordName) && (op.Kind == errorfs.Create || op.Kind == errorfs.Rename) {
			fault.Err = errors.New("the drive takes no records")
		}
		return fault
	}
	d.heal()
	d.fault[0].Store(&record)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- f.Run(ctx) }()
	defer func() {
		stop()
		must(t, <-ended)
	}()
	select {
	case <-f.IndexLost():
	case <-time.After(time.Minute):
		t.Fatalf("nobody is told: %v", states(f))
	}
	if err := f.Err(); err != nil {
		t.Error(err)
	}
	write(t, f, "c", "text")
	if got := text(f, "a") + text(f, "b") + text(f, "c"); got != "texttexttext" {
		t.Error(got)
	}
}
