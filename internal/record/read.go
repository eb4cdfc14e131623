package record

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"lightmetrics.dev/lightmetrics/internal/objstore"
)

// Unmarshal reads into v, a pointer to a struct, what Marshal writes. Errors wrap ErrCorrupt or ErrNewerVersion.
func (k Kind) Unmarshal(b []byte, v any) error {
	if err := k.Decode(b, v); err != nil {
		return err
	}
	return k.Verify(b, k.Marshal(v), v)
}

// Decode is the first half of Unmarshal, for records that are read into one struct and written from
// another: it takes JSON of the schema that is not canonical as well, so Verify has to follow.
func (k Kind) Decode(b []byte, v any) error {
	if err := k.checkSchema(SchemaOf(b)); err != nil {
		return err
	}
	if len(b) > k.MaxBytes { // of this version; a later one may permit more
		return k.Corrupt("", "%d bytes, at most %d", len(b), k.MaxBytes)
	}
	if err := json.Unmarshal(b, v); err != nil {
		return k.Corrupt("", "%w", err)
	}
	return nil
}

// Verify compares b with own, which is what this release writes of what it read in b. v is of the
// type that Decode filled, or a pointer to it; it says which fields are known.
func (k Kind) Verify(b, own []byte, v any) error {
	if string(own) == string(b) {
		return nil
	}
	// Not what this release writes: damaged, or with fields that it does not know.
	t := reflect.TypeOf(v)
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	s := scanner{own: string(own), rest: string(b)}
	if prefix := head + k.Schema + `"`; strings.HasPrefix(s.rest, prefix) {
		s.own, s.rest = s.own[len(prefix):], s.rest[len(prefix):]
		// Both go on behind the schema as an object whose first field is read.
		s.own, s.rest = "{"+strings.TrimPrefix(s.own, ","), "{"+strings.TrimPrefix(s.rest, ",")
		s.known = "schema"
		s.value(t)
	}
	if s.err == nil && s.rest != "" {
		s.fail("%d bytes follow the record", len(s.rest))
	}
	return k.judge(&s)
}

// Read gets the record under key and parses it. An object that the store can't give for good
// (too long, damaged at rest) is corrupt. Other errors of the store are wrapped: objstore.ErrNotFound
// is one of them. The Info is there with errors of the parser too, so that a caller can replace the object.
func Read[T any](ctx context.Context, g objstore.Getter, key string, k Kind, parse func(b []byte) (T, error)) (T, objstore.Info, error) {
	var zero T
	b, info, err := g.Get(ctx, key, objstore.GetOptions{Limit: int64(k.MaxBytes)})
	if objstore.Unreadable(err) {
		// A later version may permit longer records. Its schema stands in the first bytes, and every
		// parser looks at that first.
		if head, _, herr := g.Get(ctx, key, objstore.GetOptions{Length: maxHeadBytes}); herr == nil {
			if _, perr := parse(head); errors.Is(perr, ErrNewerVersion) {
				return zero, info, k.Wrap(key, perr)
			}
		}
		return zero, info, k.Corrupt(key, "%w", err)
	}
	if err != nil {
		return zero, info, fmt.Errorf("read %q: %w", key, err)
	}
	v, err := parse(b)
	if err != nil {
		return zero, info, k.Wrap(key, err)
	}
	return v, info, nil
}

// marshaler marks types with a JSON form of their own, whose fields are not looked into.
var marshaler = reflect.TypeFor[json.Marshaler]()

// fieldsOf gives the JSON names of a struct's fields and their types; embedded structs are part of it.
func fieldsOf(t reflect.Type) map[string]reflect.Type {
	out := map[string]reflect.Type{}
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous && name == "":
			for n, ft := range fieldsOf(f.Type) {
				out[n] = ft
			}
		case f.IsExported() && name != "-":
			if name == "" {
				name = f.Name
			}
			out[name] = f.Type
		}
	}
	return out
}
