package series

import "iter"

// Table has the strings and the common labels that the series of a batch refer to.
type Table struct {
	// Strings is the string table; entry 0 is "".
	Strings []string
	// Resource labels belong to every series; a series label of the same name wins.
	Resource []LabelRef
}

// LabelRef is a label as two indexes into Table.Strings.
type LabelRef struct{ Name, Value uint32 }

// Ref is one label set of a batch with its type.
type Ref struct {
	// Labels include __name__; sorted by name, unique.
	Labels []LabelRef
	Type   Type
	// Unit indexes Table.Strings; 0 when unknown.
	Unit uint32
	// StartTime of the accumulation, Unix nanoseconds; 0 when unknown.
	StartTime int64
}

// Labels yields the names and values of a series' labels, sorted by name: its own and those
// of the resource. Of two with one name its own is used. It allocates nothing.
func (t *Table) Labels(s *Ref) iter.Seq2[string, string] {
	return func(yield func(name, value string) bool) {
		own, res := s.Labels, t.Resource
		for len(own) > 0 || len(res) > 0 {
			var l LabelRef
			switch {
			case len(res) == 0:
				l, own = own[0], own[1:]
			case len(own) == 0:
				l, res = res[0], res[1:]
			default:
				o, r := t.Strings[own[0].Name], t.Strings[res[0].Name]
				if o > r {
					l, res = res[0], res[1:]
					break
				}
				if o == r {
					res = res[1:]
				}
				l, own = own[0], own[1:]
			}
			if !yield(t.Strings[l.Name], t.Strings[l.Value]) {
				return
			}
		}
	}
}

// AppendRefs appends the labels of s as references, in the order of Labels.
func (t *Table) AppendRefs(dst []LabelRef, s *Ref) []LabelRef {
	own, res := s.Labels, t.Resource
	for len(own) > 0 && len(res) > 0 {
		o, r := t.Strings[own[0].Name], t.Strings[res[0].Name]
		if o > r {
			dst, res = append(dst, res[0]), res[1:]
			continue
		}
		if o == r {
			res = res[1:]
		}
		dst, own = append(dst, own[0]), own[1:]
	}
	return append(append(dst, own...), res...)
}

// AppendLabels appends the resolved labels of s to dst.
func (t *Table) AppendLabels(dst []Label, s *Ref) []Label {
	for name, value := range t.Labels(s) {
		dst = append(dst, Label{name, value})
	}
	return dst
}

// Name is the metric name of s. It is "" only in a batch that was not validated.
func (t *Table) Name(s *Ref) string {
	for _, l := range s.Labels {
		if t.Strings[l.Name] == MetricName {
			return t.Strings[l.Value]
		}
	}
	return ""
}
