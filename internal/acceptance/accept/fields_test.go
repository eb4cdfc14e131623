package accept_test

import (
	"bytes"
	"reflect"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// fillFields gives every field below v a value that is not zero.
func fillFields(t *testing.T, v reflect.Value) {
	t.Helper()
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			fillFields(t, v.Field(i))
		}
	case reflect.Array:
		for i := range v.Len() {
			fillFields(t, v.Index(i))
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 3, 3))
		fillFields(t, v.Index(0))
	case reflect.String:
		v.SetString("text")
	case reflect.Uint8, reflect.Uint32, reflect.Uint64:
		v.SetUint(7)
	case reflect.Int64:
		v.SetInt(7)
	case reflect.Bool:
		v.SetBool(true)
	default:
		t.Fatalf("a field of type %s: say here what value it gets", v.Type())
	}
}

type stoppedClock struct{}

func (stoppedClock) Now() time.Time { return time.Unix(0, 5) }

// TestManifestKeepsEveryFieldOfASubmission: what was submitted is in the manifest, and a batch
// that a spool submits again is the same submission. A field that is forgotten in one of the
// two directions would be lost for the collectors with a spool.
func TestManifestKeepsEveryFieldOfASubmission(t *testing.T) {
	var s accept.Submission
	fillFields(t, reflect.ValueOf(&s).Elem())
	s.Traceparent = goldenManifest().Traceparent // an invalid one is dropped
	m, err := s.NewManifest(3, "authority", "collector", stoppedClock{}, bytes.NewReader(make([]byte, 64)))
	if err != nil {
		t.Fatal(err)
	}
	if again := m.Submission(s.Frame, s.SpoolID); !reflect.DeepEqual(again, s) {
		t.Errorf("submitted again it is\n%+v\nwant\n%+v", again, s)
	}
}

// TestBatchReferenceKeepsItsFields: Manifest.Batch fills every field of accepted.Batch.
func TestBatchReferenceKeepsItsFields(t *testing.T) {
	var m accept.Manifest
	fillFields(t, reflect.ValueOf(&m).Elem())
	b := reflect.ValueOf(m.Batch())
	for i := range b.NumField() {
		if b.Field(i).IsZero() {
			t.Errorf("%s is not taken over from the manifest", b.Type().Field(i).Name)
		}
	}
}

// TestManifestFieldsAreStored: every field of Manifest is written and read back.
func TestManifestFieldsAreStored(t *testing.T) {
	m := goldenManifest()
	v := reflect.ValueOf(&m).Elem()
	for i := range v.NumField() {
		if v.Field(i).IsZero() { // optional, and not in the golden manifest
			fillFields(t, v.Field(i))
		}
	}
	m.Identity = identity.Batch{Agent: "a", Boot: "b", SeqStart: 1, SeqEnd: m.RecordCount}
	m.Inline = false
	if again, err := accept.ParseManifest(m.Marshal()); err != nil || again != m {
		t.Errorf("read back it is\n%+v (%v)\nwant\n%+v", again, err, m)
	}
	m.Inline, m.RawBlobKey = true, ""
	if again, err := accept.ParseManifest(m.MarshalWith([]byte("frame"))); err != nil || again != m {
		t.Errorf("read back it is\n%+v (%v)\nwant\n%+v", again, err, m)
	}
}
