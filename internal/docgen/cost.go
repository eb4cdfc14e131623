package main

import (
	"encoding/csv"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// month of 30 days, in seconds and hours.
const (
	monthSeconds = 30 * 86400
	monthHours   = 30 * 24
)

// fleet is an example of the sizing guide. Times are in seconds.
type fleet struct {
	name       string
	agents     float64
	batchEvery float64 // agent.batch.max_age
	queryNodes float64
}

var fleets = []fleet{
	{name: "10 agents, defaults", agents: 10, batchEvery: 30, queryNodes: 1},
	{name: "100 agents, defaults", agents: 100, batchEvery: 30, queryNodes: 1},
	{name: "1,000 agents, defaults", agents: 1000, batchEvery: 30, queryNodes: 1},
	{name: "1,000 agents, thrifty", agents: 1000, batchEvery: 120, queryNodes: 1},
	{name: "10,000 agents, thrifty", agents: 10000, batchEvery: 120, queryNodes: 2},
}

// request is a line of docs/guide/requests.csv.
type request struct {
	service, what, per string
	writes, reads      float64
}

// times is how often a fleet does it in a month.
func (r request) times(f fleet) (float64, error) {
	n := 1.0
	if r.service == "query node" {
		n = f.queryNodes
	}
	switch r.per {
	case "batch":
		return n * f.agents * monthSeconds / f.batchEvery, nil
	case "hour":
		return n * monthHours, nil
	}
	return 0, fmt.Errorf("requests.csv: unknown unit %q", r.per)
}

// prices are USD for one write, one read and one GB-month.
type prices struct{ write, read, storage float64 }

func readPrices(root string) (prices, error) {
	var p prices
	rows, err := readCSV(root, "prices.csv")
	if err != nil {
		return p, err
	}
	into := map[string]*float64{"write": &p.write, "read": &p.read, "storage": &p.storage}
	for _, row := range rows {
		f := into[row[0]]
		if f == nil {
			return p, fmt.Errorf("prices.csv: unknown item %q", row[0])
		}
		if *f, err = strconv.ParseFloat(row[2], 64); err != nil {
			return p, fmt.Errorf("prices.csv: %w", err)
		}
	}
	p.write, p.read = p.write/1000, p.read/1000
	return p, nil
}

func readRequests(root string) ([]request, error) {
	rows, err := readCSV(root, "requests.csv")
	if err != nil {
		return nil, err
	}
	var all []request
	for _, row := range rows {
		w, err1 := strconv.ParseFloat(row[3], 64)
		r, err2 := strconv.ParseFloat(row[4], 64)
		if err1 != nil || err2 != nil {
			return nil, fmt.Errorf("requests.csv: %v: not numbers", row)
		}
		all = append(all, request{service: row[0], what: row[1], per: row[2], writes: w, reads: r})
	}
	return all, nil
}

// readCSV gives the lines of a table of docs/guide behind its head.
func readCSV(root, name string) ([][]string, error) {
	f, err := os.Open(filepath.Join(root, "docs/guide", name))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r := csv.NewReader(f)
	r.Comment = '#'
	rows, err := r.ReadAll()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if len(rows) < 2 {
		return nil, fmt.Errorf("%s is empty", name)
	}
	return rows[1:], nil
}

// stored are bytes of a sample in frames, by samples of a series in a batch, and in the sets of
// all four resolutions (docs/benchmarks.md: frame, rollup).
var stored = []struct {
	perSeries    string
	frames, sets float64
}{
	{"1", 14.97, 1.7138}, {"6", 3.261, 1.7138}, {"60", 0.9424, 1.7138},
}

// sizingPage is the guide with its tables computed again.
func sizingPage(root string) ([]byte, error) {
	page, err := os.ReadFile(filepath.Join(root, "docs/guide/sizing.md"))
	if err != nil {
		return nil, err
	}
	p, err := readPrices(root)
	if err != nil {
		return nil, err
	}
	all, err := readRequests(root)
	if err != nil {
		return nil, err
	}
	costs, err := costTable(p, all)
	if err != nil {
		return nil, err
	}
	for name, table := range map[string]string{"requests": requestTable(all), "costs": costs, "storage": storageTable(p), "regions": regionsTable(p)} {
		marked := regexp.MustCompile(`(?s)(<!-- docgen: ` + name + ` -->\n).*?(<!-- end -->)`)
		if !marked.Match(page) {
			return nil, fmt.Errorf("sizing.md has no place for the table %s", name)
		}
		page = marked.ReplaceAll(page, []byte("${1}\n"+strings.ReplaceAll(table, "$", "$$")+"\n${2}"))
	}
	return page, nil
}

func requestTable(all []request) string {
	var b strings.Builder
	b.WriteString("| Service | What | For each | PUT, LIST | GET, HEAD |\n|---|---|---|---|---|\n")
	per := map[string]string{"batch": "accepted batch", "hour": "hour of running"}
	for _, r := range all {
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", r.service, r.what, per[r.per], count(r.writes), count(r.reads))
	}
	return b.String()
}

// costTable has USD a month by fleet.
func costTable(p prices, all []request) (string, error) {
	var b strings.Builder
	b.WriteString("| Fleet | Batches every | Batches a month | Per batch, USD | Standing still, USD | Requests a month, USD |\n|---|---|---|---|---|---|\n")
	for _, f := range fleets {
		usd, sum := map[string]float64{}, 0.0
		for _, r := range all {
			n, err := r.times(f)
			if err != nil {
				return "", err
			}
			cost := n * (r.writes*p.write + r.reads*p.read)
			usd[r.per] += cost
			sum += cost
		}
		fmt.Fprintf(&b, "| %s | %.0f s | %s M | %.2f | %.2f | %.2f |\n", f.name, f.batchEvery,
			count(f.agents*monthSeconds/f.batchEvery/1e6), usd["batch"], usd["hour"], sum)
	}
	return b.String(), nil
}

// storageTable has what 1,000 agents of 500 series every 10 s write in a month.
func storageTable(p prices) string {
	const samples = 1000 * 500 * monthSeconds / 10.
	var b strings.Builder
	b.WriteString("| Samples of a series in a batch | Frames, B a sample | All sets, B a sample | Written a month, GB | Kept a month, USD |\n|---|---|---|---|---|\n")
	for _, s := range stored {
		gb := samples * (s.frames + s.sets) / 1e9
		fmt.Fprintf(&b, "| %s | %.2f | %.2f | %.0f | %.2f |\n", s.perSeries, s.frames, s.sets, gb, gb*p.storage)
	}
	return b.String()
}

// count writes a number with as few digits as it has.
func count(n float64) string { return strconv.FormatFloat(n, 'f', -1, 64) }
