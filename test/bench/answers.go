package main

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// answer is what a query returned, in a form that is the same for equal answers of different systems.
type answer struct {
	series map[string][]point // of queries, by labels
	names  []string           // of lists of labels, values and series
}

type point struct{ t, v float64 }

// tolerance of values: systems add floats in different orders, and VictoriaMetrics keeps them as decimals.
const tolerance = 1e-9

// readAnswer decodes a body of the HTTP API. A partial answer is an error.
func readAnswer(body []byte) (*answer, error) {
	var envelope struct {
		Status       string
		Data         json.RawMessage
		Lightmetrics struct {
			Partial bool
			Reasons []string
		}
		IsPartial bool // VictoriaMetrics
	}
	if err := json.Unmarshal(body, &envelope); err != nil {
		return nil, err
	}
	if envelope.Status != "success" || envelope.Lightmetrics.Partial || envelope.IsPartial {
		return nil, fmt.Errorf("the answer is %s, partial: %v %v", envelope.Status, envelope.Lightmetrics.Partial, envelope.Lightmetrics.Reasons)
	}
	if len(envelope.Data) > 0 && envelope.Data[0] == '[' {
		return readList(envelope.Data)
	}
	var data struct {
		ResultType string
		Result     []struct {
			Metric map[string]string
			Value  *[2]any
			Values [][2]any
		}
	}
	if err := json.Unmarshal(envelope.Data, &data); err != nil {
		return nil, err
	}
	a := &answer{series: map[string][]point{}}
	for _, r := range data.Result {
		if r.Value != nil {
			r.Values = append(r.Values, *r.Value)
		}
		labels, err := json.Marshal(r.Metric) // names in order
		if err != nil {
			return nil, err
		}
		for _, v := range r.Values {
			p, err := readPoint(v)
			if err != nil {
				return nil, err
			}
			a.series[string(labels)] = append(a.series[string(labels)], p)
		}
	}
	return a, nil
}

func readPoint(v [2]any) (p point, err error) {
	t, ok := v[0].(float64)
	text, isText := v[1].(string)
	if !ok || !isText {
		return p, fmt.Errorf("not a point: %v", v)
	}
	p.t = t
	p.v, err = strconv.ParseFloat(text, 64)
	return p, err
}

func readList(data []byte) (*answer, error) {
	var all []any
	if err := json.Unmarshal(data, &all); err != nil {
		return nil, err
	}
	a := &answer{}
	for _, one := range all {
		text, err := json.Marshal(one)
		if err != nil {
			return nil, err
		}
		a.names = append(a.names, string(text))
	}
	slices.Sort(a.names)
	return a, nil
}

// empty: nothing was found, which no query of the benchmark should say.
func (a *answer) empty() bool { return len(a.series) == 0 && len(a.names) == 0 }

// differs says where b is another answer than a, or "". anyLabels compares the values alone: of equal values of topk any
// may be chosen.
func (a *answer) differs(b *answer, anyLabels bool) string {
	if !slices.Equal(a.names, b.names) {
		return fmt.Sprintf("%d names, not %d", len(b.names), len(a.names))
	}
	x, y := a.series, b.series
	if !a.named() { // VictoriaMetrics keeps the names of metrics through functions that don't change what values mean
		y = b.unnamed()
	}
	if anyLabels {
		x, y = sorted(x), sorted(y)
	}
	if len(x) != len(y) {
		return fmt.Sprintf("%d series, not %d", len(y), len(x))
	}
	for labels, want := range x {
		got, ok := y[labels]
		if !ok {
			return "without " + labels
		}
		if len(got) != len(want) {
			return fmt.Sprintf("%d points of %s, not %d", len(got), labels, len(want))
		}
		for i := range want {
			if got[i].t != want[i].t || math.Abs(got[i].v-want[i].v) > tolerance*max(math.Abs(want[i].v), 1) {
				return fmt.Sprintf("%v of %s, not %v", got[i], labels, want[i])
			}
		}
	}
	return ""
}

func (a *answer) named() bool {
	for labels := range a.series {
		if strings.Contains(labels, `"__name__"`) {
			return true
		}
	}
	return false
}

// unnamed is the same series without the names of metrics.
func (a *answer) unnamed() map[string][]point {
	out := map[string][]point{}
	for text, points := range a.series {
		var labels map[string]string
		if json.Unmarshal([]byte(text), &labels) == nil {
			delete(labels, "__name__")
			if b, err := json.Marshal(labels); err == nil {
				text = string(b)
			}
		}
		out[text] = append(out[text], points...)
	}
	return out
}

// sorted is all points under one name.
func sorted(series map[string][]point) map[string][]point {
	var all []point
	for _, points := range series {
		all = append(all, points...)
	}
	slices.SortFunc(all, func(a, b point) int {
		switch {
		case a.t < b.t || a.t == b.t && a.v < b.v:
			return -1
		case a == b:
			return 0
		}
		return 1
	})
	return map[string][]point{"": all}
}
