package mem

import (
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/storetest"
)

func TestConformance(t *testing.T) {
	storetest.Run(t, func(*testing.T) objstore.Store { return New(nil) }, storetest.Features{})
}

func TestLastModifiedIsTheClocks(t *testing.T) {
	at := time.Unix(1234567890, 5)
	s := New(func() time.Time { return at })
	for _, key := range []string{"a", "b"} {
		if _, err := s.Create(t.Context(), key, nil, objstore.PutOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	info, err := s.Head(t.Context(), "b")
	if err != nil || !info.LastModified.Equal(at) {
		t.Fatalf("%v, %v", info.LastModified, err)
	}
}
