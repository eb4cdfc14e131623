package delta

import (
	"testing"

	"lightmetrics.dev/lightmetrics/internal/record/recordtest"
)

// The header of a delta is a stored record like any other: its file is read for ever.
func TestRecords(t *testing.T) {
	recordtest.Run(t, []recordtest.Kind{{
		Kind: Kind,
		Example: func() []byte {
			d, _ := sample(t, 4)
			return d.header
		},
		Read: func(b []byte) ([]byte, error) {
			d, err := parseHeader(b)
			if err != nil {
				return nil, Kind.Wrap("", err)
			}
			return d.header, nil
		},
	}})
}
