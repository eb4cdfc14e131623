package postpolicy

import (
	"encoding/base64"
	"errors"
	"strings"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/s3err"
)

var noon = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

func document(conditions string) string {
	return base64.StdEncoding.EncodeToString([]byte(`{"expiration":"2026-05-01T13:00:00.000Z","conditions":[{"bucket":"b"},["starts-with","$key","user/"],` + conditions + `]}`))
}

func TestConditionsOfForms(t *testing.T) {
	form := func(pairs ...string) map[string]string {
		m := map[string]string{"bucket": "b", "key": "user/a", "policy": "p", "x-amz-signature": "s", "x-ignore-button": "x"}
		for i := 0; i < len(pairs); i += 2 {
			m[pairs[i]] = pairs[i+1]
		}
		return m
	}
	for _, c := range []struct {
		name, conditions string
		fields           map[string]string
		at               time.Time
		failed           string // a part of the message; "": allowed
	}{
		{"exact", `{"Content-Type":"image/png"}`, form("content-type", "image/png"), noon, ""},
		{"exact, other value", `{"Content-Type":"image/png"}`, form("content-type", "image/gif"), noon, `["eq", "$content-type", "image/png"]`},
		{"eq", `["eq","$acl","private"]`, form("acl", "private"), noon, ""},
		{"eq, absent", `[ "eq", "$acl", "private" ]`, form(), noon, `["eq","$acl","private"]`},
		{"prefix", `["starts-with","$x-amz-meta-tag","a"]`, form("x-amz-meta-tag", "ab"), noon, ""},
		{"any", `["starts-with","$x-amz-meta-tag",""]`, form("x-amz-meta-tag", "zz"), noon, ""},
		{"other prefix", `["starts-with","$x-amz-meta-tag","a"]`, form("x-amz-meta-tag", "b"), noon, "Policy Condition failed"},
		{"types", `["starts-with","$Content-Type","image/"]`, form("content-type", "image/png, image/gif"), noon, ""},
		{"types, one other", `["starts-with","$Content-Type","image/"]`, form("content-type", "image/png,text/html"), noon, "Policy Condition failed"},
		{"not covered", `["content-length-range",0,9]`, form("x-amz-meta-tag", "a"), noon, "Extra input fields: x-amz-meta-tag"},
		{"other key", `["content-length-range",0,9]`, form("key", "else"), noon, "Policy Condition failed"},
		{"other bucket", `["content-length-range",0,9]`, form("bucket", "else"), noon, "Policy Condition failed"},
		{"both of two", `{"acl":"private"},["starts-with","$acl","public"]`, form("acl", "private"), noon, "Policy Condition failed"},
		{"last moment", `["content-length-range",0,9]`, form(), noon.Add(time.Hour - 1), ""},
		{"expired", `["content-length-range",0,9]`, form(), noon.Add(time.Hour), "Policy expired"},
	} {
		p, err := Parse(document(c.conditions))
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		err = p.Check(c.at, c.fields)
		if c.failed == "" && err != nil || c.failed != "" && (!errors.Is(err, s3err.AccessDenied) || !strings.Contains(err.Error(), c.failed)) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func TestSizesOfFiles(t *testing.T) {
	p, err := Parse(document(`["content-length-range",2,"10"],["content-length-range",1,8]`))
	if err != nil {
		t.Fatal(err)
	}
	for size, want := range map[int64]error{1: s3err.EntityTooSmall, 2: nil, 8: nil, 9: s3err.EntityTooLarge} {
		if err := p.CheckSize(size); !errors.Is(err, want) {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
}

func TestDocumentsThatAreNone(t *testing.T) {
	for text, message := range map[string]string{
		"":                                      "End-of-Input",
		"*":                                     "Base64",
		"[]":                                    "Invalid JSON",
		"{} {}":                                 "Invalid JSON",
		`{"a":1}`:                               `Unexpected: "a"`,
		`{"conditions":[]}`:                     "missing expiration",
		`{"expiration":1,"conditions":[]}`:      "Invalid JSON",
		`{"expiration":"soon","conditions":[]}`: "Invalid 'expiration'",
		`{"expiration":"2026-05-01T13:00:00Z"}`: "missing conditions",
		`{"expiration":"2026-05-01T13:00:00Z","conditions":1}`:                                      "must be a List",
		`{"expiration":"2026-05-01T13:00:00Z","conditions":null}`:                                   "must be a List",
		`{"expiration":"2026-05-01T13:00:00Z","expiration":"2030-05-01T13:00:00Z","conditions":[]}`: "Invalid JSON",
		`{"expiration":"2026-05-01T13:00:00Z","conditions":[1]}`:                                    "List or Object",
		`{"expiration":"2026-05-01T13:00:00Z","conditions":[[]]}`:                                   "missing operation",
		`{"expiration":"2026-05-01T13:00:00Z","conditions":[["ends-with","$key","a"]]}`:             "unknown operation",
		`{"expiration":"2026-05-01T13:00:00Z","conditions":[["eq","$key"]]}`:                        "wrong number",
		`{"expiration":"2026-05-01T13:00:00Z","conditions":[["eq","key","a"]]}`:                     "Policy Condition failed",
		`{"expiration":"2026-05-01T13:00:00Z","conditions":[["eq","$key",1]]}`:                      "Invalid JSON",
		`{"expiration":"2026-05-01T13:00:00Z","conditions":[["content-length-range",-1,2]]}`:        "Invalid JSON",
		`{"expiration":"2026-05-01T13:00:00Z","conditions":[["content-length-range",1,1e3]]}`:       "Invalid JSON",
		`{"expiration":"2026-05-01T13:00:00Z","conditions":[{"a":"b","c":"d"}]}`:                    "exactly one property",
		`{"expiration":"2026-05-01T13:00:00Z","conditions":[{"a":1}]}`:                              "must be a string",
	} {
		encoded := base64.StdEncoding.EncodeToString([]byte(text))
		if text == "*" {
			encoded = text
		}
		if _, err := Parse(encoded); err == nil || !strings.Contains(err.Error(), message) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// FuzzParse: whatever is taken has an end, and allows no field that it does not name.
func FuzzParse(f *testing.F) {
	f.Add(document(`["eq","$acl","private"]`))
	f.Add(document(`["content-length-range",1,8]`))
	f.Add(document(`{"a":"b"}`))
	f.Fuzz(func(t *testing.T, text string) {
		p, err := Parse(text)
		if err != nil {
			var e *s3err.Error
			if !errors.As(err, &e) {
				t.Fatalf("%v is no S3 error", err)
			}
			return
		}
		if p.expires.IsZero() && p.Check(noon, nil) == nil {
			t.Fatal("it never ends")
		}
		if p.Check(noon, map[string]string{"\x00 no field": ""}) == nil {
			t.Fatal("a field that is not named is allowed")
		}
	})
}
