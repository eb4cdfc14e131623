package main

import (
	"context"
	"net/http"
	"slices"
	"strings"

	"github.com/klauspost/compress/snappy"
	"github.com/prometheus/prometheus/prompb"

	"lightmetrics.dev/lightmetrics/internal/harness/tsbs"
	"lightmetrics.dev/lightmetrics/test/peers"
)

// agentLabel is what every series of ours has; the peers get it as a label of the series.
const agentLabel = "agent"

// remoteWriter sends the series of one host by remote write 1.0, as a Prometheus agent does.
type remoteWriter struct {
	host   tsbs.Host
	client *http.Client
	url    string
	req    prompb.WriteRequest
	raw    []byte
	body   []byte
}

var remoteWriteHeader = http.Header{
	"Content-Type": {"application/x-protobuf"}, "Content-Encoding": {"snappy"}, "X-Prometheus-Remote-Write-Version": {"0.1.0"}, "User-Agent": {"lightmetrics-bench"},
}

func newRemoteWriter(m *peers.Monitor, client *http.Client, h tsbs.Host) *remoteWriter {
	w := &remoteWriter{host: h, client: client, url: "http://" + m.Addr + m.Write, req: prompb.WriteRequest{Timeseries: make([]prompb.TimeSeries, len(h.Series))}}
	for i := range h.Series {
		ls := []prompb.Label{{Name: agentLabel, Value: h.Name}}
		for _, l := range h.Series[i].Labels {
			if l.Value != "" {
				ls = append(ls, prompb.Label{Name: l.Name, Value: l.Value})
			}
		}
		slices.SortFunc(ls, func(a, b prompb.Label) int { return strings.Compare(a.Name, b.Name) })
		w.req.Timeseries[i].Labels = ls
	}
	return w
}

// send writes rows samples of every series from row from on, in one request.
func (w *remoteWriter) send(ctx context.Context, from, rows int) error {
	for i := range w.host.Series {
		s, ts := &w.host.Series[i], &w.req.Timeseries[i]
		ts.Samples = ts.Samples[:0]
		for k := from; k < from+rows; k++ {
			ts.Samples = append(ts.Samples, prompb.Sample{Timestamp: s.Timestamps[k], Value: s.Values[k]})
		}
	}
	n := w.req.Size()
	if cap(w.raw) < n {
		w.raw = make([]byte, n)
	}
	w.raw = w.raw[:n]
	if _, err := w.req.MarshalToSizedBuffer(w.raw); err != nil {
		return err
	}
	w.body = snappy.Encode(w.body[:cap(w.body)], w.raw)
	return post(ctx, w.client, w.url, remoteWriteHeader, w.body)
}
