package series

import (
	"cmp"
	"encoding/binary"
	"strings"
)

// ID identifies a series: equal labels of two agents, or with two types or
// units, are two series.
type ID struct {
	Agent string
	// Labels including those of the resource and __name__; sorted by name, unique, without
	// empty values.
	Labels []Label
	Type   Type
	Unit   string // "" when unknown
}

// Name of the metric: the value of __name__.
func (id *ID) Name() string {
	for _, l := range id.Labels {
		if l.Name == MetricName {
			return l.Value
		}
	}
	return ""
}

// Compare orders series as chunks do: by metric name, other labels, agent, type and unit.
func (id *ID) Compare(o *ID) int {
	return cmp.Or(strings.Compare(id.Name(), o.Name()), compareLabels(id.Labels, o.Labels),
		strings.Compare(id.Agent, o.Agent), cmp.Compare(id.Type, o.Type), strings.Compare(id.Unit, o.Unit))
}

// compareLabels compares label by label, without __name__, which Compare has compared before.
func compareLabels(a, b []Label) int {
	i, k := 0, 0
	for {
		if i < len(a) && a[i].Name == MetricName {
			i++
		}
		if k < len(b) && b[k].Name == MetricName {
			k++
		}
		if i >= len(a) || k >= len(b) {
			return cmp.Compare(len(a)-i, len(b)-k)
		}
		if c := cmp.Or(strings.Compare(a[i].Name, b[k].Name), strings.Compare(a[i].Value, b[k].Value)); c != 0 {
			return c
		}
		i, k = i+1, k+1
	}
}

// AppendKey appends a key of the ID: different IDs have different keys.
func (id *ID) AppendKey(dst []byte) []byte {
	dst = appendText(dst, id.Agent)
	for _, l := range id.Labels {
		dst = appendText(appendText(dst, l.Name), l.Value)
	}
	return appendType(dst, id.Type, id.Unit)
}

// AppendKey appends the key of the ID that a series of the batch has with this agent and this
// type, which may differ from the type in s. It builds no ID, so it allocates nothing but dst.
func (t *Table) AppendKey(dst []byte, agent string, s *Ref, typ Type) []byte {
	dst = appendText(dst, agent)
	for name, value := range t.Labels(s) {
		dst = appendText(appendText(dst, name), value)
	}
	return appendType(dst, typ, t.Strings[s.Unit])
}

func appendType(dst []byte, t Type, unit string) []byte {
	return appendText(append(dst, 0, byte(t)), unit) // the 0 ends the labels: it reads as an empty name, which no label has
}

func appendText(dst []byte, s string) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(s))), s...)
}
