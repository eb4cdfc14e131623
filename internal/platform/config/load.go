package config

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"sort"
	"strings"

	"github.com/spf13/pflag"
)

// EnvPrefix begins every environment variable that is a setting.
const EnvPrefix = "LIGHTMETRICS_"

// Validator is implemented by settings that check their own values.
type Validator interface{ Validate() error }

// Load fills cfg (a pointer to a settings struct that holds the defaults), in
// this order: the file at path (YAML; "" is none), the environment, the flags that were
// set on fs. Unknown keys in the file, and unknown LIGHTMETRICS_ variables below
// prefix, are errors. Then secrets are read from their files, and everything is checked
// that a start would refuse: settings without effect, Validate where cfg has it, and
// Check of each part.
func Load(fs *pflag.FlagSet, path, prefix string, cfg any, environ []string) error {
	root := reflect.ValueOf(cfg).Elem()
	defaults, err := defaultsOf(fs, prefix, root)
	if err != nil {
		return err
	}
	// Flags write into cfg as they are parsed. Their values are remembered and set again at the end,
	// because the file and the environment, which they win over, are read in between.
	set := map[string]string{}
	fs.Visit(func(f *pflag.Flag) {
		if v, ok := f.Value.(*flagValue); ok && v.set {
			set[f.Name] = rawText(v.val)
		}
	})
	if path != "" {
		if err := loadFile(path, prefix, cfg); err != nil {
			return fmt.Errorf("config file %s: %w", path, err)
		}
	}
	leaves := map[string]field{}
	walk(root, prefix, func(f field) { leaves[f.path] = f })
	if err := loadEnv(leaves, prefix, environ); err != nil {
		return err
	}
	for name, text := range set {
		if f, ok := leaves[name]; ok {
			if err := setText(f.val, text); err != nil {
				return fmt.Errorf("flag --%s: %w", name, err)
			}
		}
	}
	if err := readSecrets(root, prefix); err != nil {
		return fmt.Errorf("config: %w", err)
	}
	if err := check(root, defaults, prefix, cfg); err != nil {
		return fmt.Errorf("config: %w", err)
	}
	return nil
}

// CheckSections reads the file at path ("" is none) and refuses top-level keys that are
// not among known: a section with a misspelled name would else leave the defaults in force.
func CheckSections(path string, known ...string) error {
	if path == "" {
		return nil
	}
	k, err := readFile(path, "\x00") // a delimiter that no key has, so that keys are not split
	if err != nil {
		return fmt.Errorf("config file %s: %w", path, err)
	}
	var unknown []string
	for name := range k.Raw() {
		if !slices.Contains(known, name) {
			unknown = append(unknown, name)
		}
	}
	if len(unknown) > 0 {
		sort.Strings(unknown)
		return fmt.Errorf("config file %s: unknown sections: %s; want %s", path, strings.Join(unknown, ", "), strings.Join(known, ", "))
	}
	return nil
}

// defaultsOf are the defaults that root holds before it is loaded. Flags that were parsed
// have changed it already.
func defaultsOf(fs *pflag.FlagSet, prefix string, root reflect.Value) (reflect.Value, error) {
	c := clone(root)
	var errs []error
	walk(c, prefix, func(f field) {
		if fl := fs.Lookup(f.path); fl != nil && fl.Changed {
			errs = append(errs, setText(f.val, fl.DefValue))
		}
	})
	return c, errors.Join(errs...)
}

// clone copies settings with their lists and maps, which the decoder changes in place.
func clone(v reflect.Value) reflect.Value {
	c := reflect.New(v.Type()).Elem()
	c.Set(v)
	walk(c, "", func(f field) {
		switch {
		case f.val.Kind() == reflect.Slice && !f.val.IsNil():
			f.val.Set(reflect.AppendSlice(reflect.MakeSlice(f.val.Type(), 0, f.val.Len()), f.val))
		case f.val.Kind() == reflect.Map && !f.val.IsNil():
			m := reflect.MakeMap(f.val.Type())
			for _, k := range f.val.MapKeys() {
				m.SetMapIndex(k, f.val.MapIndex(k))
			}
			f.val.Set(m)
		}
	})
	return c
}

func rawText(v reflect.Value) string {
	if s, ok := v.Interface().(Secret); ok {
		return s.Reveal()
	}
	f := flagValue{field: field{val: v}}
	return f.String()
}

func loadEnv(leaves map[string]field, prefix string, environ []string) error {
	names := map[string]field{}
	for path, f := range leaves {
		names[EnvName(path)] = f
	}
	var errs []error
	own := EnvName(prefix)
	for _, kv := range environ {
		name, value, _ := strings.Cut(kv, "=")
		if !strings.HasPrefix(name, EnvPrefix) {
			continue
		}
		f, ok := names[name]
		switch {
		case ok && f.isList():
			errs = append(errs, fmt.Errorf("environment %s: a list can only be set in a file", name))
		case ok:
			if err := setText(f.val, value); err != nil {
				errs = append(errs, fmt.Errorf("environment %s: %w", name, err))
			}
		// A variable of this service's section that names no setting is a misspelling. Variables of
		// other sections are checked by CheckEnvironment.
		case prefix != "" && strings.HasPrefix(name, own+"_"):
			errs = append(errs, fmt.Errorf("environment %s: unknown setting", name))
		}
	}
	return errors.Join(errs...)
}

// EnvName is the environment variable of a setting's path.
func EnvName(path string) string {
	return EnvPrefix + strings.ToUpper(strings.NewReplacer(".", "_", "-", "_").Replace(path))
}

// Environ is the process's environment.
func Environ() []string { return os.Environ() }

// Redacted is cfg as a nested map with secrets hidden, for /config.
func Redacted(cfg any) map[string]any {
	out := map[string]any{}
	v := reflect.ValueOf(cfg)
	if v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	c := reflect.New(v.Type()).Elem()
	c.Set(v)
	walk(c, "", func(f field) { out[f.path] = redact(f.val) })
	return out
}

func redact(v reflect.Value) any {
	switch x := v.Interface().(type) {
	case Secret:
		return x.String()
	case fmt.Stringer:
		return x.String()
	}
	switch v.Kind() {
	case reflect.Slice:
		out := make([]any, 0, v.Len())
		for i := range v.Len() {
			out = append(out, redact(v.Index(i)))
		}
		return out
	case reflect.Map:
		out := map[string]any{}
		for _, k := range v.MapKeys() {
			e := reflect.New(v.Type().Elem()).Elem()
			e.Set(v.MapIndex(k))
			out[fmt.Sprint(k.Interface())] = redact(e)
		}
		return out
	case reflect.Struct:
		return Redacted(v.Interface())
	}
	return v.Interface()
}
