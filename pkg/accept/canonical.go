package accept

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/layout"
)

// MaxRecordBytes bounds every JSON record of this package; a reader may refuse
// longer objects unread.
const MaxRecordBytes = 8 << 10

// Bounds of text fields, in bytes.
const (
	MaxNameBytes    = 128 // collector, authority and spool ids
	maxKeyBytes     = 1024
	attemptIDDigits = 32
)

// ErrCorruptRecord is wrapped by every parse error of a record.
var ErrCorruptRecord = errors.New("corrupt record")

// The encoding is canonical: one byte string per value. A reader takes that byte
// string and nothing else, so parse needs no general JSON: it walks the fixed form.

type encoder struct{ b []byte }

func (e *encoder) begin(schema string) {
	e.b = append(e.b, `{"schema":`...)
	e.quote(schema)
}

func (e *encoder) name(name string) {
	e.b = append(e.b, ',', '"')
	e.b = append(e.b, name...)
	e.b = append(e.b, '"', ':')
}

func (e *encoder) text(name, s string) { e.name(name); e.quote(s) }

func (e *encoder) uint(name string, v uint64) {
	e.name(name)
	e.b = strconv.AppendUint(e.b, v, 10)
}

func (e *encoder) int(name string, v int64) {
	e.name(name)
	e.b = strconv.AppendInt(e.b, v, 10)
}

func (e *encoder) digest(name string, d identity.Digest) {
	e.name(name)
	e.b = append(e.b, '"')
	e.b = appendHex(e.b, d[:])
	e.b = append(e.b, '"')
}

func (e *encoder) batch(id identity.Batch) {
	e.text("agent_id", id.Agent)
	e.text("boot_id", id.Boot)
	e.uint("seq_start", id.SeqStart)
	e.uint("seq_end", id.SeqEnd)
}

func (e *encoder) end() []byte { return append(e.b, '}') }

const hexDigits = "0123456789abcdef"

func appendHex(b, v []byte) []byte {
	for _, c := range v {
		b = append(b, hexDigits[c>>4], hexDigits[c&15])
	}
	return b
}

// quote escapes the quote, the backslash and control characters below 0x20, the
// last as \u00xx, and nothing else.
func (e *encoder) quote(s string) {
	e.b = append(e.b, '"')
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			e.b = append(e.b, '\\', c)
		case c < 0x20:
			e.b = append(e.b, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
		default:
			e.b = append(e.b, c)
		}
	}
	e.b = append(e.b, '"')
}

type decoder struct {
	what string
	rest string
	err  error
}

func newDecoder(what, schema string, b []byte) *decoder {
	d := &decoder{what: what}
	if len(b) > MaxRecordBytes {
		d.fail("%d bytes, at most %d", len(b), MaxRecordBytes)
		return d
	}
	d.rest = string(b)
	d.expect(`{"schema":`)
	if got := d.quoted(MaxNameBytes); d.err == nil && got != schema {
		d.fail("schema is %q, want %q", got, schema)
	}
	return d
}

func (d *decoder) fail(format string, args ...any) {
	if d.err == nil {
		d.err = fmt.Errorf("%s: %w: %s", d.what, ErrCorruptRecord, fmt.Sprintf(format, args...))
	}
}

func (d *decoder) expect(lit string) {
	if d.err != nil {
		return
	}
	rest, ok := strings.CutPrefix(d.rest, lit)
	if !ok {
		d.fail("%q is not where it belongs", lit)
		return
	}
	d.rest = rest
}

func (d *decoder) has(name string) bool {
	s, n := d.rest, len(name)
	return d.err == nil && len(s) >= n+4 && s[:2] == `,"` && s[2:n+2] == name && s[n+2:n+4] == `":`
}

func (d *decoder) name(name string) {
	if !d.has(name) {
		d.fail("%s is not where it belongs", name)
		return
	}
	d.rest = d.rest[len(name)+4:]
}

func (d *decoder) text(name string, limit int) string {
	d.name(name)
	return d.quoted(limit)
}

// nonEmpty is text of at least one byte.
func (d *decoder) nonEmpty(name string, limit int) string {
	s := d.text(name, limit)
	if d.err == nil && s == "" {
		d.fail("%s is empty", name)
	}
	return s
}

