package main

import (
	"cmp"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"lightmetrics.dev/lightmetrics/internal/harness/cluster"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
)

// prices of a request, in dollars.
type prices struct{ write, read float64 }

func readPrices() (p prices, err error) {
	f, err := os.Open(filepath.Join("docs", "guide", "prices.csv"))
	if err != nil {
		return p, err
	}
	defer f.Close()
	r := csv.NewReader(f)
	r.Comment = '#'
	rows, err := r.ReadAll()
	if err != nil {
		return p, fmt.Errorf("prices.csv: %w", err)
	}
	for _, row := range rows {
		switch row[0] {
		case "write":
			p.write, err = strconv.ParseFloat(row[2], 64)
		case "read":
			p.read, err = strconv.ParseFloat(row[2], 64)
		}
		if err != nil {
			return p, fmt.Errorf("prices.csv: %w", err)
		}
	}
	p.write, p.read = p.write/1000, p.read/1000
	if p.write == 0 || p.read == 0 {
		return p, errors.New("prices.csv: no price of a write or of a read")
	}
	return p, nil
}

// kind is who asked the store what, about which family of keys.
type kind struct{ service, op, family string }

// asked is how often.
type asked map[kind]float64

func (a asked) minus(b asked) asked {
	out := maps.Clone(a)
	for k, v := range b {
		out[k] -= v
	}
	return out
}

// Operations that S3 is paid for as writes, and as reads; deletes are free.
var paidAsWrites = []string{"put", "create", "replace", "list"}
var paidAsReads = []string{"get", "head"}

func (a asked) sum(ops ...string) (n float64) {
	for k, v := range a {
		if slices.Contains(ops, k.op) {
			n += v
		}
	}
	return n
}

func (a asked) paid() float64 { return a.sum(paidAsWrites...) + a.sum(paidAsReads...) }

func (a asked) dollars(p prices) float64 {
	return a.sum(paidAsWrites...)*p.write + a.sum(paidAsReads...)*p.read
}

// per lists who asked what at least once for each n, services in order and their most frequent kinds first.
func (a asked) per(n float64) string {
	kinds := slices.SortedFunc(maps.Keys(a), func(x, y kind) int {
		return cmp.Or(cmp.Compare(x.service, y.service), cmp.Compare(a[y], a[x]), cmp.Compare(x.op+x.family, y.op+y.family))
	})
	var parts []string
	service := ""
	for _, k := range kinds {
		v := a[k] / n
		if v < 0.5 {
			continue
		}
		text := fmt.Sprintf("%s %s %.0f", k.op, k.family, v)
		if k.service != service {
			service = k.service
			text = service + ": " + text
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, ", ")
}

// greetings takes out what collectors ask when a stream says hello, and returns how often that was: streams last for days in
// the field, and here for few batches.
func (a asked) greetings() (n float64) {
	for _, k := range []kind{{"collector", "list", "accepted"}, {"collector", "get", "boots"}, {"collector", "create", "boots"}} {
		n += a[k]
		delete(a, k)
	}
	return n
}

// count adds what one process has asked so far.
func (a asked) count(service string, s scraped) {
	const name = "lightmetrics_store_requests_total"
	for series, v := range s {
		if strings.HasPrefix(series, name+"{") && v > 0 {
			a[kind{service, label(series, "op"), label(series, "family")}] += v
		}
	}
}

// label is the value of a label of a scraped series, as it is written there.
func label(series, name string) string {
	_, rest, found := strings.Cut(series, name+`="`)
	if !found {
		return ""
	}
	value, _, _ := strings.Cut(rest, `"`)
	return value
}

// countAsked reads the counters of all services.
func countAsked(ctx context.Context, c *cluster.Cluster) (asked, error) {
	out := asked{}
	services := map[string][]string{
		"reconciler": {c.Addr.ReconcilerHTTP}, "query": {c.Addr.QueryHTTP}, "rollup": c.Addr.Rollups, "coordinator": {c.Addr.CoordinatorHTTP},
	}
	for _, a := range c.Addr.Collectors {
		services["collector"] = append(services["collector"], a.HTTP)
	}
	for service, addrs := range services {
		for _, addr := range addrs {
			s, err := scrape(ctx, addr)
			if err != nil {
				return nil, fmt.Errorf("metrics of the %s: %w", service, err)
			}
			out.count(service, s)
		}
	}
	return out, nil
}

// stored are the bytes in a bucket, by family of keys.
type stored map[string]float64

func storedBytes(ctx context.Context, c *cluster.Cluster) (stored, error) {
	store, err := c.OpenStore(ctx)
	if err != nil {
		return nil, err
	}
	return sumSizes(ctx, store)
}

func sumSizes(ctx context.Context, s objstore.Lister) (stored, error) {
	out := stored{}
	for o, err := range objstore.List(ctx, s, objstore.ListOptions{}) {
		if err != nil {
			return nil, err
		}
		out[familyOf(o.Key)] += float64(o.Size)
	}
	return out, nil
}

// namesWithSorts are the names under which several sorts of objects lie.
var namesWithSorts = []string{"rollup", "reconcile", "journal", "gc", "live"}

// familyOf is the beginning of a key that says what it is: its name and version, and its sort where there are several.
func familyOf(key string) string {
	parts := strings.SplitN(key, "/", 4)
	n := 2
	if slices.Contains(namesWithSorts, parts[0]) {
		n = 3
	}
	parts = parts[:min(n, len(parts))]
	if name, _, found := strings.Cut(parts[len(parts)-1], "="); found {
		parts[len(parts)-1] = name + "="
	}
	return strings.Join(parts, "/")
}

// ofBlocks are the families of chunks and their indexes, those of deltas included.
var ofBlocks = []string{layout.RollupPrefix + "window=", strings.TrimSuffix(layout.RollupDeltasPrefix, "/"), layout.IndexPrefix}

// split is the bytes of frames, and of everything else but chunks and their indexes.
func (s stored) split() (frames, others float64) {
	for family, n := range s {
		switch {
		case family+"/" == layout.RawBlobsPrefix:
			frames += n
		case !slices.ContainsFunc(ofBlocks, func(p string) bool { return strings.HasPrefix(family+"/", p) }):
			others += n
		}
	}
	return frames, others
}

// largest lists families with their bytes for each byte of frames, the largest first.
func (s stored) largest(frames float64) string {
	var parts []string
	for _, family := range slices.SortedFunc(maps.Keys(s), func(x, y string) int { return cmp.Or(cmp.Compare(s[y], s[x]), cmp.Compare(x, y)) }) {
		if share := s[family] / frames; share >= 0.005 {
			parts = append(parts, fmt.Sprintf("%s %.2f", family, share))
		}
	}
	return strings.Join(parts, ", ")
}
