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

// Unmarshal reads what Marshal writes into v, a pointer to a struct. Errors wrap ErrCorrupt or ErrNewerVersion.
func (k Kind) Unmarshal(b []byte, v any) error {
	if err := k.Decode(b, v); err != nil {
		return err
	}
	return k.Verify(b, k.Marshal(v), v)
}

// Decode is the first half of Unmarshal, for records that are read into one struct and written
// from another. It also accepts JSON that is not canonical, so Verify has to follow.
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

// Verify compares b with own, the record that this release writes for what it read from b. v
// has the type that Decode filled, or is a pointer to it; its fields are the known ones.
func (k Kind) Verify(b, own []byte, v any) error {
	// The usual case: nothing is unknown, so nothing has to be scanned.
	if string(own) == string(b) {
		return nil
	}
	// The bytes differ: the record is damaged, or has fields that this release does not know.
	t := reflect.TypeOf(v)
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	s := scanner{own: string(own), rest: string(b)}
	if prefix := head + k.Schema + `"`; strings.HasPrefix(s.rest, prefix) {
		s.own, s.rest = s.own[len(prefix):], s.rest[len(prefix):]
		// Both continue after the schema as an object whose first field has been read.
		s.own, s.rest = "{"+strings.TrimPrefix(s.own, ","), "{"+strings.TrimPrefix(s.rest, ",")
		s.known = "schema"
		s.value(t)
	}
	if s.err == nil && s.rest != "" {
		s.fail("%d bytes follow the record", len(s.rest))
	}
	return k.scanError(&s)
}

// Read reads the record under key and parses it. An object that is permanently unreadable
// (too long, damaged at rest) is corrupt. Other errors of the store are wrapped, among them
// objstore.ErrNotFound. With an error of the parser the Info is still set, so that the caller
// can replace the object.
func Read[T any](ctx context.Context, g objstore.Getter, key string, k Kind, parse func(b []byte) (T, error)) (T, objstore.Info, error) {
	var zero T
	b, info, err := g.Get(ctx, key, objstore.GetOptions{Limit: int64(k.MaxBytes)})
	if objstore.Unreadable(err) {
		// A later version may permit longer records. Its schema is in the first bytes, and every
		// parser checks it first.
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

// marshaler is implemented by types with their own JSON form, whose fields are not compared one by one.
var marshaler = reflect.TypeFor[json.Marshaler]()

// fieldsOf returns the types of a struct's fields by their JSON names, including those of embedded structs.
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
