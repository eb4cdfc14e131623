package record

import (
	"fmt"
	"reflect"
	"strings"
)

// scanner compares a record with the canonical form of the part that this release understood.
// The part that it did not understand are fields after the known ones, in the same object.
type scanner struct {
	rest    string  // of the record
	own     string  // the rest of what this release would write
	known   string  // a name that is known in every object
	unknown *string // the first unknown field, whose name may be empty
	err     error   // why the record is not canonical
}

// scanError returns the error of a finished scan: nil, a damaged record, or an unknown field
// in a record of an Exact kind.
func (k Kind) scanError(s *scanner) error {
	switch {
	case s.err != nil:
		return k.Corrupt("", "not in canonical form: %v", s.err)
	case s.unknown != nil && k.Exact:
		return k.newer("it has the field %.64q, which this release does not know and must not ignore: upgrade this program", *s.unknown)
	}
	return nil
}

func (s *scanner) fail(format string, args ...any) {
	if s.err == nil {
		s.err = fmt.Errorf(format, args...)
	}
}

// take reports whether both texts continue with c, and skips it in both.
func (s *scanner) take(c byte) bool {
	if s.err == nil && s.own != "" && s.own[0] == c && s.rest != "" && s.rest[0] == c {
		s.own, s.rest = s.own[1:], s.rest[1:]
		return true
	}
	return false
}

// value compares one value of type t. t is nil where unknown fields can't be recognised, as
// in values of a type with its own JSON form: those have to be equal.
func (s *scanner) value(t reflect.Type) {
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t != nil && (t.Implements(marshaler) || reflect.PointerTo(t).Implements(marshaler)) {
		t = nil
	}
	switch {
	case s.err != nil:
	case t != nil && t.Kind() == reflect.Struct && s.take('{'):
		s.object(t)
	case t != nil && (t.Kind() == reflect.Slice || t.Kind() == reflect.Array) && s.take('['):
		for first := true; s.err == nil && !s.take(']'); first = false {
			if !first && !s.take(',') {
				s.fail("a list has other values than it should, or white space")
			}
			s.value(t.Elem())
		}
	default:
		// A value without fields has to be equal.
		n := lenValue(s.own)
		if !strings.HasPrefix(s.rest, s.own[:n]) {
			s.fail("%.64q, canonical is %.64q", s.rest[:min(n, len(s.rest))], s.own[:n])
			return
		}
		s.own, s.rest = s.own[n:], s.rest[n:]
	}
}

// object compares the fields of a struct, from after its opening brace.
func (s *scanner) object(t reflect.Type) {
	fields := fieldsOf(t)
	first := true
	for ; s.err == nil && s.own[0] != '}'; first = false {
		if !first && !s.take(',') {
			s.fail("a field is missing, or there is white space")
			return
		}
		name, rest, err := cutString(s.own)
		got, after, err2 := cutString(s.rest)
		if err != nil || err2 != nil || got != name {
			s.fail("the field %.64q is not where it belongs", name)
			return
		}
		s.own, s.rest = rest, after
		if !s.take(':') {
			s.fail("white space behind the name %.64q", name)
			return
		}
		s.value(fields[name])
	}
	if s.err != nil {
		return
	}
	// The known fields end here. What follows in the record's object is unknown.
	s.own = s.own[1:]
	s.extraFields(first, func(name string) bool { _, ok := fields[name]; return ok })
}

// extraFields skips fields with unknown names up to and including the end of an object. A known name is an error: it is repeated or out of order.
func (s *scanner) extraFields(first bool, known func(name string) bool) {
	seen := map[string]bool{}
	for s.err == nil && !strings.HasPrefix(s.rest, "}") {
		if !first {
			s.literal(",")
		}
		first = false
		if s.err != nil {
			return
		}
		name, rest, err := cutString(s.rest)
		if err != nil {
			s.fail("%v", err)
			return
		}
		if known(name) || s.known != "" && name == s.known || seen[name] || len(seen) == maxUnknown {
			s.fail("the field %.64q is not where it belongs", name)
			return
		}
		seen[name] = true
		s.rest = rest
		s.literal(":")
		s.skip(maxDepth)
		if s.unknown == nil {
			s.unknown = &name
		}
	}
	s.literal("}")
}

// Bounds of unknown fields: their number in an object, and the depth of their values.
const (
	maxUnknown = 64
	maxDepth   = 16
)

func (s *scanner) literal(l string) {
	if s.err != nil {
		return
	}
	rest, ok := strings.CutPrefix(s.rest, l)
	if !ok {
		s.fail("%.16q where %q belongs", s.rest, l)
	}
	s.rest = rest
}

// skip skips the value of an unknown field: any canonical JSON.
func (s *scanner) skip(depth int) {
	switch {
	case s.err != nil:
	// The bounded depth keeps a hostile record from exhausting the stack.
	case s.rest == "" || depth == 0:
		s.fail("a value does not end, or is nested too deeply")
	case s.rest[0] == '"':
		_, rest, err := cutString(s.rest)
		if err != nil {
			s.fail("%v", err)
		}
		s.rest = rest
	case s.rest[0] == '{':
		inner := scanner{rest: s.rest[1:]}
		for first := true; inner.err == nil && !strings.HasPrefix(inner.rest, "}"); first = false {
			if !first {
				inner.literal(",")
			}
			inner.name()
			inner.skip(depth - 1)
		}
		inner.literal("}")
		s.rest, s.err = inner.rest, inner.err
	case s.rest[0] == '[':
		s.rest = s.rest[1:]
		for first := true; s.err == nil && !strings.HasPrefix(s.rest, "]"); first = false {
			if !first {
				s.literal(",")
			}
			s.skip(depth - 1)
		}
		s.literal("]")
	default:
		n := lenNumber(s.rest)
		for _, word := range []string{"true", "false", "null"} {
			if strings.HasPrefix(s.rest, word) {
				n = len(word)
			}
		}
		if n == 0 || s.rest[0] <= '9' && (!shortest(s.rest[:n]) || strings.Contains(s.rest[1:n], "-")) {
			s.fail("%.16q is no canonical value", s.rest)
			return
		}
		s.rest = s.rest[n:]
	}
}

func (s *scanner) name() {
	if s.err != nil {
		return
	}
	_, rest, err := cutString(s.rest)
	if err != nil {
		s.fail("%v", err)
		return
	}
	s.rest = rest
	s.literal(":")
}

// lenValue is the length of the first value of s, which is canonical JSON that this release wrote.
func lenValue(s string) int {
	depth, text := 0, false
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case text && c == '\\':
			i++
			continue
		case c == '"':
			text = !text
		case text:
			continue
		case c == '{' || c == '[':
			depth++
		case c == '}' || c == ']':
			if depth == 0 {
				return i
			}
			depth--
		case c == ',' || c == ':':
			if depth == 0 {
				return i
			}
			continue
		default:
			continue
		}
		if depth == 0 && !text {
			return i + 1
		}
	}
	return len(s)
}
