package frame

import (
	"math"
	"testing"

	"google.golang.org/protobuf/proto"

	framev1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/frame/v1"
)

// Columns that disagree with each other, or end early, one at a time.
func TestColumnRefusals(t *testing.T) {
	cases := map[string]struct {
		change func(b *framev1.Batch, g *framev1.Group)
		want   Reason
	}{
		"no rows":                {func(_ *framev1.Batch, g *framev1.Group) { g.Rows = 0 }, BadPayload},
		"rows not paid for":      {func(_ *framev1.Batch, g *framev1.Group) { g.Rows = 1 << 30 }, BadColumn},
		"a row less":             {func(_ *framev1.Batch, g *framev1.Group) { g.Rows-- }, BadColumn},
		"a row more":             {func(_ *framev1.Batch, g *framev1.Group) { g.Rows++ }, RecordCountMismatch},
		"no series":              {func(_ *framev1.Batch, g *framev1.Group) { g.LabelCounts = nil }, BadPayload},
		"unit 0":                 {func(_ *framev1.Batch, g *framev1.Group) { g.Timestamps[0] = 0 }, BadColumn},
		"timestamps go on":       {func(_ *framev1.Batch, g *framev1.Group) { g.Timestamps = append(g.Timestamps, 0) }, BadColumn},
		"label count too high":   {func(_ *framev1.Batch, g *framev1.Group) { g.LabelCounts[0] = 1 << 31 }, BadColumn},
		"labels left over":       {func(_ *framev1.Batch, g *framev1.Group) { g.LabelCounts[5]-- }, BadColumn},
		"name missing":           {func(_ *framev1.Batch, g *framev1.Group) { g.LabelNames = g.LabelNames[1:] }, BadColumn},
		"value missing":          {func(_ *framev1.Batch, g *framev1.Group) { g.LabelValues = g.LabelValues[1:] }, BadColumn},
		"name beyond the table":  {func(_ *framev1.Batch, g *framev1.Group) { g.LabelNames[3] = math.MaxUint32 }, BadLabels},
		"value beyond the table": {func(_ *framev1.Batch, g *framev1.Group) { g.LabelValues[3] = 1000 }, BadLabels},
		"type missing":           {func(_ *framev1.Batch, g *framev1.Group) { g.Types = g.Types[1:] }, BadColumn},
		"type beyond":            {func(_ *framev1.Batch, g *framev1.Group) { g.Types[0] = 8 }, BadPayload},
		"unit missing":           {func(_ *framev1.Batch, g *framev1.Group) { g.Units = g.Units[1:] }, BadColumn},
		"unit too many":          {func(_ *framev1.Batch, g *framev1.Group) { g.Units = append(g.Units, 0) }, BadColumn},
		"unit beyond the table":  {func(_ *framev1.Batch, g *framev1.Group) { g.Units[0] = 1000 }, BadColumn},
		"start missing":          {func(_ *framev1.Batch, g *framev1.Group) { g.StartTimeDeltas = g.StartTimeDeltas[1:] }, BadColumn},
		"start too many":         {func(_ *framev1.Batch, g *framev1.Group) { g.StartTimeDeltas = append(g.StartTimeDeltas, 0) }, BadColumn},
		"mode missing":           {func(_ *framev1.Batch, g *framev1.Group) { g.ValueModes = g.ValueModes[1:] }, BadColumn},
		"mode unknown":           {func(_ *framev1.Batch, g *framev1.Group) { g.ValueModes[0] = 0x20 }, BadColumn},
		"shift of 0":             {func(_ *framev1.Batch, g *framev1.Group) { g.ValueModes[0] = 0x40 }, BadColumn},
		"values not paid for":    {func(_ *framev1.Batch, g *framev1.Group) { g.Values = g.Values[:20] }, BadColumn},
		"values end":             {func(_ *framev1.Batch, g *framev1.Group) { g.Values = g.Values[:len(g.Values)-1] }, BadColumn},
		"values go on":           {func(_ *framev1.Batch, g *framev1.Group) { g.Values = append(g.Values, 0) }, BadColumn},
		"samples and histograms": {func(_ *framev1.Batch, g *framev1.Group) { g.Histograms = []*framev1.Histogram{{}} }, BadPayload},
		"neither":                {func(_ *framev1.Batch, g *framev1.Group) { g.ValueModes, g.Values = nil, nil }, BadColumn},
		"string of 0 bytes":      {func(b *framev1.Batch, _ *framev1.Group) { b.StringLengths[0] = 0 }, BadPayload},
		"string too long":        {func(b *framev1.Batch, _ *framev1.Group) { b.StringLengths[0] = 1 << 16 }, BadPayload},
		"strings left over":      {func(b *framev1.Batch, _ *framev1.Group) { b.Strings += "x" }, BadPayload},
		"half a label":           {func(b *framev1.Batch, _ *framev1.Group) { b.Resource = b.Resource[1:] }, BadLabels},
		"resource beyond":        {func(b *framev1.Batch, _ *framev1.Group) { b.Resource[0] = 1000 }, BadLabels},
		"prefix missing":         {func(b *framev1.Batch, _ *framev1.Group) { b.StringPrefixes = b.StringPrefixes[1:] }, BadPayload},
		"prefix too many":        {func(b *framev1.Batch, _ *framev1.Group) { b.StringPrefixes = append(b.StringPrefixes, 0) }, BadPayload},
		"prefix of nothing":      {func(b *framev1.Batch, _ *framev1.Group) { b.StringPrefixes[0] = 1 }, BadPayload},
		"prefix too long":        {func(b *framev1.Batch, _ *framev1.Group) { b.StringPrefixes[1] = 5 }, BadPayload},
		"rest in a character": {func(b *framev1.Batch, _ *framev1.Group) {
			b.Strings = "h\u00e9" + b.Strings[3:] // the first string, host, ends in the character
			b.StringLengths[0], b.StringLengths[1] = 2, b.StringLengths[1]+2
		}, BadLabels},
		"prefix in a character": {func(b *framev1.Batch, _ *framev1.Group) {
			b.Strings = "h\u00e9s" + b.Strings[4:]
			b.StringPrefixes[1] = 2
		}, BadLabels},
	}
	batch := sampleBatch(t)
	var w payloadWriter
	for name, c := range cases {
		var m framev1.Batch
		must(t, proto.Unmarshal(w.write(batch), &m))
		c.change(&m, m.GetGroups()[0])
		payload, err := proto.Marshal(&m)
		must(t, err)
		t.Run(name, func(t *testing.T) {
			wantReason(t, Decode(rawFrame(batch.Identity, None, payload, len(payload)), &Batch{}, Limits{}), c.want)
		})
	}
}

func TestTimestampOverflow(t *testing.T) {
	for _, col := range [][]byte{
		append(appendUnit(1<<62), 8),                           // 4 * 2^62
		append(appendUnit(1<<62), 2, 1),                        // 2^62 + 2^62
		append(appendUnit(1), 0, 1, 1),                         // difference 1, then 0
		append(appendUnit(1), 0, 0),                            // difference 0
		append(appendUnit(math.MaxInt64+1), 0),                 // unit is not an int64
		append(appendUnit(1), append(appendUnit(1<<63), 1)...), // 2^62 ...
		{0x80}, {}, {1}, {1, 0x80},
	} {
		out := make([]int64, 3)
		wantReason(t, decodeTimestamps(out, col), BadColumn)
	}
}

func appendUnit(u uint64) []byte {
	var out []byte
	for ; u >= 0x80; u >>= 7 {
		out = append(out, byte(u)|0x80)
	}
	return append(out, byte(u))
}
