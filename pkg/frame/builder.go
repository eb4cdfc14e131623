package frame

import (
	"math"
	"slices"

	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

// Builder collects records and arranges them as a Batch: each string is stored once, and
// series with equal timestamps become one group. It reuses its memory. Not for concurrent use.
type Builder struct {
	lim      Limits
	strings  []string
	intern   map[string]uint32
	resource []series.LabelRef
	refs     []series.LabelRef // of all series, one after the other
	series   []built
	used     int // how many of series are in use; the rest keep their memory
	helps    []Help
	byHash   map[uint64]int32 // hash of a series to the last one that has it; built.same is the one before
	records  int
	kept     bool // there are series of the batch before, which may be without records

	out     Batch
	grouped map[uint64]int32 // hash of timestamps to the last group that has them
	left    struct {         // memory of leaveOut
		places  []uint32
		strings []string
		refs    []series.LabelRef
	}
}

// built is a series with its records.
type built struct {
	series.Ref
	same       int32 // the series before this one with the same hash, or -1
	timestamps []int64
	values     []float64
	histograms []series.Histogram
	timeHash   uint64
	group      int32
}

// SeriesID names a series of a Builder; valid until Reset.
type SeriesID int32

// NewBuilder makes a Builder with the default limits.
func NewBuilder() *Builder { return NewBuilderWithLimits(Limits{}) }

// NewBuilderWithLimits makes a Builder that refuses what a receiver with lim would refuse.
func NewBuilderWithLimits(lim Limits) *Builder {
	b := &Builder{
		lim:     lim.orDefault(),
		intern:  map[string]uint32{},
		byHash:  map[uint64]int32{},
		grouped: map[uint64]int32{},
	}
	b.Reset()
	return b
}

// Reset removes everything and keeps the memory. A Batch that was built is then invalid.
func (b *Builder) Reset() {
	clear(b.intern)
	clear(b.byHash)
	clear(b.strings) // so that the callers' strings can be freed
	b.strings = append(b.strings[:0], "")
	b.intern[""] = 0
	b.refs, b.resource = b.refs[:0], nil
	b.used, b.records, b.kept = 0, 0, false
	clear(b.helps)
	b.helps = b.helps[:0]
	clear(b.left.strings)
}

// ResetRecords removes the records and the helps, and keeps the resource and the series with their ids, for a sender of
// the same series again and again. A series that gets no record is in no Batch, nor are its strings. A Batch that was
// built is then invalid.
func (b *Builder) ResetRecords() {
	for i := range b.series[:b.used] {
		e := &b.series[i]
		clear(e.histograms) // their slices are the caller's
		e.timestamps, e.values, e.histograms = e.timestamps[:0], e.values[:0], e.histograms[:0]
	}
	b.records, b.kept = 0, b.used > 0
	clear(b.helps)
	b.helps = b.helps[:0]
}

// SetResource sets the labels that every series has, before the first series of
// the batch. Labels with an empty value are left out.
func (b *Builder) SetResource(labels ...series.Label) error {
	// Series were validated together with the resource that they had then.
	if b.used > 0 {
		return refuse(BadLabels, "resource set after a series")
	}
	from, strings := len(b.refs), len(b.strings)
	b.addLabels(labels)
	refs := b.refs[from:len(b.refs):len(b.refs)]
	b.resource = nil
	err := b.view().validateLabels(refs, false, &b.lim)
	if err == nil {
		err = b.validateNew(strings)
	}
	if err != nil {
		b.rollback(from, strings)
		return err
	}
	b.resource = refs
	return nil
}

// AddSeries adds the series with these labels, type, unit ("" if unknown) and start time
// (Unix nanoseconds, 0 if unknown), and returns its id, the same one if it was added
// before. Labels may come in any order; those with an empty value are left out. A series
// that a receiver would refuse is refused here, so that the rest of the batch can be sent.
func (b *Builder) AddSeries(labels []series.Label, t series.Type, unit string, start int64) (SeriesID, error) {
	from, strings := len(b.refs), len(b.strings)
	b.addLabels(labels)
	refs := b.refs[from:len(b.refs):len(b.refs)]
	s := series.Ref{Labels: refs, Type: t, Unit: b.internString(unit), StartTime: start}
	hash := b.hash(&s)
	head, ok := b.byHash[hash]
	if !ok {
		head = -1
	}
	// An equal hash does not prove equality: series with one hash are chained, newest first.
	for i := head; i >= 0; i = b.series[i].same {
		if equalSeries(&b.series[i].Ref, &s) {
			// The series is known, so these references are not needed. All its strings exist already.
			b.refs = b.refs[:from]
			return SeriesID(i), nil
		}
	}
	err := b.view().validateSeries(&s, t.Histogram(), &b.lim)
	if err == nil {
		err = b.validateNew(strings)
	}
	if err != nil {
		b.rollback(from, strings)
		return -1, err
	}
	if b.used == len(b.series) {
		b.series = append(b.series, built{})
	}
	e := &b.series[b.used]
	// Reset keeps the slices of earlier series, so a Builder that is reused does not allocate.
	*e = built{
		Ref: s, same: head,
		timestamps: e.timestamps[:0], values: e.values[:0], histograms: e.histograms[:0],
	}
	b.byHash[hash] = int32(b.used)
	b.used++
	return SeriesID(b.used - 1), nil
}

// Append adds a sample to a series. ts is in Unix nanoseconds and must be later than the series' last.
func (b *Builder) Append(id SeriesID, ts int64, value float64) error {
	e := &b.series[id]
	// A series of unknown type is made one of samples or of histograms by its first record.
	if e.Type.Histogram() || len(e.histograms) > 0 {
		return refuse(BadColumn, "sample in a series of histograms")
	}
	if err := b.appendTime(e, ts); err != nil {
		return err
	}
	e.values = append(e.values, value)
	return nil
}

// AppendHistogram adds a histogram to a series; ts as for Append. The slices of h are kept, not copied.
func (b *Builder) AppendHistogram(id SeriesID, ts int64, h series.Histogram) error {
	e := &b.series[id]
	if len(e.values) > 0 || (e.Type != series.Unknown && !e.Type.Histogram()) {
		return refuse(BadColumn, "histogram in a series of samples")
	}
	if err := validateHistogram(&h); err != nil {
		return err
	}
	if err := b.appendTime(e, ts); err != nil {
		return err
	}
	e.histograms = append(e.histograms, h)
	return nil
}

func (b *Builder) appendTime(e *built, ts int64) error {
	if b.records >= b.lim.Records {
		return refuse(TooManyRecords, "more than %d records", b.lim.Records)
	}
	if n := len(e.timestamps); n == 0 {
		// The hash is updated with every timestamp (as FNV does), so that grouping compares whole slices
		// only where hashes are equal.
		e.timeHash = 14695981039346656037
	} else if ts <= e.timestamps[n-1] {
		return refuse(BadColumn, "timestamp %d is not after %d", ts, e.timestamps[n-1])
	}
	e.timestamps = append(e.timestamps, ts)
	e.timeHash = (e.timeHash ^ uint64(ts)) * 1099511628211
	e.timeHash ^= e.timeHash >> 29
	b.records++
	return nil
}

// Records is the number of records so far.
func (b *Builder) Records() int { return b.records }

// Series is the number of series so far.
func (b *Builder) Series() int { return b.used }

// Build arranges the records as a Batch; they get the sequence numbers from seqStart on.
// The Batch is valid until the next call of a method. Groups are in the order of their
// first series, and series within them in the order of AddSeries; series without records
// are left out. An empty Builder returns RECORD_COUNT_MISMATCH.
func (b *Builder) Build(boot identity.Boot, seqStart uint64) (*Batch, error) {
	if b.records == 0 {
		return nil, refuse(RecordCountMismatch, "no records")
	}
	n := uint64(b.records - 1)
	// Compared before the addition, which would wrap around.
	if seqStart > math.MaxUint64-n {
		return nil, refuse(IdentityInvalid, "%d records from sequence number %d on", b.records, seqStart)
	}
	id := identity.Batch{Agent: boot.Agent, Boot: boot.Boot, SeqStart: seqStart, SeqEnd: seqStart + n}
	if err := id.Validate(); err != nil {
		return nil, refuse(IdentityInvalid, "%v", err)
	}
	b.out.Identity, b.out.Strings, b.out.Resource = id, b.strings, b.resource
	b.group()
	b.fill()
	b.keepHelps()
	if b.kept {
		b.leaveOut()
	}
	return &b.out, nil
}

// leaveOut removes the strings that only series without records have.
func (b *Builder) leaveOut() {
	all := true
	for i := range b.series[:b.used] {
		all = all && b.series[i].group >= 0
	}
	if all {
		return
	}
	l := &b.left
	l.places = slices.Grow(l.places[:0], len(b.strings))[:len(b.strings)]
	clear(l.places)
	use := func(refs []series.LabelRef) {
		for _, r := range refs {
			l.places[r.Name], l.places[r.Value] = 1, 1
		}
	}
	l.places[0] = 1 // the empty string is always the first
	use(b.out.Resource)
	for i := range b.out.Groups {
		for _, s := range b.out.Groups[i].Series {
			l.places[s.Unit] = 1
			use(s.Labels)
		}
	}
	l.strings = l.strings[:0]
	for i, used := range l.places {
		if used > 0 {
			l.places[i] = uint32(len(l.strings))
			l.strings = append(l.strings, b.strings[i])
		}
	}
	l.refs = l.refs[:0]
	move := func(refs []series.LabelRef) []series.LabelRef {
		from := len(l.refs)
		for _, r := range refs {
			l.refs = append(l.refs, series.LabelRef{Name: l.places[r.Name], Value: l.places[r.Value]})
		}
		return l.refs[from:len(l.refs):len(l.refs)]
	}
	b.out.Strings, b.out.Resource = l.strings, move(b.out.Resource)
	for i := range b.out.Groups {
		list := b.out.Groups[i].Series
		for k := range list {
			list[k].Unit, list[k].Labels = l.places[list[k].Unit], move(list[k].Labels)
		}
	}
	// The order of strings is the same, so that of helps is, too.
	for i := range b.out.Helps {
		b.out.Helps[i].Name = l.places[b.out.Helps[i].Name]
	}
}

// group assigns every series with records to a group: samples and histograms never share one.
func (b *Builder) group() {
	clear(b.grouped)
	b.out.Groups = b.out.Groups[:0]
	for i := range b.series[:b.used] {
		e := &b.series[i]
		if len(e.timestamps) == 0 {
			e.group = -1
			continue
		}
		histograms := len(e.histograms) > 0
		key := e.timeHash
		if histograms {
			// A group has either samples or histograms, so series with equal timestamps need two keys.
			key = ^key
		}
		g, ok := b.grouped[key]
		// After a collision of hashes the series starts its own group: larger, but correct.
		if !ok || !slices.Equal(b.out.Groups[g].Timestamps, e.timestamps) || (b.out.Groups[g].Histograms != nil) != histograms {
			g = int32(len(b.out.Groups))
			if int(g) == cap(b.out.Groups) {
				b.out.Groups = append(b.out.Groups, Group{})
			}
			b.out.Groups = b.out.Groups[:g+1]
			o := &b.out.Groups[g]
			o.Timestamps, o.Series, o.Values, o.Histograms = e.timestamps, o.Series[:0], o.Values[:0], nil
			if histograms {
				o.Values, o.Histograms = nil, []series.Histogram{} // not nil: this marks a group of histograms
			}
			b.grouped[key] = g
		}
		e.group = g
	}
}

func (b *Builder) fill() {
	for i := range b.series[:b.used] {
		e := &b.series[i]
		if e.group < 0 {
			continue
		}
		o := &b.out.Groups[e.group]
		o.Series = append(o.Series, e.Ref)
		o.Values = append(o.Values, e.values...)
		o.Histograms = append(o.Histograms, e.histograms...)
	}
}

// validateNew checks the strings from an index on.
func (b *Builder) validateNew(from int) error {
	for _, s := range b.strings[from:] {
		if !validText(s) {
			return refuse(BadLabels, "%q is not UTF-8", clip(s))
		}
	}
	return nil
}

// rollback removes label references and strings from an index on, after a series was refused.
func (b *Builder) rollback(refs, strings int) {
	for _, s := range b.strings[strings:] {
		delete(b.intern, s)
	}
	b.refs, b.strings = b.refs[:refs], b.strings[:strings]
}

// view returns a Batch with the present tables, for the validation functions.
func (b *Builder) view() *Batch {
	b.out.Strings, b.out.Resource = b.strings, b.resource
	return &b.out
}

// addLabels appends references to refs, sorted by name (by insertion: labels are few). Equal names are refused by the validation.
func (b *Builder) addLabels(labels []series.Label) {
	from := len(b.refs)
	for _, l := range labels {
		if l.Value == "" {
			continue
		}
		b.refs = append(b.refs, series.LabelRef{Name: b.internString(l.Name), Value: b.internString(l.Value)})
		for i := len(b.refs) - 1; i > from && b.strings[b.refs[i].Name] < b.strings[b.refs[i-1].Name]; i-- {
			b.refs[i], b.refs[i-1] = b.refs[i-1], b.refs[i]
		}
	}
}

func (b *Builder) internString(s string) uint32 {
	i, ok := b.intern[s]
	if !ok {
		i = uint32(len(b.strings))
		b.strings = append(b.strings, s)
		b.intern[s] = i
	}
	return i
}

func (b *Builder) hash(s *series.Ref) uint64 {
	h := uint64(s.Type) ^ uint64(s.Unit)<<8 ^ uint64(s.StartTime)*0x9e3779b97f4a7c15
	for _, l := range s.Labels {
		h = (h ^ (uint64(l.Name)<<32 | uint64(l.Value))) * 0x9e3779b97f4a7c15
		h ^= h >> 29
	}
	return h
}

func equalSeries(a, b *series.Ref) bool {
	return a.Type == b.Type && a.Unit == b.Unit && a.StartTime == b.StartTime && slices.Equal(a.Labels, b.Labels)
}
