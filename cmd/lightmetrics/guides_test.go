package main

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"lightmetrics.dev/lightmetrics/internal/platform/config"
)

var quoted = regexp.MustCompile("`([^`]+)`")

// TestGuidesNameEverySetting: the first column of each guide's table of settings names
// all that the service has, and nothing that it has not.
func TestGuidesNameEverySetting(t *testing.T) {
	for name, s := range services {
		cmd := s.command()
		t.Run(name, func(t *testing.T) {
			settings := map[string]bool{} // by path below the service's name: whether the guide names it
			for path := range config.Redacted(s.defaults) {
				settings[path] = false
			}
			cmd.Flags().VisitAll(func(f *pflag.Flag) {
				if path, ok := strings.CutPrefix(f.Name, name+"."); ok {
					settings[path] = false
				}
			})
			rows := settingRows(t, "../../docs/guide/"+name+".md")
			if len(settings) < 5 || len(rows) < 4 {
				t.Fatalf("%d settings, %d rows: the test misses most", len(settings), len(rows))
			}
			for _, row := range rows {
				for _, named := range row {
					hits := resolve(settings, row[0], named)
					if len(hits) == 0 {
						t.Errorf("the guide names `%s`, which is no setting", named)
					}
					for _, path := range hits {
						settings[path] = true
					}
				}
			}
			for _, path := range slices.Sorted(maps.Keys(settings)) {
				if !settings[path] {
					t.Errorf("the guide does not name `%s`", path)
				}
			}
		})
	}
}

// settingRows are the names in the first column of the table below the heading Settings.
func settingRows(t *testing.T, file string) [][]string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	_, section, ok := strings.Cut(string(b), "\n## Settings\n")
	if !ok {
		t.Fatalf("%s has no section Settings", file)
	}
	section, _, _ = strings.Cut(section, "\n## ")
	_, section, ok = strings.Cut(section, "\n|---")
	if !ok {
		t.Fatalf("%s has no table of settings", file)
	}
	var rows [][]string
	for line := range strings.Lines(section) {
		cells := strings.Split(line, "|")
		if len(cells) < 4 {
			continue
		}
		var row []string
		for _, m := range quoted.FindAllStringSubmatch(cells[1], -1) {
			row = append(row, strings.TrimSuffix(m[1], "[]"))
		}
		if len(row) > 0 {
			rows = append(rows, row)
		}
	}
	return rows
}

// resolve gives the settings that a name in a row means: itself, all below it (x.*), or,
// behind the row's first name, one that stands beside that.
func resolve(settings map[string]bool, first, named string) []string {
	paths := []string{named}
	if dot := strings.LastIndexByte(first, '.'); dot > 0 && named != first {
		paths = append(paths, first[:dot+1]+strings.TrimPrefix(named, "."))
	}
	var hits []string
	for _, path := range paths {
		if below, ok := strings.CutSuffix(path, "*"); ok {
			for s := range settings {
				if strings.HasPrefix(s, below) {
					hits = append(hits, s)
				}
			}
		} else if _, ok := settings[path]; ok {
			hits = append(hits, path)
		}
		if len(hits) > 0 {
			return hits
		}
	}
	return nil
}
