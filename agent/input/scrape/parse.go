package scrape

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"

	"lightmetrics.dev/lightmetrics/agent/input"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

// parser turns the body of a scrape into samples. Series that are known cost no allocation.
type parser struct {
	target  Target
	own     []series.Label // job, instance and the target's further labels
	tracker *input.Tracker
	symbols *labels.SymbolTable
	samples []input.Sample
	key     []byte

	family []byte // of the last HELP, TYPE or UNIT line
	typ    model.MetricType
	unit   string
	help   string

	helps     map[string]string // by the text of the target
	helpBytes int
}

func newParser(t Target) *parser {
	p := &parser{target: t, tracker: input.NewTracker(), symbols: labels.NewSymbolTable(), helps: map[string]string{}}
	own := map[string]string{}
	for k, v := range t.Labels {
		own[k] = v
	}
	own["job"], own["instance"] = t.Job, t.Instance
	for k, v := range own {
		if v != "" {
			p.own = append(p.own, series.Label{Name: k, Value: v})
		}
	}
	slices.SortFunc(p.own, func(a, b series.Label) int { return strings.Compare(a.Name, b.Name) })
	return p
}

var (
	errSampleLimit = errors.New("scrape is over sample_limit")
	errTime        = errors.New("time does not fit into 64 bits of nanoseconds")
)

// nanos of a time in Unix milliseconds.
func nanos(ms int64) (int64, error) {
	const limit = math.MaxInt64 / 1_000_000
	if ms > limit || ms < -limit {
		return 0, fmt.Errorf("parse: %w: %d ms", errTime, ms)
	}
	return ms * 1e6, nil
}

// parse gives the samples of a body; the tracker's scrape has begun. On an error nothing of the scrape counts.
func (p *parser) parse(body []byte, contentType string, at int64) ([]input.Sample, error) {
	p.samples = nil // the last slice belongs to the batcher now
	p.family, p.unit, p.help, p.typ = p.family[:0], "", "", model.MetricTypeUnknown
	// An error together with a parser says that the fallback content type was used, which is wanted:
	// many targets send none.
	tp, err := textparse.New(body, contentType, p.symbols, textparse.ParserOptions{
		OpenMetricsSkipSTSeries: true, FallbackContentType: "text/plain"})
	if tp == nil {
		return nil, err
	}
	p.samples = make([]input.Sample, 0, p.tracker.Len()+8)
	for {
		et, err := tp.Next()
		if errors.Is(err, io.EOF) {
			return p.samples, nil
		}
		if err != nil {
			return nil, fmt.Errorf("parse: %w", err)
		}
		switch et {
		case textparse.EntryType:
			name, t := tp.Type()
			p.startFamily(name)
			p.typ = t
		case textparse.EntryHelp:
			name, text := tp.Help()
			p.startFamily(name)
			p.help = p.helpOf(text)
		case textparse.EntryUnit:
			name, u := tp.Unit()
			p.startFamily(name)
			p.unit = string(u)
		case textparse.EntrySeries:
			if len(p.samples) >= p.target.SampleLimit {
				return nil, fmt.Errorf("%w of %d", errSampleLimit, p.target.SampleLimit)
			}
			if err := p.sample(tp, at); err != nil {
				return nil, err
			}
		}
	}
}

func (p *parser) startFamily(name []byte) {
	if !bytes.Equal(name, p.family) {
		p.family, p.unit, p.help, p.typ = append(p.family[:0], name...), "", "", model.MetricTypeUnknown
	}
}

// maxHelpBytes bounds the table of help texts; a full one is cleared.
const maxHelpBytes = 1 << 20

// helpOf is the text as frames may carry it, in a string that all series of the family and
// later scrapes share.
func (p *parser) helpOf(text []byte) string {
	// Frames carry no more of a text than this, so more of it need not be kept or compared.
	text = text[:min(len(text), frame.DefaultLimits().HelpBytes+utf8.UTFMax)]
	help, ok := p.helps[string(text)]
	if !ok {
		if p.helpBytes += len(text); p.helpBytes > maxHelpBytes {
			clear(p.helps)
			p.helpBytes = len(text)
		}
		help = frame.HelpText(text)
		p.helps[string(text)] = help
	}
	return help
}

