package s3xml

import (
	"encoding/xml"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"
)

type item struct {
	Key    string
	Size   *int64
	Common // its elements are those of item
}

type Common struct{ Sum, Kind string }

type opaque struct{ XMLName xml.Name }

type document struct {
	XMLName xml.Name `xml:"Document"`
	Status  string   `xml:",omitempty"`
	Until   *time.Time
	Items   []item  `xml:"Item"`
	Names   []*name `xml:"Names>Name"`
	Later   []opaque
	Region  *struct {
		Type  string `xml:"http://www.w3.org/2001/XMLSchema-instance type,attr"`
		Plain string `xml:"plain,attr"`
		Text  string `xml:",chardata"`
	}
	Other []opaque `xml:",any"`
}

type name struct{ Text string }

const xsi = ` xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"`

func TestDecode(t *testing.T) {
	for _, good := range []string{
		`<Document/>`,
		"\xef\xbb\xbf<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<!-- a comment -->\n<Document xmlns=\"" + Namespace + "\">\n <Status>on</Status>\n</Document>\n<!-- another -->\n",
		`<Document xmlns="http://doc.s3.amazonaws.com/2006-03-01"><Status/></Document>`,
		`<s:Document xmlns:s="` + Namespace + `"><s:Status>on</s:Status></s:Document>`,
		`<Document xmlns="` + Namespace + `"><Status xmlns="">on</Status></Document>`,
		`<Document><Item><Key>a</Key><Size>1</Size><Sum>x</Sum></Item><Item><Key>b &amp; &#x63;</Key></Item><Item/></Document>`,
		`<Document><Names><Name><Text>a</Text></Name><Name/></Names></Document>`,
		`<Document><Until>2026-01-02T03:04:05Z</Until></Document>`,
		`<Document><Later><Anything of="it">here<Deep/></Anything>and text</Later><Later/></Document>`,
		`<Document` + xsi + `><Region xsi:type="Group" plain="x" xsi:other="">a region</Region></Document>`,
		`<Document><Status><![CDATA[<on>]]></Status></Document>`,
	} {
		var d document
		if err := Decode([]byte(good), &d); err != nil {
			t.Errorf("%s: %v", good, err)
		}
		if err := Check([]byte(good), document{}); err != nil {
			t.Errorf("%s: %v", good, err)
		}
	}
	var d document
	if err := Decode([]byte(`<Document`+xsi+`><Item><Key>a</Key><Size>1</Size><Kind>k</Kind></Item><Names><Name><Text>n</Text></Name></Names><Region xsi:type="G">r</Region></Document>`), &d); err != nil {
		t.Fatal(err)
	}
	if d.Items[0].Key != "a" || *d.Items[0].Size != 1 || d.Items[0].Kind != "k" || d.Names[0].Text != "n" || d.Region.Type != "G" || d.Region.Text != "r" {
		t.Errorf("%+v", d)
	}
}

