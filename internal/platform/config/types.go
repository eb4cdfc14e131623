// Package config loads settings: file < environment < flags. Settings are structs
// with the tags koanf (name) and help; a field's path is its name everywhere:
// ingest.http.listen in a file, LIGHTMETRICS_INGEST_HTTP_LISTEN in the
// environment, --ingest.http.listen as a flag. Unknown keys are errors.
//
// Further tags of a field:
//   - check:"listen", "address", "file" or "dir": the form of a text (textChecks), and that
//     the file can be read.
//   - needs:"enabled": the setting of that name in the same struct, without which this one
//     has no effect and is refused (parseNeed has the other forms).
//   - reload:"yes": a reload takes it over, everything below it included; other changes
//     wait for a restart (Reload).
package config

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// Secret is a string that is never printed.
type Secret string

const redacted = "<redacted>"

// String hides the value.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return redacted
}

// GoString hides the value.
func (s Secret) GoString() string { return s.String() }

// MarshalText hides the value, so that JSON, YAML and slog do.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText takes the value.
func (s *Secret) UnmarshalText(b []byte) error { *s = Secret(b); return nil }

// Reveal gives the value.
func (s Secret) Reveal() string { return string(s) }

// Command is a program and its arguments, which may have secrets in them: only the program is printed.
type Command []string

// String hides the arguments.
func (c Command) String() string {
	switch len(c) {
	case 0:
		return ""
	case 1:
		return c[0]
	}
	return c[0] + " " + redacted
}

// GoString hides the arguments.
func (c Command) GoString() string { return c.String() }

// MarshalJSON hides the arguments, and slog with it. It is a list all the same, so that settings can be read back.
func (c Command) MarshalJSON() ([]byte, error) { return json.Marshal(c.shown()) }

// MarshalYAML hides the arguments.
func (c Command) MarshalYAML() (any, error) { return c.shown(), nil }

func (c Command) shown() []string {
	if len(c) < 2 {
		return c
	}
	return []string{c[0], redacted}
}

// Bytes is a size in bytes, written as "4MiB", "64KiB", "1GiB", "500MB" or a plain number.
type Bytes int64

var byteUnits = []struct {
	suffix string
	factor int64
}{
	{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40},
	{"kB", 1e3}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}, {"B", 1},
}

// UnmarshalText reads a size.
func (b *Bytes) UnmarshalText(text []byte) error {
	s, factor := strings.TrimSpace(string(text)), int64(1)
	for _, u := range byteUnits {
		if n, ok := strings.CutSuffix(s, u.suffix); ok {
			s, factor = strings.TrimSpace(n), u.factor
			break
		}
	}
	n, err := strconv.ParseInt(s, 10, 64)
	// Compared before multiplying: the product could overflow to a small number that looks valid.
	if err != nil || n < 0 || n > (1<<62)/factor {
		return fmt.Errorf("size %q: want a number with an optional unit such as 4MiB", text)
	}
	*b = Bytes(n * factor)
	return nil
}

// String writes the largest binary unit that divides the size.
func (b Bytes) String() string {
	for i := 3; i >= 0; i-- {
		if u := byteUnits[i]; b != 0 && int64(b)%u.factor == 0 {
			return strconv.FormatInt(int64(b)/u.factor, 10) + u.suffix
		}
	}
	return strconv.FormatInt(int64(b), 10) + "B"
}

// MarshalText writes String.
func (b Bytes) MarshalText() ([]byte, error) { return []byte(b.String()), nil }

// Int is the size as an int.
func (b Bytes) Int() int { return int(b) }