func (d *decoder) quoted(limit int) string {
	d.expect(`"`)
	if d.err != nil {
		return ""
	}
	end := 0
	escaped := false
	for ; end < len(d.rest) && d.rest[end] != '"'; end++ {
		if d.rest[end] == '\\' {
			escaped = true
			end++
		}
	}
	if end >= len(d.rest) {
		d.fail("string does not end")
		return ""
	}
	raw := d.rest[:end]
	d.rest = d.rest[end+1:]
	s := raw
	if escaped {
		s = d.unescape(raw)
	}
	switch {
	case d.err != nil:
		return ""
	case len(s) > limit:
		d.fail("string has %d bytes, at most %d", len(s), limit)
	case !utf8.ValidString(s):
		d.fail("string is not UTF-8")
	case !escaped && strings.IndexFunc(s, func(r rune) bool { return r < 0x20 }) >= 0:
		d.fail("string has a bare control character")
	}
	return s
}

// unescape takes only what quote writes.
func (d *decoder) unescape(raw string) string {
	out := make([]byte, 0, len(raw))
	for i := 0; i < len(raw); i++ {
		c := raw[i]
		if c < 0x20 {
			d.fail("string has a bare control character")
			return ""
		}
		if c != '\\' {
			out = append(out, c)
			continue
		}
		i++ // quoted saw to it that a byte follows
		switch {
		case raw[i] == '"' || raw[i] == '\\':
			out = append(out, raw[i])
		case strings.HasPrefix(raw[i:], "u00") && len(raw) >= i+5:
			hi := strings.IndexByte("01", raw[i+3])
			lo := strings.IndexByte(hexDigits, raw[i+4])
			if hi < 0 || lo < 0 {
				d.fail("string has a needless escape")
				return ""
			}
			out = append(out, byte(hi<<4|lo))
			i += 4
		default:
			d.fail("string has an escape that is not canonical")
			return ""
		}
	}
	return string(out)
}

func (d *decoder) number(name string) string {
	d.name(name)
	if d.err != nil {
		return ""
	}
	n := 0
	for n < len(d.rest) && (d.rest[n] == '-' || d.rest[n] >= '0' && d.rest[n] <= '9') {
		n++
	}
	s := d.rest[:n]
	d.rest = d.rest[n:]
	return s
}

func (d *decoder) uint(name string) uint64 {
	s := d.number(name)
	v, err := strconv.ParseUint(s, 10, 64)
	if d.err == nil && (err != nil || strconv.FormatUint(v, 10) != s) {
		d.fail("%s is not an unsigned integer in its shortest form", name)
	}
	return v
}

func (d *decoder) uint32(name string) uint32 {
	v := d.uint(name)
	if d.err == nil && v > 1<<32-1 {
		d.fail("%s does not fit 32 bits", name)
	}
	return uint32(v)
}

func (d *decoder) int(name string) int64 {
	s := d.number(name)
	v, err := strconv.ParseInt(s, 10, 64)
	if d.err == nil && (err != nil || strconv.FormatInt(v, 10) != s) {
		d.fail("%s is not an integer in its shortest form", name)
	}
	return v
}

// unixNano is a time of the protocol itself: never before 1970, so that it has a manifest id.
func (d *decoder) unixNano(name string) int64 {
	v := d.int(name)
	if d.err == nil && v < 0 {
		d.fail("%s is negative", name)
	}
	return v
}

func (d *decoder) digest(name string) identity.Digest {
	v, err := identity.ParseDigest(d.text(name, 2*len(identity.Digest{})))
	if d.err == nil && err != nil {
		d.fail("%s: %v", name, err)
	}
	return v
}

func (d *decoder) batch() identity.Batch {
	id := identity.Batch{
		Agent:    d.text("agent_id", identity.MaxAgentIDBytes),
		Boot:     d.text("boot_id", identity.MaxBootIDBytes),
		SeqStart: d.uint("seq_start"),
		SeqEnd:   d.uint("seq_end"),
	}
	if d.err == nil {
		if err := id.Validate(); err != nil {
			d.fail("%v", err)
		}
	}
	return id
}

// blobKey wants the key of any generation of want's blob.
func (d *decoder) blobKey(name, key string, want identity.Digest) {
	if d.err != nil {
		return
	}
	if got, _, err := layout.ParseBlob(key); err != nil || got != want {
		d.fail("%s %q is not a blob of %s", name, key, want)
	}
}

func (d *decoder) end() error {
	d.expect("}")
	if d.err == nil && d.rest != "" {
		d.fail("%d bytes follow the record", len(d.rest))
	}
	return d.err
}
