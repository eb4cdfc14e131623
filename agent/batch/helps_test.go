package batch

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"lightmetrics.dev/lightmetrics/agent/input"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

// sentHelps are the helps of each batch in the queue, by name.
func sentHelps(q *memQueue) []map[string]string {
	out := make([]map[string]string, len(q.got))
	for i := range q.got {
		out[i] = map[string]string{}
		for _, h := range q.got[i].Helps {
			out[i][q.got[i].Strings[h.Name]] = h.Text
		}
	}
	return out
}

func helped(name, help string) *input.Series {
	return &input.Series{Type: series.Gauge, Help: help, Labels: []series.Label{{Name: "a", Value: "b"}, {Name: "__name__", Value: name}}}
}

// TestHelpOncePerHour: the first batch of an hour that has a metric carries its help, whatever the
// number of its series and however their texts differ; the others do not.
func TestHelpOncePerHour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &memQueue{t: t}
		b, _ := newBatcher(t, DefaultConfig(), q)
		series := []*input.Series{helped("m", "first"), helped("m", "second"), helped("n", "n's"), helped("none", "")}
		series[1].Labels[0].Value = "c"
		flush := func(s ...*input.Series) {
			b.add(scrapeOf(s, time.Now().UnixNano()))
			b.flush()
		}
		time.Sleep(time.Until(time.Now().Truncate(time.Hour).Add(time.Hour + 50*time.Minute)))
		flush(series[0], series[1], series[3])
		flush(series...)
		flush(series...)
		time.Sleep(10*time.Minute - time.Second)
		flush(series...)
		time.Sleep(time.Second)
		flush(series[1:]...)
		flush(series...)
		want := "[map[m:first] map[n:n's] map[] map[] map[m:second n:n's] map[]]"
		if got := fmt.Sprint(sentHelps(q)); got != want {
			t.Errorf("batches have helps %s, want %s", got, want)
		}
	})
}

// TestHelpOfARefusedBatch: what the queue did not take is sent with the next batch.
func TestHelpOfARefusedBatch(t *testing.T) {
	q := &memQueue{t: t, err: errors.New("disk")}
	b, _ := newBatcher(t, DefaultConfig(), q)
	s := []*input.Series{helped("m", "help")}
	b.add(scrapeOf(s, 1))
	b.flush()
	q.err = nil
	b.add(scrapeOf(s, 2))
	b.flush()
	if got := fmt.Sprint(sentHelps(q)); got != "[map[m:help]]" {
		t.Errorf("helps %s", got)
	}
}

// TestHelpsAreSpread: a frame has room for so many bytes of helps, the next ones have the rest.
func TestHelpsAreSpread(t *testing.T) {
	q := &memQueue{t: t}
	b, _ := newBatcher(t, DefaultConfig(), q)
	var s []*input.Series
	for i := range 100 {
		s = append(s, helped(fmt.Sprint("m", i), strings.Repeat("x", 2048)))
	}
	for at := range int64(8) {
		b.add(scrapeOf(s, at))
		b.flush()
	}
	all := map[string]bool{}
	for i, helps := range sentHelps(q) {
		if n := len(helps) * 2048; n > maxHelpBytes+2048 {
			t.Errorf("batch %d has %d bytes of helps", i, n)
		}
		for name := range helps {
			if all[name] {
				t.Errorf("%s twice", name)
			}
			all[name] = true
		}
	}
	if len(all) != 100 || len(q.got[7].Helps) > 0 {
		t.Errorf("%d of 100 helps were sent, %d in the last batch", len(all), len(q.got[7].Helps))
	}
}

// TestHelpNamesAreBounded: names that are gone make room, of too many at once the last have no help.
func TestHelpNamesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, builder := newHelps(), frame.NewBuilder()
		send := func(prefix string, n int) (sent int) {
			for i := range n {
				s := helped(fmt.Sprint(prefix, i), "h")
				if _, err := builder.AddSeries(s.Labels, s.Type, "", 0); err != nil {
					t.Fatal(err)
				}
				before := len(h.pending)
				h.add(builder, s)
				sent += len(h.pending) - before
				h.endFrame(true)
			}
			builder.Reset()
			return sent
		}
		if n := send("a", maxHelpNames+10); n != maxHelpNames || len(h.sent) != maxHelpNames {
			t.Errorf("%d sent, %d remembered", n, len(h.sent))
		}
		time.Sleep(time.Hour)
		if n := send("b", 10); n != 0 {
			t.Errorf("%d sent in place of names of the last hour", n)
		}
		time.Sleep(time.Hour)
		if n := send("b", 10); n != 10 || len(h.sent) != 10 {
			t.Errorf("%d of 10 sent, %d remembered", n, len(h.sent))
		}
	})
}
