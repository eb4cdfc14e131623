package record

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"strconv"
	"unicode/utf8"

	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// AppendString appends s as a canonical JSON string. Only the quote, the backslash and U+0000
// to U+001F are escaped, the latter as \b \t \n \f \r or else \u00xx in lower case. Each byte
// that is not UTF-8 becomes U+FFFD.
func AppendString(b []byte, s string) []byte {
	start := len(b)
	b = append(b, '"')
	from, ascii := 0, true
	for i := range len(s) {
		switch c := s[i]; {
		case c >= utf8.RuneSelf:
			ascii = false
		case c < 0x20 || c == '"' || c == '\\':
			b = append(b, s[from:i]...)
			b = appendEscape(b, c)
			from = i + 1
		}
	}
	// The conversion to runes replaces each invalid byte by U+FFFD. It costs an allocation, but
	// such texts are rare.
	if !ascii && !utf8.ValidString(s) {
		return AppendString(b[:start], string([]rune(s)))
	}
	return append(append(b, s[from:]...), '"')
}

const hexDigits = "0123456789abcdef"

func appendEscape(b []byte, c byte) []byte {
	switch c {
	case '"', '\\':
		return append(b, '\\', c)
	case '\b':
		return append(b, '\\', 'b')
	case '\t':
		return append(b, '\\', 't')
	case '\n':
		return append(b, '\\', 'n')
	case '\f':
		return append(b, '\\', 'f')
	case '\r':
		return append(b, '\\', 'r')
	}
	return append(b, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
}

// JSON writes a value in the canonical dialect: fields in the order of the struct, map keys
// sorted by their bytes. It panics for values that JSON can't represent, so values must have
// record types: structs of text, integers, booleans, and slices and maps of them.
func JSON(v any) []byte {
	var buf bytes.Buffer
	e := json.NewEncoder(&buf)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic(err) // the type is no record type; the first test that writes it finds this
	}
	return canonicalEscapes(bytes.TrimSuffix(buf.Bytes(), []byte{'\n'}))
}

// canonicalEscapes undoes, in place, the escapes that encoding/json writes beyond the dialect's:
// U+2028 and U+2029 (for old JavaScript), and U+FFFD in place of a byte that is not UTF-8.
func canonicalEscapes(b []byte) []byte {
	at := bytes.IndexByte(b, '\\')
	if at < 0 {
		return b
	}
	out := b[:at]
	for i := at; i < len(b); i++ {
		if b[i] != '\\' {
			out = append(out, b[i])
			continue
		}
		if i+6 <= len(b) && b[i+1] == 'u' {
			switch string(b[i+2 : i+6]) {
			case "2028", "2029", "fffd":
				r, _ := strconv.ParseUint(string(b[i+2:i+6]), 16, 32)
				out = utf8.AppendRune(out, rune(r))
				i += 5
				continue
			}
		}
		out = append(out, b[i], b[i+1])
		i++
	}
	return out
}

// Marshal writes the record: its schema, then the fields of v, a struct.
func (k Kind) Marshal(v any) []byte {
	body := JSON(v)
	b := k.Begin(len(head) + len(k.Schema) + 2 + len(body))
	if len(body) > 2 {
		b = append(b, ',')
	}
	return append(b, body[1:]...)
}

// Begin starts a record that is written field by field: everything up to the comma before its first field.
func (k Kind) Begin(capacity int) []byte {
	return append(append(append(make([]byte, 0, capacity), head...), k.Schema...), '"')
}

// Writer writes one record field by field. The zero Writer is ready for Begin.
type Writer struct{ b []byte }

// Begin starts a record, in a buffer of the given capacity in bytes.
func (w *Writer) Begin(k Kind, capacity int) { w.b = k.Begin(capacity) }

func (w *Writer) name(name string) {
	w.b = append(w.b, ',', '"')
	w.b = append(w.b, name...)
	w.b = append(w.b, '"', ':')
}

// Text writes a field.
func (w *Writer) Text(name, s string) {
	w.name(name)
	w.b = AppendString(w.b, s)
}

// OptionalText writes a field unless it is empty.
func (w *Writer) OptionalText(name, s string) {
	if s != "" {
		w.Text(name, s)
	}
}

// Uint writes a field.
func (w *Writer) Uint(name string, v uint64) {
	w.name(name)
	w.b = strconv.AppendUint(w.b, v, 10)
}

// OptionalUint writes a field unless it is 0.
func (w *Writer) OptionalUint(name string, v uint64) {
	if v != 0 {
		w.Uint(name, v)
	}
}

// Int writes a field.
func (w *Writer) Int(name string, v int64) {
	w.name(name)
	w.b = strconv.AppendInt(w.b, v, 10)
}

// Digest writes a field of lower-case hex.
func (w *Writer) Digest(name string, d identity.Digest) {
	w.name(name)
	w.b = append(hex.AppendEncode(append(w.b, '"'), d[:]), '"')
}

// Batch writes the four fields of an identity.
func (w *Writer) Batch(id identity.Batch) {
	w.Text("agent_id", id.Agent)
	w.Text("boot_id", id.Boot)
	w.Uint("seq_start", id.SeqStart)
	w.Uint("seq_end", id.SeqEnd)
}

// End returns the finished record.
func (w *Writer) End() []byte { return append(w.b, '}') }
