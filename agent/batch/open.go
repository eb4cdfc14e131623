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
	// ids of the series that the builder has, and what is known of them, by id. Some are of the frame before.
	ids   map[*input.Series]frame.SeriesID
	table []known
	// next is the id of the series that comes next if they come in the order of the frame before.
	next int
	// order has the series of this frame as they came.
	order []*input.Series
	// bytes are estimated, before compression.
	bytes int
	// first and last time of the samples, Unix nanoseconds.
	first, last int64
}

// known is a series of the builder.
type known struct {
	series *input.Series
	bytes  int
	came   bool // it is in this frame
}

// recordBytes is an upper estimate of the bytes of a record, in any encoding of the columns.
const recordBytes = 20

// maxSpan is the longest time between two samples of a frame, well below what collectors accept.
const maxSpan = 12 * time.Hour

// newOpenFrame makes a frame that enc encodes, which frames that are encoded one by one may share.
func newOpenFrame(resource []series.Label, enc *frame.Encoder, h *helps) (*openFrame, error) {
	o := &openFrame{resource: resource, builder: frame.NewBuilder(), encoder: enc, helps: h, ids: map[*input.Series]frame.SeriesID{}}
	return o, o.empty()
}

// reset begins the next frame. Most senders have the same series in every frame, so they stay in the builder as long as all
// of them came: there are never more than those of two frames.
func (o *openFrame) reset() error {
	if len(o.order) != len(o.table) || len(o.ids) != len(o.table) {
		return o.empty()
	}
	o.builder.ResetRecords()
	for i := range o.table {
		o.table[i].came = false
	}
	clear(o.order)
	o.order, o.bytes, o.next = o.order[:0], 0, 0
	return nil
}

func (o *openFrame) empty() error {
	o.builder.Reset()
	clear(o.ids)
	clear(o.table)
	clear(o.order)
	o.table, o.order, o.bytes, o.next = o.table[:0], o.order[:0], 0, 0
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
	id, ok := frame.SeriesID(o.next), o.next < len(o.table) && o.table[o.next].series == s
	if !ok {
		if id, ok = o.ids[s]; !ok {
			var err error
			if id, err = o.builder.AddSeries(s.Labels, s.Type, s.Unit, s.Start); err != nil {
				return id, err
			}
			o.ids[s] = id
			if int(id) == len(o.table) {
				o.table = append(o.table, known{series: s, bytes: seriesBytes(s)})
			} else {
				o.table[id].came = false // one with the same labels, which may have another help
			}
		}
	}
	if o.next = int(id) + 1; o.next == len(o.table) {
		o.next = 0
	}
	if k := &o.table[id]; !k.came {
		k.came = true
		o.order = append(o.order, s)
		if o.helps != nil {
			o.helps.add(o.builder, s)
		}
		o.bytes += k.bytes
	}
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
