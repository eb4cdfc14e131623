package objstore_test

import (
	"errors"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/fault"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
)

func TestCreateOrGet(t *testing.T) {
	ours, theirs := []byte("ours"), []byte("theirs")
	for _, c := range []struct {
		name    string
		there   []byte // before
		rules   []fault.Rule
		got     []byte
		created bool
		want    []error
	}{
		{"absent", nil, nil, ours, true, nil},
		{"there", theirs, nil, theirs, false, nil},
		{"ours, after a lost answer", nil, []fault.Rule{fault.LostAnswer("create", "").Once()}, ours, false, nil},
		{"never sent", nil, []fault.Rule{fault.NotApplied("create", "").Once()}, ours, true, nil},
		{"refused", theirs, []fault.Rule{fault.Refused("create", "", objstore.ErrDenied)}, nil, false, []error{objstore.ErrDenied}},
		{"unknown for ever", theirs, []fault.Rule{fault.NotApplied("create", "")}, nil, false, []error{objstore.ErrUnknown}},
		{"there, and damaged", theirs, []fault.Rule{fault.Refused("get", "", objstore.ErrChecksum)}, nil, false, []error{objstore.ErrExists, objstore.ErrChecksum}},
		{"there, and away", theirs, []fault.Rule{fault.NotApplied("get", "")}, nil, false, []error{objstore.ErrExists, objstore.ErrUnavailable}},
		{"over the limit", make([]byte, 100), nil, nil, false, []error{objstore.ErrExists, objstore.ErrInvalid}},
		{"said to exist once", nil, []fault.Rule{fault.Refused("create", "", objstore.ErrExists).Once()}, ours, true, nil},
		{"said to exist for ever", nil, []fault.Rule{fault.Refused("create", "", objstore.ErrExists)}, nil, false, []error{objstore.ErrUnknown}},
	} {
		m := mem.New(nil)
		if c.there != nil {
			if _, err := m.Create(t.Context(), "k", c.there, objstore.PutOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		s := withPolicy(fault.New(m, 1, c.rules...))
		got, created, err := objstore.CreateOrGet(t.Context(), s, "k", ours, 64, objstore.PutOptions{})
		if string(got) != string(c.got) || created != c.created || (err == nil) != (len(c.want) == 0) {
			t.Errorf("%s: %q, %v, %v", c.name, got, created, err)
		}
		for _, want := range c.want {
			if !errors.Is(err, want) {
				t.Errorf("%s: %v, want %v", c.name, err, want)
			}
		}
		if errors.Is(err, objstore.ErrNotFound) {
			t.Errorf("%s: %v is absence", c.name, err)
		}
	}
}
