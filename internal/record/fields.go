package record

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Reader reads one record field by field, in the order of the format. It accepts only the
// canonical form, so it needs no general JSON parser. After the first error it returns zero
// values; End returns the error.
type Reader struct {
	kind  Kind
	rest  string
	err   error
	known [maxFields]string // names of the fields read so far, by which End distinguishes an unknown field from a repeated one
	n     int
}

// maxFields bounds the fields of a record that is read field by field.
const maxFields = 32

// NewReader starts to read a record and checks its schema.
func NewReader(k Kind, b []byte) *Reader {
	d := &Reader{kind: k}
	if len(b) > k.MaxBytes { // of this version; a later one may permit more
		if d.err = k.checkSchema(SchemaOf(b)); d.err == nil {
			d.Fail("%d bytes, at most %d", len(b), k.MaxBytes)
		}
		return d
	}
	// One copy of the record, of which its texts are substrings.
	d.rest = string(b)
	d.expect(`{"schema":`)
	if got := d.quoted(maxSchemaBytes); d.err == nil {
		d.err = k.checkSchema(got)
	}
	d.know("schema")
	return d
}

const maxSchemaBytes = 128

// Fail marks the record as corrupt with a reason; the first reason stays.
func (d *Reader) Fail(format string, args ...any) {
	if d.err == nil {
		d.err = d.kind.Corrupt("", format, args...)
	}
}

// Err is the first error so far.
func (d *Reader) Err() error { return d.err }

func (d *Reader) know(name string) {
	if d.n < len(d.known) {
		d.known[d.n] = name
	}
	d.n++
}

func (d *Reader) expect(lit string) {
	if d.err != nil {
		return
	}
	rest, ok := strings.CutPrefix(d.rest, lit)
	if !ok {
		d.Fail("%q is not where it belongs", lit)
		return
	}
	d.rest = rest
}

func (d *Reader) has(name string) bool {
	s, n := d.rest, len(name)
	return d.err == nil && len(s) >= n+4 && s[:2] == `,"` && s[2:n+2] == name && s[n+2:n+4] == `":`
}

func (d *Reader) name(name string) {
	d.know(name)
	if !d.has(name) {
		d.Fail("%s is not where it belongs", name)
		return
	}
	d.rest = d.rest[len(name)+4:]
}

// Text reads a field of at most limit bytes.
func (d *Reader) Text(name string, limit int) string {
	d.name(name)
	return d.quoted(limit)
}

// NonEmpty is Text of at least one byte.
func (d *Reader) NonEmpty(name string, limit int) string {
	s := d.Text(name, limit)
	if d.err == nil && s == "" {
		d.Fail("%s is empty", name)
	}
	return s
}

// OptionalText reads a field that is absent if empty. A present empty field is corrupt, because one value has one form.
func (d *Reader) OptionalText(name string, limit int) string {
	if !d.has(name) {
		d.know(name)
		return ""
	}
	return d.NonEmpty(name, limit)
}

// OptionalUint reads a field that is absent if 0.
func (d *Reader) OptionalUint(name string) uint64 {
	if !d.has(name) {
		d.know(name)
		return 0
	}
	v := d.Uint(name)
	if d.err == nil && v == 0 {
		d.Fail("%s is 0 and not absent", name)
	}
	return v
}

// OptionalPair reads two fields that are there together or not at all; each may be 0.
func (d *Reader) OptionalPair(first, second string) (a, b uint64, there bool) {
	if !d.has(first) {
		d.know(first)
		d.know(second)
		return 0, 0, false
	}
	return d.Uint(first), d.Uint(second), true
}

func (d *Reader) quoted(limit int) string {
	if d.err != nil {
		return ""
	}
	s, rest, err := cutString(d.rest)
	switch {
	case err != nil:
		d.Fail("%v", err)
	case len(s) > limit:
		d.Fail("string has %d bytes, at most %d", len(s), limit)
	default:
		d.rest = rest
		return s
	}
	return ""
}

// cutString reads a canonical JSON string from the start of in.
func cutString(in string) (s, rest string, err error) {
	if in == "" || in[0] != '"' {
		return "", "", fmt.Errorf("a string is not where it belongs")
	}
	end, escaped := 1, false
	for ; end < len(in) && in[end] != '"'; end++ {
		if in[end] < 0x20 {
			return "", "", fmt.Errorf("string has a bare control character")
		}
		if in[end] == '\\' {
			escaped = true
			end++
		}
	}
	if end >= len(in) {
		return "", "", fmt.Errorf("string does not end")
	}
	raw := in[1:end]
	s = raw
	if escaped {
		if s, err = unescape(raw); err != nil {
			return "", "", err
		}
	}
	if !utf8.ValidString(s) {
		return "", "", fmt.Errorf("string is not UTF-8")
	}
	return s, in[end+1:], nil
}

