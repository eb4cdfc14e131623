package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// readPage reads the figures of a page that writeDoc wrote: where bench.json is not at hand, the figures
// that a run does not take again come from there.
func readPage(file string) ([]Result, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var all []Result
	var name, taken string
	for line := range strings.Lines(string(b)) {
		line = strings.TrimSpace(line)
		if rest, ok := strings.CutPrefix(line, "## "); ok {
			name, _, _ = strings.Cut(rest, ":")
			if !isBenchmark(name) {
				name = ""
			}
		}
		if rest, ok := strings.CutPrefix(line, "Taken on "); ok {
			taken = strings.TrimSuffix(rest, ".")
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		if name == "" || !strings.HasPrefix(line, "| ") || len(cells) < pageColumns || strings.HasPrefix(line, "| Figure |") {
			continue
		}
		r, err := readRow(cells)
		if err != nil {
			return nil, fmt.Errorf("%s: %q: %w", file, line, err)
		}
		r.Name, r.Taken = name+"/"+r.Name, taken
		all = append(all, r)
	}
	return all, nil
}

// pageColumns of a row; the last one may have more of the bars that part columns.
const pageColumns = 8

func isBenchmark(name string) bool {
	for _, b := range benchmarks {
		if b.name == name {
			return true
		}
	}
	return false
}

// readRow is what Result.row writes.
func readRow(cells []string) (r Result, err error) {
	for i := range cells[:pageColumns-1] {
		cells[i] = strings.TrimSpace(cells[i])
	}
	r.Name, r.Goal, r.Pass, r.Durability = cells[0], cells[4], cells[5] == "met", cells[6]
	r.Note = strings.TrimSpace(strings.Join(cells[pageColumns-1:], "|"))
	value, unit, _ := strings.Cut(cells[1], " ")
	if r.Value, err = strconv.ParseFloat(value, 64); err != nil {
		return r, err
	}
	r.Unit = unit
	if base, rest, ok := strings.Cut(cells[2], " ("); ok {
		r.Baseline = strings.TrimSuffix(rest, ")")
		if r.BaselineValue, err = strconv.ParseFloat(base, 64); err != nil {
			return r, err
		}
	}
	if cells[3] != "" {
		r.Ratio, err = strconv.ParseFloat(cells[3], 64)
	}
	return r, err
}
