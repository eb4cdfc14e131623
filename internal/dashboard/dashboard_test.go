package dashboard

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"testing"
)

var update = flag.Bool("update", false, "write deploy/dashboards/lightmetrics.json")

// TestTheFileIsWhatIsMade: deploy/dashboards/lightmetrics.json is the output of this package.
// go test ./internal/dashboard -update writes it.
func TestTheFileIsWhatIsMade(t *testing.T) {
	path := filepath.Join("..", "..", "deploy", "dashboards", "lightmetrics.json")
	made, err := Lightmetrics()
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(path, made, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	file, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(file, made) {
		t.Error("deploy/dashboards/lightmetrics.json differs; go test ./internal/dashboard -update")
	}
}

// TestGrid: Grafana moves panels that overlap or do not fit, and shows those of one id twice.
func TestGrid(t *testing.T) {
	made, err := Lightmetrics()
	if err != nil {
		t.Fatal(err)
	}
	var d struct {
		UID, Title string
		Templating struct {
			List []struct{ Name, Type, Query any }
		}
		Panels []struct {
			ID          int
			Type, Title string
			GridPos     struct{ X, Y, W, H int }
			Targets     []struct{ RefID, Expr string }
		}
	}
	if err := json.Unmarshal(made, &d); err != nil {
		t.Fatal(err)
	}
	if d.UID != UID || d.Title == "" || len(d.Templating.List) == 0 || d.Templating.List[0].Type != "datasource" {
		t.Errorf("uid %q, title %q, variables %v", d.UID, d.Title, d.Templating.List)
	}
	type cell struct{ x, y int }
	taken, ids := map[cell]string{}, map[int]bool{}
	for _, p := range d.Panels {
		if ids[p.ID] || p.ID == 0 {
			t.Errorf("%s: id %d is not its own", p.Title, p.ID)
		}
		ids[p.ID] = true
		g := p.GridPos
		if g.X+g.W > gridWidth || g.W == 0 || g.H == 0 {
			t.Errorf("%s: %+v is not on the grid", p.Title, g)
		}
		for x := g.X; x < g.X+g.W; x++ {
			for y := g.Y; y < g.Y+g.H; y++ {
				if other, ok := taken[cell{x, y}]; ok {
					t.Fatalf("%s lies on %s", p.Title, other)
				}
				taken[cell{x, y}] = p.Title
			}
		}
		if p.Title == "" || (p.Type != "row") != (len(p.Targets) > 0) {
			t.Errorf("panel %d: title %q, type %s, %d queries", p.ID, p.Title, p.Type, len(p.Targets))
		}
		refs := map[string]bool{}
		for _, q := range p.Targets {
			if refs[q.RefID] || q.Expr == "" {
				t.Errorf("%s: query %q is not its own, or empty", p.Title, q.RefID)
			}
			refs[q.RefID] = true
		}
	}
}
