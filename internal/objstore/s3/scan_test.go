package s3

import (
	"encoding/xml"
	"strings"
	"testing"
)

const notFoundAnswer = `<?xml version="1.0" encoding="UTF-8"?>
<Error><Code>NoSuchKey</Code><Message>The specified key does not exist.</Message><Key>gc/v1/condemned/aa.g0.json</Key><RequestId>4442587FB7D0A2F9</RequestId></Error>`

// FuzzAnswer: what the scanner takes, encoding/xml takes too, and reads alike. A page
// that is not S3's must never become a proof of absence.
func FuzzAnswer(f *testing.F) {
	for _, s := range []string{
		notFoundAnswer, notFoundAnswer[:90], "", "<Error></Error>", "<Error><Code>a</Code></Error>x", "x<Error></Error>",
		"<Error><Code>a</Code><Code>b</Code></Error>", "<Error><Code>a<b>c</b></Code></Error>", "<Error><A><Code>a</Code></A></Error>",
		"<Error><Code>a</Message></Error>", "<Error><Code a='b'>c</Code></Error>", "<Error><Code><![CDATA[a]]></Code></Error>",
		"<Error><Code>a]]></Code></Error>", "<Error>text<Code>a</Code></Error>", "<Error><xml>a</xml></Error>", "<error><Code>a</Code></error>",
		"<Error><Error><Code>a</Code></Error></Error>", "<html><Error><Code>NoSuchKey</Code></Error></html>",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		got, ok := scanAnswer(b)
		if !ok {
			return
		}
		var want answer
		if err := xml.Unmarshal(b, &want); err != nil {
			t.Fatalf("%q: taken, but: %v", b, err)
		}
		if want.XMLName = (xml.Name{}); got != want {
			t.Fatalf("%q: %+v, want %+v", b, got, want)
		}
	})
}

func TestPlainAnswersAreScanned(t *testing.T) {
	if a, ok := scanAnswer([]byte(notFoundAnswer)); !ok || a.Code != "NoSuchKey" || a.RequestID != "4442587FB7D0A2F9" {
		t.Fatalf("%+v, %v", a, ok)
	}
}

// BenchmarkParseAnswer: plain is scanned, the other goes to encoding/xml.
func BenchmarkParseAnswer(b *testing.B) {
	for name, body := range map[string]string{"plain": notFoundAnswer, "entity": strings.Replace(notFoundAnswer, "key", "&#107;ey", 1)} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if parseAnswer([]byte(body)).Code == "" {
					b.Fatal("not read")
				}
			}
		})
	}
}
