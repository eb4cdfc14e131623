package config

import (
	"reflect"
	"slices"
	"strings"
)

// Reload compares settings that were loaded again with those in force. running and next
// point to structs of one type. What has the tag reload:"yes" is copied to running, and
// its changed paths are given as applied; other changes wait for a restart. A secret with
// reload:"file" is of the first kind where it comes from a file, which its reader follows.
func Reload(running, next any, prefix string) (applied, waiting []string) {
	reloadSection(reflect.ValueOf(running).Elem(), reflect.ValueOf(next).Elem(), prefix, false, func(path string, live bool) {
		if live {
			applied = append(applied, path)
		} else {
			waiting = append(waiting, path)
		}
	})
	slices.Sort(applied)
	slices.Sort(waiting)
	return applied, waiting
}

func reloadSection(running, next reflect.Value, path string, live bool, changed func(path string, live bool)) {
	t := running.Type()
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("koanf"), ",")
		squash := f.Anonymous && name == ""
		if !f.IsExported() || name == "-" || (name == "" && !squash) {
			continue
		}
		p := path
		if !squash {
			p = strings.TrimPrefix(path+"."+name, ".")
		}
		from, to := running.Field(i), next.Field(i)
		fieldLive := live || f.Tag.Get("reload") == "yes" || f.Tag.Get("reload") == "file" && fromFile(running, next, name)
		if isSection(f.Type) {
			reloadSection(from, to, p, fieldLive, changed)
			continue
		}
		// An empty list and no list are the same setting.
		if isEmpty(from) && isEmpty(to) || reflect.DeepEqual(from.Interface(), to.Interface()) {
			continue
		}
		if fieldLive {
			from.Set(to)
		}
		changed(p, fieldLive)
	}
}

// fromFile reports whether a secret comes from the same file before and after.
func fromFile(running, next reflect.Value, name string) bool {
	a, b := lookUp(running, name+fileSuffix), lookUp(next, name+fileSuffix)
	return a.IsValid() && a.String() != "" && a.String() == b.String()
}
