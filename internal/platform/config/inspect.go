package config

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// node is a field of a settings struct, or of one in a list or map of it.
type node struct {
	path   string // its name, such as ingest.tls.cert_file or agent.scrape[0].url
	val    reflect.Value
	def    reflect.Value // the default; the zero value in lists and maps
	field  reflect.StructField
	parent reflect.Value
	needs  []need // of itself and of everything that it is in
}

// need is the condition under which a setting has an effect.
type need struct {
	text string // as an error names it
	met  bool
}

// inspect calls leaf for every setting below v, in lists and maps of structs too, and
// part for every struct once its own settings were visited.
func inspect(v, def reflect.Value, path string, needs []need, leaf func(node), part func(path string, v reflect.Value)) {
	t := v.Type()
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("koanf"), ",")
		squash := f.Anonymous && name == ""
		if !f.IsExported() || name == "-" || (name == "" && !squash) {
			continue
		}
		n := node{path: path, val: v.Field(i), def: def.Field(i), field: f, parent: v, needs: needs}
		if !squash {
			n.path = strings.TrimPrefix(path+"."+name, ".")
		}
		if tag := f.Tag.Get("needs"); tag != "" {
			// The full slice expression makes append copy: siblings must not share the new element.
			n.needs = append(needs[:len(needs):len(needs)], parseNeed(v, path, tag))
		}
		if isSection(n.val.Type()) {
			inspect(n.val, n.def, n.path, n.needs, leaf, part)
			continue
		}
		leaf(n)
		descend(n, leaf, part)
	}
	part(path, v)
}

// descend visits the structs of a list or map. Those of a map are copies.
func descend(n node, leaf func(node), part func(string, reflect.Value)) {
	t := n.val.Type()
	if (t.Kind() != reflect.Slice && t.Kind() != reflect.Map) || !isSection(t.Elem()) {
		return
	}
	zero := reflect.Zero(t.Elem())
	if t.Kind() == reflect.Slice {
		for i := range n.val.Len() {
			inspect(n.val.Index(i), zero, fmt.Sprintf("%s[%d]", n.path, i), n.needs, leaf, part)
		}
		return
	}
	for _, k := range n.val.MapKeys() {
		// Elements of a map cannot be changed in place, so a copy is visited and put back.
		e := reflect.New(t.Elem()).Elem()
		e.Set(n.val.MapIndex(k))
		inspect(e, zero, fmt.Sprintf("%s[%v]", n.path, k), n.needs, leaf, part)
		n.val.SetMapIndex(k, e)
	}
}

// isSection reports whether a type is a struct of settings, and not a value that reads itself.
func isSection(t reflect.Type) bool {
	return t.Kind() == reflect.Struct && !reflect.PointerTo(t).Implements(textType)
}

// parseNeed evaluates a needs tag against the struct v at path: "enabled" wants the
// setting of that name to be given, "raw|1m" one of both, "!endpoints" that it is not,
// "mode=token|mtls" one of these values, "store.bucket" one of a section beside it.
func parseNeed(v reflect.Value, path, tag string) need {
	names, values, compare := strings.Cut(strings.TrimPrefix(tag, "!"), "=")
	var full []string
	var text string
	given := false
	for name := range strings.SplitSeq(names, "|") {
		got := lookUp(v, name)
		if !got.IsValid() {
			panic(fmt.Sprintf("config: %s: tag needs:%q names no setting", path, tag))
		}
		full = append(full, strings.TrimPrefix(path+"."+name, "."))
		given = given || !isEmpty(got)
		text = fmt.Sprint(got.Interface())
	}
	switch {
	case compare:
		return need{text: fmt.Sprintf("%s is %q, and it needs %s", full[0], text, strings.ReplaceAll(values, "|", " or ")),
			met: slices.Contains(strings.Split(values, "|"), text)}
	case strings.HasPrefix(tag, "!"):
		return need{text: full[0] + " is set", met: !given}
	}
	return need{text: "it needs " + strings.Join(full, " or "), met: given}
}

// lookUp finds the setting of a dotted name below v.
func lookUp(v reflect.Value, name string) reflect.Value {
	first, rest, more := strings.Cut(name, ".")
	t := v.Type()
	for i := range t.NumField() {
		f := t.Field(i)
		tag, _, _ := strings.Cut(f.Tag.Get("koanf"), ",")
		switch {
		case f.Anonymous && tag == "" && f.IsExported():
			if got := lookUp(v.Field(i), name); got.IsValid() {
				return got
			}
		case tag == first && more:
			return lookUp(v.Field(i), rest)
		case tag == first:
			return v.Field(i)
		}
	}
	return reflect.Value{}
}

// isEmpty reports whether a setting says nothing: its zero value, or an empty list.
func isEmpty(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Slice, reflect.Map:
		return v.Len() == 0
	}
	return v.IsZero()
}
