package frame

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"lightmetrics.dev/lightmetrics/pkg/series"
	framev1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/frame/v1"
)

// The payload is the protobuf message that the schema says, for readers and
// writers in other languages.
func TestPayloadIsProtobuf(t *testing.T) {
	for _, batch := range []*Batch{sampleBatch(t), histogramBatch(t), helpBatch(t)} {
		var w payloadWriter
		var m framev1.Batch
		must(t, proto.UnmarshalOptions{DiscardUnknown: false}.Unmarshal(w.write(batch), &m))
		if len(m.ProtoReflect().GetUnknown()) > 0 {
			t.Error("unknown fields")
		}
		id := batch.Identity
		if p := m.GetIdentity(); p.GetAgentId() != id.Agent || p.GetBootId() != id.Boot || p.GetSeqStart() != id.SeqStart || p.GetSeqEnd() != id.SeqEnd {
			t.Errorf("identity %v, want %v", p, id)
		}
		if len(m.GetStringLengths()) != len(batch.Strings)-1 || len(m.GetGroups()) != len(batch.Groups) {
			t.Errorf("%d strings, %d groups", len(m.GetStringLengths()), len(m.GetGroups()))
		}
		for i, g := range m.GetGroups() {
			want := batch.Groups[i]
			if len(g.GetLabelCounts()) != len(want.Series) || int(g.GetRows()) != len(want.Timestamps) || len(g.GetHistograms()) != len(want.Histograms) {
				t.Errorf("group %d: %v", i, g)
			}
			if n := len(want.Histograms); n > 0 && g.GetHistograms()[n-1].GetCount() != want.Histograms[n-1].Count {
				t.Errorf("group %d: count %v", i, g.GetHistograms()[n-1].GetCount())
			}
			for s := range want.Series {
				if int(g.GetTypes()[s]) != int(want.Series[s].Type) {
					t.Errorf("group %d, series %d: type %v", i, s, g.GetTypes()[s])
				}
			}
		}
		payload, err := proto.MarshalOptions{Deterministic: true}.Marshal(&m)
		must(t, err)
		var got Batch
		must(t, Decode(rawFrame(id, None, payload, len(payload)), &got, Limits{}))
		if d := diffBatch(batch, &got); d != "" {
			t.Error(d)
		}
	}
}

func TestMetricTypesAreTheSchemas(t *testing.T) {
	for typ, want := range map[series.Type]framev1.MetricType{
		series.Unknown: framev1.MetricType_METRIC_TYPE_UNSPECIFIED, series.Gauge: framev1.MetricType_METRIC_TYPE_GAUGE,
		series.Counter: framev1.MetricType_METRIC_TYPE_COUNTER, series.DeltaCounter: framev1.MetricType_METRIC_TYPE_DELTA_COUNTER,
		series.HistogramCumulative: framev1.MetricType_METRIC_TYPE_HISTOGRAM, series.HistogramDelta: framev1.MetricType_METRIC_TYPE_DELTA_HISTOGRAM,
		series.HistogramGauge: framev1.MetricType_METRIC_TYPE_GAUGE_HISTOGRAM, series.Info: framev1.MetricType_METRIC_TYPE_INFO,
	} {
		if int32(typ) != int32(want) {
			t.Errorf("%d, want %v", typ, want)
		}
	}
	if len(framev1.MetricType_name) != int(series.Info)+1 {
		t.Errorf("%d types in the schema", len(framev1.MetricType_name))
	}
}
