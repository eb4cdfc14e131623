package frame

import (
	"testing"

	"lightmetrics.dev/lightmetrics/pkg/identity"
)

func TestRoundTripSmall(t *testing.T) {
	b := NewBuilder()
	if err := b.SetResource(Label{"host", "h1"}, Label{"env", "prod"}); err != nil {
		t.Fatal(err)
	}
	for i, name := range []string{"up", "load1", "mem_bytes"} {
		id, err := b.AddSeries([]Label{{MetricName, name}, {"cpu", "0"}}, Gauge, "", 0)
		if err != nil {
			t.Fatal(err)
		}
		for k := range 5 {
			if err := b.Append(id, int64(k+1)*1e9, float64(i*k)/10); err != nil {
				t.Fatal(err)
			}
		}
	}
	batch, err := b.Build(identity.Boot{Agent: "a", Boot: "b"}, 7)
	if err != nil {
		t.Fatal(err)
	}
	f, err := Encode(nil, batch)
	if err != nil {
		t.Fatal(err)
	}
	var got Batch
	if err := Decode(f, &got, Limits{}); err != nil {
		t.Fatal(err)
	}
	if diff := diffBatch(batch, &got); diff != "" {
		t.Fatal(diff)
	}
}
