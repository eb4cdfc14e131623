package main

import (
	"strings"
	"testing"
)

// What senders choose writes neither rows nor escape sequences of its own.
func TestTablesAreOfPlainText(t *testing.T) {
	var b strings.Builder
	tab := table{header: []string{"HOST", "FOLDER"}, rows: [][]string{{"db-7\x1b[2J", "/q\nforged\trow"}, {"dbä", "/q"}}}
	if err := new(format).write(&b, nil, tab); err != nil {
		t.Fatal(err)
	}
	if got := b.String(); strings.Count(got, "\n") != 3 || strings.ContainsAny(got, "\x1b\t") || !strings.Contains(got, `\x1b[2J`) || !strings.Contains(got, "dbä") {
		t.Errorf("%q", got)
	}
}

// TestWordsForAShellAreQuoted: what an agent says of itself runs nothing where it is pasted.
func TestWordsForAShellAreQuoted(t *testing.T) {
	for in, want := range map[string]string{
		"http://127.0.0.1:4320": "http://127.0.0.1:4320",
		"":                      "''",
		"x; rm -rf $HOME":       "'x; rm -rf $HOME'",
		"it's":                  `'it'\''s'`,
	} {
		if got := shellWord(in); got != want {
			t.Errorf("%q: %s, want %s", in, got, want)
		}
	}
}
