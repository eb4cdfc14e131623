package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"unicode"

	"gopkg.in/yaml.v3"
)

// format is how data is written; the zero value is a table.
type format string

func (f *format) String() string {
	if *f == "" {
		return "table"
	}
	return string(*f)
}

// Set takes a known format.
func (f *format) Set(s string) error {
	switch s {
	case "table", "json", "yaml":
		*f = format(s)
		return nil
	}
	return fmt.Errorf("want table, json or yaml")
}

// Type names the value in the help.
func (f *format) Type() string { return "format" }

// table is data for people.
type table struct {
	header []string
	rows   [][]string
}

// write writes data as JSON or YAML, or t.
func (f *format) write(w io.Writer, data any, t table) error {
	switch f.String() {
	case "json":
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(data)
	case "yaml":
		// Through JSON, so that both have the same names.
		b, err := json.Marshal(data)
		if err != nil {
			return err
		}
		var v any
		if err := yaml.Unmarshal(b, &v); err != nil {
			return err
		}
		return yaml.NewEncoder(w).Encode(v)
	}
	// Columns are aligned over all rows, so nothing is written before Flush; its error is that of every
	// write.
	tw := tabwriter.NewWriter(w, 0, 4, 3, ' ', 0)
	fmt.Fprintln(tw, strings.Join(t.header, "\t"))
	for _, r := range t.rows {
		for i, cell := range r {
			if i > 0 {
				fmt.Fprint(tw, "\t")
			}
			fmt.Fprint(tw, plain(cell))
		}
		fmt.Fprintln(tw)
	}
	return tw.Flush()
}

// plain writes control characters as their escapes. Senders choose much of what tables show, such as hosts, folders and spool
// ids: none of it may move a terminal's cursor, or begin a row of its own.
func plain(s string) string {
	if !strings.ContainsFunc(s, unicode.IsControl) {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if unicode.IsControl(r) {
			b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
			continue
		}
		b.WriteRune(r)
	}
	return b.String()
}

// shellWord is a word that may be pasted into a shell: senders choose what it says.
func shellWord(s string) string {
	plain := func(r rune) bool {
		return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune("_-./:@%+,", r)
	}
	if s != "" && !strings.ContainsFunc(s, func(r rune) bool { return !plain(r) }) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
