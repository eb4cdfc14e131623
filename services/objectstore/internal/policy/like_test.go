package policy

import (
	"regexp"
	"strings"
	"testing"
)

// FuzzLike compares Like with a regular expression of the same meaning.
func FuzzLike(f *testing.F) {
	f.Add("arn:aws:s3:::b/accepted/v1/*", "arn:aws:s3:::b/accepted/v1/k")
	f.Add("arn:aws:s3:::b/*/x?z*", "arn:aws:s3:::b/a/b/xyz")
	f.Add("s3:Get*", "s3:Put")
	f.Add("a", "ab")
	f.Add("*", "")
	f.Add("?", "")
	f.Add("a**", "a")
	f.Fuzz(func(t *testing.T, pattern, s string) {
		var b strings.Builder
		for i := range len(pattern) {
			switch c := pattern[i]; {
			case c == '*':
				b.WriteString(".*")
			case c == '?':
				b.WriteString(".")
			case c >= 0x80:
				return // the regular expression would go by runes
			default:
				b.WriteString(regexp.QuoteMeta(string(c)))
			}
		}
		for i := range len(s) {
			if s[i] >= 0x80 {
				return
			}
		}
		want := regexp.MustCompile(`(?s)\A` + b.String() + `\z`).MatchString(s)
		if got := Like(pattern, s); got != want {
			t.Fatalf("Like(%q, %q) = %v", pattern, s, got)
		}
	})
}

// Actions have no case, neither in a policy nor in a request.
func TestActionsHaveNoCase(t *testing.T) {
	d, err := Parse([]byte(`{"Statement":[{"Effect":"Deny","Action":["S3:pUTOBJECT"],"Resource":"*"}]}`), "")
	if err != nil {
		t.Fatal(err)
	}
	if got := d.Decide(Request{Action: "s3:PutObject", Resource: "arn:aws:s3:::b/k"}); got != Deny {
		t.Errorf("PutObject: %v", got)
	}
	if got := d.Decide(Request{Action: "s3:PutObjectTagging", Resource: "arn:aws:s3:::b/k"}); got != Silent {
		t.Errorf("another action: %v", got)
	}
}
