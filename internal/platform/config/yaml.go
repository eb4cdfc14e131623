package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"reflect"
	"sort"
	"strings"

	"github.com/go-viper/mapstructure/v2"
	"github.com/knadh/koanf/parsers/yaml"
	"github.com/knadh/koanf/providers/file"
	"github.com/knadh/koanf/v2"
	yamlv3 "gopkg.in/yaml.v3"
)

// oneDocument parses YAML and refuses a second document, which would go unread.
type oneDocument struct{ *yaml.YAML }

func (p oneDocument) Unmarshal(b []byte) (map[string]any, error) {
	dec := yamlv3.NewDecoder(bytes.NewReader(b))
	// A first document that does not parse is reported below by the decoder of the settings, with its
	// position.
	if err := dec.Decode(new(yamlv3.Node)); err == nil {
		if err := dec.Decode(new(yamlv3.Node)); !errors.Is(err, io.EOF) {
			return nil, errors.New("more than one YAML document: only the first would be read")
		}
	}
	return p.YAML.Unmarshal(b)
}

// readFile reads a settings file; delim splits keys into paths.
func readFile(path, delim string) (*koanf.Koanf, error) {
	k := koanf.New(delim)
	return k, k.Load(file.Provider(path), oneDocument{yaml.Parser()})
}

// loadFile decodes the section named prefix into cfg. Other sections belong to other
// services that share the file.
func loadFile(path, prefix string, cfg any) error {
	k, err := readFile(path, ".")
	if err != nil {
		return err
	}
	var md mapstructure.Metadata
	err = k.UnmarshalWithConf(prefix, cfg, koanf.UnmarshalConf{
		Tag: "koanf",
		DecoderConfig: &mapstructure.DecoderConfig{
			Result:   cfg,
			TagName:  "koanf",
			Metadata: &md,
			Squash:   true,
			DecodeHook: mapstructure.ComposeDecodeHookFunc(
				refuseLossy,
				mapstructure.StringToTimeDurationHookFunc(),
				mapstructure.TextUnmarshallerHookFunc(),
				mapstructure.StringToSliceHookFunc(","),
			),
		},
	})
	if err != nil {
		return err
	}
	if len(md.Unused) > 0 {
		sort.Strings(md.Unused)
		return fmt.Errorf("unknown keys: %s", strings.Join(md.Unused, ", "))
	}
	return refuseNull(k, prefix, cfg)
}

// refuseNull finds settings that stand in the file without a value: the decoder would
// leave the default in force. A whole section without content is harmless.
func refuseNull(k *koanf.Koanf, prefix string, cfg any) error {
	var empty []string
	walk(reflect.ValueOf(cfg).Elem(), prefix, func(f field) {
		// "key:" without a value is most often an unfinished edit.
		if k.Exists(f.path) && k.Get(f.path) == nil {
			empty = append(empty, f.path)
		}
	})
	if len(empty) > 0 {
		return fmt.Errorf("settings without a value: %s", strings.Join(empty, ", "))
	}
	return nil
}

// refuseLossy refuses numbers that the decoder would change silently: durations without
// a unit (they would be nanoseconds), fractions and overflows in whole numbers.
func refuseLossy(_, to reflect.Type, data any) (any, error) {
	v := reflect.ValueOf(data)
	if !v.IsValid() || !v.CanInt() && !v.CanUint() && !v.CanFloat() {
		return data, nil
	}
	if to == durationType {
		// Zero is the same in every unit.
		if v.IsZero() {
			return data, nil
		}
		return nil, fmt.Errorf("missing unit in duration: want such as %vs", data)
	}
	target := reflect.New(to).Elem()
	if to.Kind() == reflect.String && !reflect.PointerTo(to).Implements(textType) || to == secretType {
		return nil, errors.New("a number where text is wanted: put it into quotes") // it may have been 007 or 1e3
	}
	// Floats and booleans take a number as it is, or the decoder refuses it.
	if !target.CanInt() && !target.CanUint() {
		return data, nil
	}
	n, whole := integer(v)
	switch {
	case !whole:
		return nil, fmt.Errorf("%v is not a whole number", data)
	case target.CanInt() && target.OverflowInt(n), target.CanUint() && (n < 0 || target.OverflowUint(uint64(n))):
		return nil, fmt.Errorf("%v is out of range", data)
	}
	return data, nil
}

// integer is v as an int64; false when it has a fraction or does not fit.
func integer(v reflect.Value) (int64, bool) {
	switch {
	case v.CanInt():
		return v.Int(), true
	case v.CanUint():
		return int64(v.Uint()), v.Uint() <= math.MaxInt64
	}
	// YAML has 1e6 and 10.0 as floats. Beyond 2^53 a float no longer holds every whole number, so the one
	// that was written is unknown.
	f := v.Float()
	return int64(f), f == math.Trunc(f) && math.Abs(f) < 1<<53
}
