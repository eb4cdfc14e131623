package mirror

import "testing"

// TestMirrorUnname: a file whose name was given to another is read from the drives on which it is open, and mends nothing that
// has its name by now.
func TestMirrorUnname(t *testing.T) {
	d := newDisks(2)
	f := d.open(t)
	write(t, f, "segment", "the segment")
	write(t, f, "stub", "stub")
	x, err := f.Open("segment") // on the first drive only
	must(t, err)
	old := x.(*File)
	old.Unname()
	must(t, f.Rename("stub", "segment"), f.SyncDir("."))
	b := make([]byte, len("the segment"))
	if n, err := old.ReadAt(b, 0); string(b[:n]) != "the segment" || err != nil {
		t.Errorf("read %q, %v", b[:n], err)
	}
	if n, err := old.ReadCopy(1, b, 0); err == nil {
		t.Errorf("the other drive gives %q", b[:n])
	}
	old.Mend([]byte("the segment"), 0)
	for i, under := range d.under {
		if got := text(under, "segment"); got != "stub" {
			t.Errorf("drive %d has %q", i, got)
		}
	}
	must(t, old.Close(), f.Close())
}
