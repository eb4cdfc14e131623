package engine

import (
	"context"
	"path/filepath"
	"testing"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/body"
)

// TestVerifyNotesDamageOfVersions: what Verify finds in the body file of a version with an id is remembered, as that of
// other objects is, so that HEAD and listings say so.
func TestVerifyNotesDamageOfVersions(t *testing.T) {
	ctx := context.Background()
	opt := Options{Dir: t.TempDir()}
	e := openTest(t, opt)
	if err := e.SetVersioning(ctx, "bkt", Enabled); err != nil {
		t.Fatal(err)
	}
	e.putFile("k", pattern(100_000, 1))
	o, err := e.Stat("bkt", "k")
	if err != nil {
		t.Fatal(err)
	}
	e.put("k", []byte("newer"))
	flipBytes(t, filepath.Join(opt.Dir, body.Name(o.Extents[0].File)), 5000, 3)
	v, err := e.Verify(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if len(v.Lost) != 1 || len(v.Damages) != 1 || v.Damages[0].Version != o.Version {
		t.Errorf("lost %v, damages %v; want version %s in both", v.Lost, v.Damages, o.Version)
	}
	if _, err := e.StatVersion("bkt", "k", o.Version); err == nil {
		t.Error("HEAD of a version whose body is damaged does not say so")
	}
}