func (p *parser) sample(tp textparse.Parser, at int64) error {
	raw, ts, v := tp.Series()
	live := ts == nil || p.target.IgnoreTimestamps
	var err error
	if !live {
		if at, err = nanos(*ts); err != nil {
			return err
		}
	}
	name := raw
	if i := bytes.IndexByte(raw, '{'); i >= 0 {
		name = raw[:i]
	}
	t, unit, help := series.Unknown, "", ""
	if suffix, ok := bytes.CutPrefix(name, p.family); len(p.family) > 0 && (ok || len(name) == 0) {
		t, unit = typeOf(p.typ, string(suffix)), p.unit
		// A longer name to which the type does not extend is another metric.
		if t != series.Unknown || len(suffix) == 0 || len(name) == 0 {
			help = p.help
		}
	}
	p.key = append(p.key[:0], raw...)
	known, ok := p.tracker.Get(p.key, live)
	var ls []series.Label
	if ok {
		ls = known.Labels
	} else {
		ls = p.labels(tp)
	}
	start := int64(0)
	if t == series.Counter {
		// StartTimestamp may read ahead in the body, so it comes after everything else that is read
		// of the sample.
		if start, err = nanos(tp.StartTimestamp()); err != nil {
			return err
		}
	}
	// A series is never changed in place, since batches share it: changed metadata makes a new one.
	if !ok || known.Type != t || known.Start != start || known.Unit != unit || known.Help != help {
		known = &input.Series{Labels: ls, Type: t, Unit: unit, Help: help, Start: start}
		p.tracker.Put(p.key, known, live)
	}
	p.samples = append(p.samples, input.Sample{Series: known, Time: at, Value: v})
	return nil
}

// labels of the current sample with the target's. Strings are copied: the parser's
// live in the body.
func (p *parser) labels(tp textparse.Parser) []series.Label {
	var ls labels.Labels
	tp.Labels(&ls)
	out := make([]series.Label, 0, ls.Len()+len(p.own))
	var empty []string
	ls.Range(func(l labels.Label) {
		if l.Value == "" {
			empty = append(empty, l.Name)
			return
		}
		out = append(out, series.Label{Name: strings.Clone(l.Name), Value: strings.Clone(l.Value)})
	})
	for _, o := range p.own {
		i := slices.IndexFunc(out, func(l series.Label) bool { return l.Name == o.Name })
		switch {
		case i < 0 && p.target.HonorLabels && slices.Contains(empty, o.Name):
			// A federating Prometheus writes instance="" on a series without an instance; with
			// honor_labels ours must not be added to it.
		case i < 0:
			out = append(out, o)
		case p.target.HonorLabels:
		default:
			out[i].Name = freeName(out, "exported_"+o.Name)
			out = append(out, o)
		}
	}
	return out
}

func freeName(ls []series.Label, name string) string {
	for slices.ContainsFunc(ls, func(l series.Label) bool { return l.Name == name }) {
		name = "exported_" + name
	}
	return name
}

// typeOf is the meaning of a sample of a family; suffix is what follows the family's name.
func typeOf(t model.MetricType, suffix string) series.Type {
	switch t {
	case model.MetricTypeCounter:
		if suffix == "" || suffix == "_total" {
			return series.Counter
		}
	case model.MetricTypeGauge:
		if suffix == "" {
			return series.Gauge
		}
	case model.MetricTypeHistogram:
		if suffix == "_bucket" || suffix == "_count" || suffix == "_sum" {
			return series.Counter
		}
	case model.MetricTypeGaugeHistogram:
		if suffix == "_bucket" || suffix == "_gcount" || suffix == "_gsum" {
			return series.Gauge
		}
	case model.MetricTypeSummary:
		switch suffix {
		case "":
			return series.Gauge
		case "_count", "_sum":
			return series.Counter
		}
	case model.MetricTypeInfo, model.MetricTypeStateset:
		if suffix == "" || suffix == "_info" {
			return series.Info
		}
	}
	return series.Unknown
}