// unescape accepts only the escapes that AppendString writes.
func unescape(raw string) (string, error) {
	out := make([]byte, 0, len(raw))
	for i := 0; i < len(raw); i++ {
		c := raw[i]
		if c != '\\' {
			out = append(out, c)
			continue
		}
		i++ // cutString has checked that a byte follows
		n := strings.IndexByte(`"\btnfr`, raw[i])
		switch {
		case n >= 0:
			out = append(out, "\"\\\b\t\n\f\r"[n])
		case strings.HasPrefix(raw[i:], "u00") && len(raw) >= i+5:
			hi, lo := strings.IndexByte("01", raw[i+3]), strings.IndexByte(hexDigits, raw[i+4])
			c := byte(hi<<4 | lo)
			// \u0022 and the like have a shorter escape, and one text must have one form.
			if hi < 0 || lo < 0 || len(appendEscape(nil, c)) == 2 {
				return "", fmt.Errorf("string has a needless escape")
			}
			out = append(out, c)
			i += 4
		default:
			return "", fmt.Errorf("string has an escape that is not canonical")
		}
	}
	return string(out), nil
}

func (d *Reader) number(name string) string {
	d.name(name)
	if d.err != nil {
		return ""
	}
	n := lenNumber(d.rest)
	s := d.rest[:n]
	d.rest = d.rest[n:]
	return s
}

func lenNumber(s string) int {
	n := 0
	for n < len(s) && (s[n] == '-' || s[n] >= '0' && s[n] <= '9') {
		n++
	}
	return n
}

// Uint reads a field.
func (d *Reader) Uint(name string) uint64 {
	s := d.number(name)
	v, err := strconv.ParseUint(s, 10, 64)
	if d.err == nil && (err != nil || len(s) > 1 && s[0] == '0') {
		d.Fail("%s is not an unsigned integer in its shortest form", name)
	}
	return v
}

// Uint32 reads a field.
func (d *Reader) Uint32(name string) uint32 {
	v := d.Uint(name)
	if d.err == nil && v > 1<<32-1 {
		d.Fail("%s does not fit 32 bits", name)
	}
	return uint32(v)
}

// Int reads a field.
func (d *Reader) Int(name string) int64 {
	s := d.number(name)
	v, err := strconv.ParseInt(s, 10, 64)
	if d.err == nil && (err != nil || !shortest(s)) {
		d.Fail("%s is not an integer in its shortest form", name)
	}
	return v
}

// shortest reports whether a decimal integer has no leading zeros, and is not -0.
func shortest(s string) bool {
	digits := strings.TrimPrefix(s, "-")
	return digits != "" && (digits[0] != '0' || s == "0")
}

// UnixNano reads a time of the protocol itself: never before 1970.
func (d *Reader) UnixNano(name string) int64 {
	v := d.Int(name)
	if d.err == nil && v < 0 {
		d.Fail("%s is negative", name)
	}
	return v
}

// Digest reads a field of 64 lower-case hex digits.
func (d *Reader) Digest(name string) identity.Digest {
	v, err := identity.ParseDigest(d.Text(name, 2*len(identity.Digest{})))
	if d.err == nil && err != nil {
		d.Fail("%s: %w", name, err)
	}
	return v
}

// Batch reads the four fields of an identity, and validates it.
func (d *Reader) Batch() identity.Batch {
	id := identity.Batch{
		Agent:    d.Text("agent_id", identity.MaxAgentIDBytes),
		Boot:     d.Text("boot_id", identity.MaxBootIDBytes),
		SeqStart: d.Uint("seq_start"),
		SeqEnd:   d.Uint("seq_end"),
	}
	if d.err == nil {
		if err := id.Validate(); err != nil {
			d.Fail("%w", err)
		}
	}
	return id
}

// End checks the end of the record and returns the first error. Fields that this release does not know may come before the end.
func (d *Reader) End() error {
	if d.err != nil {
		return d.err
	}
	if d.rest == "}" {
		return nil
	}
	known := d.known[:min(d.n, len(d.known))]
	s := scanner{rest: d.rest}
	s.extraFields(false, func(name string) bool {
		for _, k := range known {
			if k == name {
				return true
			}
		}
		return false
	})
	if s.err == nil && s.rest != "" {
		s.err = fmt.Errorf("%d bytes follow the record", len(s.rest))
	}
	d.err = d.kind.scanError(&s)
	return d.err
}
