// Package s3xml reads the XML bodies of requests as AWS reads them: against a schema. encoding/xml passes over what it does
// not know, takes the last of two elements where there may be one, any namespace, and whatever follows the root; a client
// would believe that something holds which was never read.
package s3xml

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Namespace is that of the S3 API.
const Namespace = "http://s3.amazonaws.com/doc/2006-03-01/"

const (
	// olderNamespace is in the examples of AWS's documentation, and in what some clients send.
	olderNamespace = "http://doc.s3.amazonaws.com/2006-03-01"
	schemaInstance = "http://www.w3.org/2001/XMLSchema-instance"
)

// Bounds of a body beside its length. The largest, a list of 10,000 parts with a checksum each, has 40,001 elements.
const (
	maxDepth      = 12
	maxElements   = 100_000
	maxAttributes = 16
)

// Error says why a body is refused, and where.
type Error struct {
	Offset int64 // bytes
	Reason string
}

func (e *Error) Error() string { return fmt.Sprintf("XML at byte %d: %s", e.Offset, e.Reason) }

// Decode reads a body into the struct that v points to, whose XMLName has the name of the root. It refuses, with an *Error,
// whatever Check refuses, and values that v does not take.
func Decode(body []byte, v any) error {
	if err := Check(body, v); err != nil {
		return err
	}
	if err := xml.Unmarshal(body, v); err != nil {
		return &Error{Offset: int64(len(body)), Reason: err.Error()}
	}
	return nil
}

// Check refuses a body that is no document of the struct v (or of what v points to): elements and attributes that v does
// not have, elements that are there twice where v has one, text between elements, other namespaces than that of S3,
// declarations of a document's type, whatever follows the root but blanks and comments, and more than the bounds.
// The elements are those of encoding/xml's tags; what is below a struct without elements is free.
func Check(body []byte, v any) error {
	s, err := schemaOf(v)
	if err != nil {
		return err
	}
	c := checker{d: xml.NewDecoder(bytes.NewReader(bytes.TrimPrefix(body, []byte("\xef\xbb\xbf"))))}
	for {
		t, err := c.d.Token()
		if errors.Is(err, io.EOF) {
			if !c.rooted {
				return c.refuse("no document")
			}
			return nil
		}
		if err != nil {
			return c.refuse(err.Error())
		}
		if reason := c.token(t, s); reason != "" {
			return c.refuse(reason)
		}
	}
}

// checker follows a document.
type checker struct {
	d        *xml.Decoder
	open     []place
	rooted   bool // the root has begun
	begun    bool // something was read
	elements int
}

// place is an element that is open.
type place struct {
	*schema                  // nil: everything below is free
	seen    map[*schema]bool // of those that may be there once
}

func (c *checker) refuse(reason string) *Error { return &Error{c.d.InputOffset(), reason} }

// token gives the reason to refuse the document; "" for none.
func (c *checker) token(t xml.Token, root *schema) string {
	first := !c.begun
	c.begun = true
	switch t := t.(type) {
	case xml.Directive:
		return "a declaration of a document's type, or an entity"
	case xml.ProcInst:
		if t.Target == "xml" && !first {
			return "an XML declaration that is not the first"
		}
		if c.rooted && len(c.open) == 0 {
			return "something behind the root element"
		}
	case xml.CharData:
		if len(bytes.TrimLeft(t, " \t\r\n")) == 0 {
			return ""
		}
		if len(c.open) == 0 {
			return "text outside of the root element"
		}
		if at := c.open[len(c.open)-1]; at.schema != nil && !at.text && !at.free {
			return "text in " + at.name + ", which has elements"
		}
	case xml.StartElement:
		return c.start(t, root)
	case xml.EndElement:
		c.open = c.open[:len(c.open)-1]
	}
	return ""
}

func (c *checker) start(t xml.StartElement, root *schema) string {
	if c.elements++; c.elements > maxElements {
		return fmt.Sprintf("more than %d elements", maxElements)
	}
	if len(c.open) == maxDepth {
		return fmt.Sprintf("elements more than %d deep", maxDepth)
	}
	if len(t.Attr) > maxAttributes {
		return fmt.Sprintf("more than %d attributes", maxAttributes)
	}
	next := place{schema: root}
	switch {
	case len(c.open) > 0:
		in := &c.open[len(c.open)-1]
		if in.schema == nil || in.free {
			c.open = append(c.open, place{})
			return ""
		}
		if next.schema = in.children[t.Name.Local]; next.schema == nil {
			return in.name + " has no element " + quote(t.Name.Local)
		}
		if !next.many {
			if in.seen[next.schema] {
				return quote(t.Name.Local) + " is there twice"
			}
			if in.seen == nil {
				in.seen = map[*schema]bool{}
			}
			in.seen[next.schema] = true
		}
	case c.rooted:
		return "something behind the root element"
	case t.Name.Local != root.name:
		return "the root is " + quote(t.Name.Local) + " and not " + root.name
	}
	c.rooted = true
	if ns := t.Name.Space; ns != "" && ns != Namespace && ns != olderNamespace {
		return "the namespace of " + next.name + " is " + quote(ns)
	}
	for _, a := range t.Attr {
		known := a.Name.Space == "xmlns" || a.Name.Space == "" && a.Name.Local == "xmlns" || a.Name.Space == schemaInstance
		if !known && !next.attributes[a.Name] {
			return next.name + " has no attribute " + quote(a.Name.Local)
		}
	}
	c.open = append(c.open, next)
	return ""
}

// quote bounds what a sender's text takes of a message.
func quote(s string) string {
	if len(s) > 64 {
		s = strings.ToValidUTF8(s[:64], "") + "…"
	}
	return fmt.Sprintf("%q", s)
}
