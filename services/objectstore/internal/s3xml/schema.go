package s3xml

import (
	"encoding"
	"encoding/xml"
	"fmt"
	"reflect"
	"strings"
	"sync"
)

// schema is an element: of the struct that it is read into, by the same tags as encoding/xml's.
type schema struct {
	name       string
	many       bool // it may be there several times
	text       bool // it has text, and no elements
	free       bool // it is only found out that it is there
	children   map[string]*schema
	attributes map[xml.Name]bool
}

var schemas sync.Map // by reflect.Type: there are as many as kinds of bodies

// schemaOf gives the schema of the struct that v is, or points to.
func schemaOf(v any) (*schema, error) {
	t := reflect.TypeOf(v)
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if known, ok := schemas.Load(t); ok {
		return known.(*schema), nil
	}
	if t == nil || t.Kind() != reflect.Struct {
		return nil, fmt.Errorf("s3xml: %v is no struct", t)
	}
	f, ok := t.FieldByName("XMLName")
	name := localName(f.Tag.Get("xml"))
	if !ok || name == "" {
		return nil, fmt.Errorf("s3xml: %v has no XMLName with the name of its root", t)
	}
	s := element(name, t)
	schemas.Store(t, s)
	return s, nil
}

// localName gives the name in a tag, without its namespace and options.
func localName(tag string) string {
	tag, _, _ = strings.Cut(tag, ",")
	return tag[strings.LastIndexByte(tag, ' ')+1:]
}

var textual = reflect.TypeFor[encoding.TextUnmarshaler]()

// element makes the schema of an element that is read into a t.
func element(name string, t reflect.Type) *schema {
	s := &schema{name: name, children: map[string]*schema{}, attributes: map[xml.Name]bool{}}
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Kind() == reflect.Slice && t.Elem().Kind() != reflect.Uint8 {
		s.many = true
		for t = t.Elem(); t.Kind() == reflect.Pointer; {
			t = t.Elem()
		}
	}
	if t.Kind() != reflect.Struct || reflect.PointerTo(t).Implements(textual) {
		s.text = true
		return s
	}
	s.fields(t)
	s.free = !s.text && len(s.children) == 0
	return s
}

// fields adds what a struct has.
func (s *schema) fields(t reflect.Type) {
	for i := range t.NumField() {
		f := t.Field(i)
		tag := f.Tag.Get("xml")
		_, options, _ := strings.Cut(tag, ",")
		switch name := localName(tag); {
		case f.Name == "XMLName", tag == "-", strings.Contains(options, "any"):
		case f.Anonymous && tag == "":
			s.fields(f.Type)
		case !f.IsExported():
		case strings.Contains(options, "attr"):
			space, _, _ := strings.Cut(strings.TrimSuffix(tag, ","+options), " ")
			if space == name {
				space = ""
			}
			s.attributes[xml.Name{Space: space, Local: name}] = true
		case strings.Contains(options, "chardata"):
			s.text = true
		default:
			if name == "" {
				name = f.Name
			}
			s.path(strings.Split(name, ">"), f.Type)
		}
	}
}

// path adds an element, and those around it that have no struct of their own.
func (s *schema) path(names []string, t reflect.Type) {
	if len(names) == 1 {
		s.children[names[0]] = element(names[0], t)
		return
	}
	in := s.children[names[0]]
	if in == nil {
		in = &schema{name: names[0], children: map[string]*schema{}}
		s.children[names[0]] = in
	}
	in.path(names[1:], t)
}
