package config

import (
	"encoding"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// field is one leaf of a settings struct.
type field struct {
	path string
	help string
	val  reflect.Value
}

var (
	textType     = reflect.TypeFor[encoding.TextUnmarshaler]()
	durationType = reflect.TypeFor[time.Duration]()
	secretType   = reflect.TypeFor[Secret]()
)

// walk calls fn for every leaf below v, in order of declaration.
func walk(v reflect.Value, path string, fn func(field)) {
	t := v.Type()
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("koanf"), ",")
		// An embedded struct without a name of its own adds its fields to the parent's level.
		squash := f.Anonymous && name == ""
		if !f.IsExported() || name == "-" || (name == "" && !squash) {
			continue
		}
		p := path
		if !squash {
			p = strings.TrimPrefix(path+"."+name, ".")
		}
		fv := v.Field(i)
		// A struct that parses its own text, such as a URL, is a leaf and no section.
		if fv.Kind() == reflect.Struct && !reflect.PointerTo(f.Type).Implements(textType) {
			walk(fv, p, fn)
			continue
		}
		fn(field{path: p, help: f.Tag.Get("help"), val: fv})
	}
}

// isList reports whether a leaf is a list or map of structs, which only a file can set.
func (f field) isList() bool {
	t := f.val.Type()
	switch t.Kind() {
	case reflect.Map:
		return true
	case reflect.Slice:
		return t.Elem().Kind() == reflect.Struct
	}
	return false
}

// flagValue makes a leaf a pflag.Value.
type flagValue struct {
	field
	set bool
}

func (f *flagValue) Type() string {
	switch t := f.val.Type(); {
	case t == durationType:
		return "duration"
	case t == reflect.TypeFor[Bytes]():
		return "bytes"
	case t == reflect.TypeFor[Secret]():
		return "secret"
	case t.Kind() == reflect.Slice:
		return "strings"
	default:
		return t.Kind().String()
	}
}

func (f *flagValue) String() string {
	if !f.val.IsValid() {
		return ""
	}
	if f.val.Kind() == reflect.Slice {
		if s, ok := f.val.Interface().([]string); ok {
			return strings.Join(s, ",")
		}
	}
	return fmt.Sprint(f.val.Interface())
}

func (f *flagValue) Set(s string) error {
	if err := setText(f.val, s); err != nil {
		return err
	}
	f.set = true
	return nil
}

// setText parses s into a leaf.
func setText(v reflect.Value, s string) error {
	if u, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok {
		return u.UnmarshalText([]byte(s))
	}
	switch {
	case v.Type() == durationType:
		d, err := time.ParseDuration(s)
		if err != nil {
			return err
		}
		v.SetInt(int64(d))
		return nil
	case v.Kind() == reflect.String:
		v.SetString(s)
		return nil
	case v.Kind() == reflect.Slice && v.Type().Elem().Kind() == reflect.String:
		out := reflect.MakeSlice(v.Type(), 0, 4)
		for part := range strings.SplitSeq(s, ",") {
			if part = strings.TrimSpace(part); part != "" {
				out = reflect.Append(out, reflect.ValueOf(part).Convert(v.Type().Elem()))
			}
		}
		v.Set(out)
		return nil
	}
	p := reflect.New(v.Type())
	if v.Kind() == reflect.Float64 {
		n, err := strconv.ParseFloat(strings.TrimSpace(s), 64)
		if err != nil {
			return fmt.Errorf("%q is not a number", s)
		}
		p.Elem().SetFloat(n)
	} else if _, err := fmt.Sscan(s, p.Interface()); err != nil || fmt.Sprint(p.Elem().Interface()) != strings.TrimSpace(s) {
		// Sscan stops at the first character that does not fit, so "10s" would be read as 10.
		// Comparing with the text that the value prints as refuses such input.
		return fmt.Errorf("%q is not a %s", s, v.Kind())
	}
	v.Set(p.Elem())
	return nil
}

// Flags registers a flag for every leaf of the struct that cfg points to; the
// values there are the defaults.
func Flags(fs *pflag.FlagSet, prefix string, cfg any) {
	walk(reflect.ValueOf(cfg).Elem(), prefix, func(f field) {
		if f.isList() {
			return
		}
		fl := fs.VarPF(&flagValue{field: f}, f.path, "", f.help)
		if f.val.Kind() == reflect.Bool {
			fl.NoOptDefVal = "true"
		}
	})
}
