package batch

import (
	"time"

	"lightmetrics.dev/lightmetrics/agent/input"
	"lightmetrics.dev/lightmetrics/agent/queue"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

// openFrame is a frame that takes samples. It gets its identity from the queue.
type openFrame struct {
	resource []series.Label
	builder  *frame.Builder
	encoder  *frame.Encoder
	// helps decides which metrics' helps this frame carries; nil: none.
	helps *helps
	// ids of the series that the builder has, and the series in the order in which they came.
	ids   map[*input.Series]frame.SeriesID
	order []*input.Series
	// bytes are estimated, before compression.
	bytes int
	// first and last time of the samples, Unix nanoseconds.
	first, last int64
}

// recordBytes is an upper estimate of the bytes of a record, in any encoding of the columns.
const recordBytes = 20

// maxSpan is the longest time between two samples of a frame, well below what collectors accept.
const maxSpan = 12 * time.Hour

// newOpenFrame makes a frame that enc encodes, which frames that are encoded one by one may share.
func newOpenFrame(resource []series.Label, enc *frame.Encoder, h *helps) (*openFrame, error) {
	o := &openFrame{resource: resource, builder: frame.NewBuilder(), encoder: enc, helps: h, ids: map[*input.Series]frame.SeriesID{}}
	return o, o.reset()
}

func (o *openFrame) reset() error {
	o.builder.Reset()
	clear(o.ids)
	clear(o.order)
	o.order, o.bytes = o.order[:0], 0
	return o.builder.SetResource(o.resource...)
}

// records is the number of samples so far.
func (o *openFrame) records() int { return o.builder.Records() }

// takes reports whether a sample at t belongs into this frame by its bounds.
func (o *openFrame) takes(t int64, cfg Config) bool {
	return o.builder.Records() < cfg.MaxRecords && o.bytes < int(cfg.MaxBytes) && !o.jumps(t)
}

// jumps reports whether a sample at t (Unix nanoseconds) is too far from the others, because the
// clock was set or a target sends strange timestamps. It begins a new frame then: collectors
// refuse a frame with too long a span as a whole.
func (o *openFrame) jumps(t int64) bool {
	// As unsigned numbers, because the difference of two int64 times may overflow.
	return o.builder.Records() > 0 && uint64(max(o.last, t))-uint64(min(o.first, t)) > uint64(maxSpan)
}

// series gives the builder's series of s.
func (o *openFrame) series(s *input.Series) (frame.SeriesID, error) {
	if id, ok := o.ids[s]; ok {
		return id, nil
	}
	id, err := o.builder.AddSeries(s.Labels, s.Type, s.Unit, s.Start)
	if err != nil {
		return id, err
	}
	o.ids[s] = id
	o.order = append(o.order, s)
	if o.helps != nil {
		o.helps.add(o.builder, s)
	}
	o.bytes += seriesBytes(s)
	return id, nil
}

// append adds a sample to a series of this frame. An error adds nothing.
func (o *openFrame) append(id frame.SeriesID, s input.Sample) error {
	var err error
	if s.Histogram != nil {
		err = o.builder.AppendHistogram(id, s.Time, *s.Histogram)
	} else {
		err = o.builder.Append(id, s.Time, s.Value)
	}
	if err != nil {
		return err
	}
	o.bytes += sampleBytes(s)
	if o.builder.Records() == 1 {
		o.first, o.last = s.Time, s.Time
	}
	o.first, o.last = min(o.first, s.Time), max(o.last, s.Time)
	return nil
}

// part is the frame as the queue takes it.
func (o *openFrame) part() queue.Part {
	return queue.Part{Records: uint64(o.builder.Records()), Encode: func(id identity.Batch) ([]byte, error) {
		b, err := o.builder.Build(id.BootOf(), id.SeqStart)
		if err != nil {
			return nil, err
		}
		return o.encoder.Encode(nil, b)
	}}
}

func seriesBytes(s *input.Series) int {
	n := 32 + len(s.Unit)
	for _, l := range s.Labels {
		n += len(l.Name) + len(l.Value) + 12
	}
	return n
}

func sampleBytes(s input.Sample) int {
	h := s.Histogram
	if h == nil {
		return recordBytes
	}
	return recordBytes + 48 + 5*(len(h.PositiveSpans)+len(h.NegativeSpans)) + 9*(len(h.PositiveBuckets)+len(h.NegativeBuckets)+len(h.CustomValues))
}
