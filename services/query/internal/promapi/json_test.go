package promapi

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"reflect"
	"strconv"
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

// TestFloatsAreWritten as strconv has them, whole ones too.
func TestFloatsAreWritten(t *testing.T) {
	all := []float64{0, math.Copysign(0, -1), 1, -1, 10, 1e15, -1e15, 1<<53 - 1, 1 << 53, -1 << 53, 1e20, 1e21, 1e-6, 1e-7, 0.1, -2.5, math.NaN(), math.Inf(1), math.Inf(-1), math.MaxFloat64}
	rng := rand.New(rand.NewPCG(1, 2))
	for range 2_000 {
		all = append(all, math.Float64frombits(rng.Uint64()), float64(rng.Int64N(1<<62)-1<<61), float64(rng.IntN(2000)-1000))
	}
	for _, v := range all {
		format := byte('f')
		if abs := math.Abs(v); abs != 0 && (abs < 1e-6 || abs >= 1e21) {
			format = 'e'
		}
		if got, want := string(appendFloat(nil, v)), strconv.Quote(strconv.FormatFloat(v, format, -1, 64)); got != want {
			t.Errorf("%v is %s, want %s", v, got, want)
		}
	}
}

// TestPlainCompleteness: what is written without the encoder is what this would write, and nothing else is plain.
func TestPlainCompleteness(t *testing.T) {
	for _, c := range []completeness{{}, {Partial: true}, {CompleteThrough: "2026-11-21T00:00:00Z", AgentsWithGaps: 3}} {
		want, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		if got := string(c.appendPlain(nil)); !c.plain() || got != string(want) {
			t.Errorf("%+v: %s, want %s", c, got, want)
		}
	}
	for i := range reflect.TypeFor[completeness]().NumField() {
		var c completeness
		if f := reflect.ValueOf(&c).Elem().Field(i); f.Kind() == reflect.Slice {
			f.Set(reflect.MakeSlice(f.Type(), 1, 1))
			if c.plain() {
				t.Errorf("with %s it is plain", reflect.TypeOf(c).Field(i).Name)
			}
		}
	}
	// A field that is new must be written, too.
	if n := reflect.TypeFor[completeness]().NumField(); n != 7 {
		t.Errorf("%d fields", n)
	}
}
