package main

import (
	"slices"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/derived/audit"
)

// TestAuditsOfSeveralRegions: what belongs to regions has columns where there is any.
func TestAuditsOfSeveralRegions(t *testing.T) {
	var v auditView
	if h := auditTable([]auditView{v}).header; slices.Contains(h, "COPIES") {
		t.Error(h)
	}
	v.regions(&audit.Record{Copies: 3, CopyBytes: 30, Quarantined: 2, Undecided: 1})
	v.regions(&audit.Record{Copies: 1})
	got := auditTable([]auditView{{}, v})
	if last := got.rows[1]; !slices.Equal(last[len(last)-3:], []string{"4", "2", "1"}) || len(got.rows[0]) != len(got.header) || v.CopyBytes != 30 {
		t.Errorf("%v", got)
	}
}
