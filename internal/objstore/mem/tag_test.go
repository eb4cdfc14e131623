package mem

import (
	"errors"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/objstore"
)

func TestSetTags(t *testing.T) {
	s := New(nil)
	if err := s.SetTags(t.Context(), "k", nil); !errors.Is(err, objstore.ErrNotFound) {
		t.Error(err)
	}
	if _, err := s.Create(t.Context(), "k", []byte("x"), objstore.PutOptions{Tags: map[string]string{"a": "1", "b": "2"}}); err != nil {
		t.Fatal(err)
	}
	before, _ := s.Head(t.Context(), "k")
	if err := s.SetTags(t.Context(), "k", map[string]string{"a": "3"}); err != nil {
		t.Fatal(err)
	}
	o, _ := s.Options("k")
	after, _ := s.Head(t.Context(), "k")
	if len(o.Tags) != 1 || o.Tags["a"] != "3" || before != after {
		t.Errorf("%v, %+v, %+v", o.Tags, before, after)
	}
}