func TestDecodeRefuses(t *testing.T) {
	deep := strings.Repeat("<A>", 100) + strings.Repeat("</A>", 100)
	for body, reason := range map[string]string{
		``:                                  "no document",
		`  <!-- nothing --> `:               "no document",
		`text`:                              "text outside",
		`<Document>`:                        "unexpected EOF",
		`<Document></Docume>`:               "element <Document> closed by",
		`<Dokument/>`:                       `the root is "Dokument"`,
		`<document/>`:                       `the root is "document"`,
		`<Document/>x`:                      "text outside",
		`<Document/><Document/>`:            "behind the root",
		`<Document/><?php ?>`:               "behind the root",
		`<Document/><?xml version="1.0"?>`:  "not the first",
		` <?xml version="1.0"?><Document/>`: "not the first",
		`x<Document/>`:                      "text outside",
		"<Document/>\x00":                   "illegal character",
		`<Document xmlns="http://example.com/"/>`:                     "namespace",
		`<Document xmlns="http://s3.amazonaws.com/doc/2006-03-02/"/>`: "namespace",
		`<Document><Status xmlns="x">on</Status></Document>`:          "namespace",
		`<x:Document/>`: "namespace",
		`<Document><Status>on</Status><Status>off</Status></Document>`:               "twice",
		`<Document><Names/><Names/></Document>`:                                      "twice",
		`<Document><Item><Key>a</Key><Key>b</Key></Item></Document>`:                 "twice",
		`<Document><Item><Sum>a</Sum><Sum>b</Sum></Item></Document>`:                 "twice",
		`<Document><status>on</status></Document>`:                                   `no element "status"`,
		`<Document><Other/></Document>`:                                              `no element "Other"`,
		`<Document><Item><Common/></Item></Document>`:                                `no element "Common"`,
		`<Document><Status><b/></Status></Document>`:                                 `no element "b"`,
		`<Document><Names><Item/></Names></Document>`:                                `no element "Item"`,
		`<Document>on</Document>`:                                                    "text in Document",
		`<Document><Names>on<Name/></Names></Document>`:                              "text in Names",
		`<Document a="b"/>`:                                                          `no attribute "a"`,
		`<Document` + xsi + `><Region type="Group"/></Document>`:                     `no attribute "type"`,
		`<Document><Region x:type="Group"/></Document>`:                              `no attribute "type"`,
		`<Document><Item><Size>many</Size></Item></Document>`:                        "invalid syntax",
		`<Document><Until>tomorrow</Until></Document>`:                               "parsing time",
		`<!DOCTYPE Document><Document/>`:                                             "declaration",
		`<!DOCTYPE d [<!ENTITY a "aaaa">]><Document><Status>&a;</Status></Document>`: "declaration",
		`<Document><Status>&a;</Status></Document>`:                                  "invalid character entity",
		`<?xml version="1.0" encoding="UTF-16"?><Document/>`:                         "encoding",
		"<Document><Status>\xff</Status></Document>":                                 "invalid UTF-8",
		`<Document><Later>` + deep + `</Later></Document>`:                           "deep",
		`<Document>` + strings.Repeat("<Item/>", maxElements) + `</Document>`:        "more than 100000 elements",
	} {
		var d document
		err := Decode([]byte(body), &d)
		var e *Error
		if !errors.As(err, &e) || !strings.Contains(e.Reason, reason) {
			t.Errorf("%.100s: %v, want %q", body, err, reason)
		}
	}
	many := "<Document"
	for i := range maxAttributes + 1 {
		many += fmt.Sprintf(` xmlns:a%d="b"`, i)
	}
	if err := Check([]byte(many+"/>"), document{}); err == nil || !strings.Contains(err.Error(), "attributes") {
		t.Error(err)
	}
	long := Check([]byte("<"+strings.Repeat("a", 1<<20)+"/>"), document{})
	if long == nil || len(long.Error()) > 300 {
		t.Errorf("a message of %d bytes", len(long.Error()))
	}
}

func TestSchemaNeedsARoot(t *testing.T) {
	for _, v := range []any{nil, 1, "x", item{}, new(int)} {
		if err := Check([]byte("<a/>"), v); err == nil {
			t.Errorf("%T has a schema", v)
		}
	}
}

// What is taken has nothing that was passed over: written again and read, it is the same.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(`<Document xmlns="` + Namespace + `"><Status>on</Status><Item><Key>a</Key><Size>1</Size></Item></Document>`))
	f.Add([]byte(`<Document` + xsi + `><Names><Name><Text>a</Text></Name></Names><Region xsi:type="G" plain="p">r</Region></Document>`))
	f.Add([]byte(`<!DOCTYPE d [<!ENTITY a "aaaa">]><Document><Status>&a;</Status></Document>`))
	f.Add([]byte(`<Document><Later><A/></Later><Until>2026-01-02T03:04:05.5+01:00</Until></Document><!-- -->`))
	f.Fuzz(func(t *testing.T, body []byte) {
		var d, again document
		if Decode(body, &d) != nil {
			return
		}
		d.XMLName, d.Other = xml.Name{Space: Namespace, Local: "Document"}, nil
		if d.Until != nil && (d.Until.Year() < 0 || d.Until.Year() > 9999) {
			return // cannot be written
		}
		text, err := xml.Marshal(d)
		if err != nil {
			return // a name that cannot be written, of an element that is free
		}
		if err := Decode(text, &again); err != nil {
			t.Fatalf("%q was taken, and not %q: %v", body, text, err)
		}
		again.XMLName = d.XMLName
		for _, l := range [][]opaque{d.Later, again.Later} {
			for i := range l {
				l[i].XMLName = xml.Name{}
			}
		}
		if d.Until != nil && again.Until != nil && d.Until.Equal(*again.Until) {
			d.Until, again.Until = nil, nil
		}
		if !reflect.DeepEqual(d, again) {
			t.Fatalf("%q is %+v, and then %+v", body, d, again)
		}
	})
}
