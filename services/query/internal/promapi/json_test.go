package promapi

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"
)

// TestStringsAreJSON: whatever bytes a text has, it is written so that a reader gets it, with U+FFFD for what is no UTF-8.
func TestStringsAreJSON(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 0))
	parts := []string{"host_1", "", `"`, `\`, "\n", "\t", "\x00", "\x1f", "é", "\u2028", "\xff", "z", " "}
	for range 2_000 {
		var b strings.Builder
		for range rng.IntN(6) {
			b.WriteString(parts[rng.IntN(len(parts))])
		}
		var got, want string
		if err := json.Unmarshal(appendString(nil, b.String()), &got); err != nil {
			t.Fatalf("%q: %v", b.String(), err)
		}
		for _, r := range b.String() {
			want += string(r)
		}
		if got != want {
			t.Fatalf("%q is read as %q", want, got)
		}
	}
}
