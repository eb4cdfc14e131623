package accept_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// gone is a store that answers nothing.
type gone struct{ objstore.Reader }

func (gone) Get(context.Context, string, objstore.GetOptions) ([]byte, objstore.Info, error) {
	return nil, objstore.Info{}, objstore.ErrUnavailable
}

// Any generation whose bytes have the hash is the frame; without one the reader is told
// what was wrong, and a store that does not answer is not an absent frame.
func TestReadFrame(t *testing.T) {
	good, other := []byte("the frame"), []byte("no frame!")
	d := identity.Sum(good)
	for name, c := range map[string]struct {
		objects map[uint32][]byte
		found   bool
		cause   error
	}{
		"first":         {map[uint32][]byte{0: good}, true, nil},
		"a later one":   {map[uint32][]byte{2: good}, true, nil},
		"first is bad":  {map[uint32][]byte{0: other, 1: other, 3: good}, true, nil},
		"first is long": {map[uint32][]byte{0: append(good, good...), 1: good}, true, nil},
		"all are bad":   {map[uint32][]byte{0: other, 1: other}, false, nil},
		"none":          {nil, false, objstore.ErrNotFound},
	} {
		s := mem.New(time.Now)
		for gen, body := range c.objects {
			if _, err := s.Put(t.Context(), layout.Blob(d, gen), body, objstore.PutOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		raw, err := accept.ReadFrame(t.Context(), s, layout.Blob(d, 0), d, uint64(len(good)))
		var missing *accept.FrameError
		switch {
		case c.found && (err != nil || string(raw) != string(good)):
			t.Errorf("%s: %q, %v", name, raw, err)
		case !c.found && (!errors.As(err, &missing) || missing.SHA256 != d || c.cause != nil && !errors.Is(err, c.cause)):
			t.Errorf("%s: %q, %v", name, raw, err)
		}
		if _, err := accept.ReadFrame(t.Context(), gone{s}, layout.Blob(d, 0), d, 9); !errors.Is(err, objstore.ErrUnavailable) || errors.As(err, new(*accept.FrameError)) {
			t.Errorf("%s, no answer: %v", name, err)
		}
	}
}
