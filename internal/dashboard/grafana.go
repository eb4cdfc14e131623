// Package dashboard makes the Grafana dashboard of deploy/dashboards: rows and panels as
// Go values, and the JSON that Grafana imports.
package dashboard

import (
	"bytes"
	"encoding/json"
)

// Row is a heading and the panels below it.
type Row struct {
	Title  string
	Panels []Panel
}

// Panel is a graph, or a number where Stat is set.
type Panel struct {
	Title string
	// About is what a person should know who sees it.
	About string
	// Unit by Grafana's name: s, bytes, ops, short, dateTimeFromNow and so on.
	Unit    string
	Stat    bool
	Queries []Query
}

// Query is an expression and the legend of its series.
type Query struct {
	Expr, Legend string
}

// Size of the grid, and of panels in it.
const (
	gridWidth   = 24
	graphWidth  = 8
	graphHeight = 7
	statWidth   = 4
	statHeight  = 4
)

// schemaVersion is that of Grafana 10, which later versions migrate by themselves.
const schemaVersion = 38

type object = map[string]any

var source = object{"type": "prometheus", "uid": "${datasource}"}

// JSON is the dashboard as Grafana imports it.
func JSON(uid, title string, rows []Row) ([]byte, error) {
	var panels []object
	id, y := 0, 0
	add := func(p object, x, w, h int) {
		id++
		p["id"], p["gridPos"] = id, object{"x": x, "y": y, "w": w, "h": h}
		panels = append(panels, p)
	}
	for _, r := range rows {
		add(object{"type": "row", "title": r.Title, "collapsed": false, "panels": []object{}}, 0, gridWidth, 1)
		y++
		x, height := 0, 0
		for _, p := range r.Panels {
			w, h := graphWidth, graphHeight
			if p.Stat {
				w, h = statWidth, statHeight
			}
			if x+w > gridWidth || height != 0 && h != height {
				x, y = 0, y+height
			}
			height = h
			add(p.object(), x, w, h)
			x += w
		}
		y += height
	}
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	e.SetIndent("", " ")
	err := e.Encode(object{
		"uid": uid, "title": title, "tags": []string{"lightmetrics"}, "schemaVersion": schemaVersion, "version": 1,
		"editable": true, "graphTooltip": 1, "refresh": "30s", "timezone": "", "fiscalYearStartMonth": 0, "links": []object{},
		"annotations": object{"list": []object{}},
		"time":        object{"from": "now-3h", "to": "now"},
		"templating":  object{"list": variables()},
		"panels":      panels,
	})
	return out.Bytes(), err
}

func variables() []object {
	return []object{
		{"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "refresh": 1, "hide": 0, "options": []object{}, "current": object{}},
		{"name": "instance", "label": "Instance", "type": "query", "datasource": source, "refresh": 2, "sort": 1, "hide": 0, "multi": true, "includeAll": true,
			"allValue": ".*", "definition": "label_values(lightmetrics_build_info, instance)",
			"query":   object{"query": "label_values(lightmetrics_build_info, instance)", "refId": "instance"},
			"current": object{"selected": true, "text": []string{"All"}, "value": []string{"$__all"}}, "options": []object{}},
	}
}

func (p Panel) object() object {
	var targets []object
	for i, q := range p.Queries {
		targets = append(targets, object{"refId": string(rune('A' + i)), "datasource": source, "expr": q.Expr, "legendFormat": q.Legend, "range": !p.Stat, "instant": p.Stat})
	}
	out := object{
		"title": p.Title, "description": p.About, "datasource": source, "targets": targets,
		"fieldConfig": object{"defaults": object{"unit": p.Unit, "min": 0}, "overrides": []object{}},
	}
	if p.Unit == "dateTimeFromNow" {
		out["fieldConfig"].(object)["defaults"] = object{"unit": p.Unit}
	}
	if p.Stat {
		out["type"] = "stat"
		out["options"] = object{"colorMode": "none", "graphMode": "none", "textMode": "auto",
			"reduceOptions": object{"calcs": []string{"lastNotNull"}, "fields": "", "values": false}}
		return out
	}
	out["type"] = "timeseries"
	out["options"] = object{"legend": object{"displayMode": "list", "placement": "bottom", "showLegend": true}, "tooltip": object{"mode": "multi", "sort": "desc"}}
	return out
}
