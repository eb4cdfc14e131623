package main

import (
	"fmt"
	"strings"
)

// The fleet whose month is priced: so many agents with so many series each, read every so many seconds.
const (
	fleetAgents, fleetSeries, fleetEvery = 1000, 500, 15

	daysOfMonth    = 30.4
	fleetOfAMonth  = fleetAgents * fleetSeries / fleetEvery * 86400 * daysOfMonth // samples
	requestsPrefix = "requests/"
	idlePrefix     = "idle/"
)

// costTable is what requests cost under load and idle, in one table; "" where neither was measured.
func costTable(rs []Result) string {
	perBatch := map[string]float64{}
	for _, r := range rs {
		if name, ok := strings.CutSuffix(r.Name, "/all-services"); ok {
			perBatch[name] = r.Value / 1000
		}
	}
	var rows strings.Builder
	for _, r := range rs {
		name, loaded := strings.CutSuffix(r.Name, "/cost")
		switch {
		case loaded && strings.HasPrefix(name, requestsPrefix):
			fmt.Fprintf(&rows, "| %s | %.1f | %.2f | | %.0f | %.0f |\n", inWords(strings.TrimPrefix(name, requestsPrefix)), perBatch[name], r.Value,
				r.Value*fleetOfAMonth/1e9/daysOfMonth, r.Value*fleetOfAMonth/1e9)
		case strings.HasPrefix(r.Name, idlePrefix) && r.Unit == "$/day":
			fmt.Fprintf(&rows, "| nothing comes, %s | | | %.2f | | %.2f |\n", inWords(strings.TrimPrefix(r.Name, idlePrefix)), r.Value, r.Value*daysOfMonth)
		}
	}
	if rows.Len() == 0 {
		return ""
	}
	return fmt.Sprintf("\n## What requests cost\n\nAll services together, by their own counters, with the prices of docs/guide/prices.csv; of `requests` (loaded) and `idle`. The month is that of %d agents with %d series each,\n"+
		"a sample of each every %d s: %.0f billion samples. Bytes are not in it.\n\n"+
		"| Case | Requests a batch | $ a billion samples | $ a day, idle | $ a day of the fleet | $ a month |\n|---|---|---|---|---|---|\n%s",
		fleetAgents, fleetSeries, fleetEvery, fleetOfAMonth/1e9, rows.String())
}

// inWords is a case's name for people: "1-collectors/100-boots" is "1 collectors, 100 boots".
func inWords(name string) string {
	return strings.NewReplacer("-", " ", "/", ", ").Replace(name)
}
